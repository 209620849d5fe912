// What a path may be that is written to: links lead to their file, pipes and devices are written to as they are, and
// nothing that is there turns into something else. Errors name the path and the system's reason.
#include "mhla/io/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "mhla/core/error.h"
#include "mhla/core/run_failed.h"
#include "mhla/io/folder.h"
#include "mhla/io/quick_file.h"
#include "mhla/testing/messages.h"
#include "mhla/testing/plain_rights.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

class FileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "/file_test-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override {
    for (fs::recursive_directory_iterator at(folder_), end; at != end; ++at)
      if (!at->is_symlink() && at->is_directory()) fs::permissions(at->path(), fs::perms::owner_all);
    fs::remove_all(folder_);
  }
  [[nodiscard]] fs::path path(const std::string& name) const { return folder_ / name; }
  // Everything below the folder, in the order of names.
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& entry : fs::recursive_directory_iterator(folder_))
      all.push_back(entry.path().lexically_relative(folder_).string());
    std::sort(all.begin(), all.end());
    return all;
  }

 private:
  fs::path folder_;
};

std::string text_in(const fs::path& path) {
  const std::vector<std::byte> bytes = read_file(path);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string refused(const fs::path& path) {
  const std::string by_append = message_of([&] { AppendFile file(path); });
  const std::string by_write = message_of([&] { write_file(path, "text"); });
  EXPECT_EQ(by_write, message_of([&] { const AtomicFile begun(path); })) << "found out late";
  EXPECT_EQ(by_write, by_append);
  EXPECT_THROW(write_file(path, "text"), Error);
  return by_write;
}

using Names = std::vector<std::string>;

// ---- Links

TEST_F(FileTest, ALinkStaysAndItsFileIsReplaced) {
  fs::create_directory(path("elsewhere"));
  write_file(path("elsewhere/real"), "old");
  fs::create_symlink("elsewhere/real", path("relative"));
  fs::create_symlink(path("elsewhere/real"), path("absolute"));
  fs::create_symlink("relative", path("chain"));
  for (const char* link : {"relative", "absolute", "chain"}) {
    {
      AtomicFile file(path(link));
      file.write(std::as_bytes(std::span(link, std::strlen(link))));
      const Names now = names();  // what is not whole lies beside the file, where it can be renamed
      EXPECT_EQ(std::count_if(now.begin(), now.end(), [](const auto& n) { return has(n, "elsewhere/real.part"); }), 1);
      file.commit();
    }
    EXPECT_TRUE(fs::is_symlink(path(link))) << link;
    EXPECT_EQ(text_in(path("elsewhere/real")), link);
  }
  AppendFile(path("chain")).write("+");
  EXPECT_EQ(text_in(path("elsewhere/real")), "chain+");
  EXPECT_EQ(names(), (Names{"absolute", "chain", "elsewhere", "elsewhere/real", "relative"}));
}

TEST_F(FileTest, ADanglingLinkMakesItsFile) {
  fs::create_directory(path("elsewhere"));
  fs::create_symlink("elsewhere/new", path("link"));
  fs::create_symlink("elsewhere/log", path("log"));
  write_file(path("link"), "text");
  AppendFile(path("log")).write("line");
  EXPECT_EQ(text_in(path("elsewhere/new")), "text");
  EXPECT_EQ(text_in(path("elsewhere/log")), "line");
  EXPECT_TRUE(fs::is_symlink(path("link")) && fs::is_symlink(path("log")));
  fs::create_symlink("nowhere/new", path("lost"));
  EXPECT_EQ(refused(path("lost")), path("lost").string() + ": could not be written: No such file or directory");
}

TEST_F(FileTest, LinksInACircleAreRefused) {
  fs::create_symlink("b", path("a"));
  fs::create_symlink("a", path("b"));
  EXPECT_EQ(refused(path("a")), path("a").string() + ": could not be written: Too many levels of symbolic links");
  EXPECT_EQ(names(), (Names{"a", "b"}));
}

// ---- Pipes and devices

TEST_F(FileTest, APipeIsWrittenThroughAndStays) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  fs::create_symlink("pipe", path("link"));
  for (const char* name : {"pipe", "link"}) {
    { const AtomicFile begun(path(name)); }  // does not wait for a reader, and ends nothing for him
    std::string got;
    std::thread reader([&] { got = text_in(path("pipe")); });
    const std::string text(1 << 20, 'x');
    write_file(path(name), text);
    reader.join();
    EXPECT_EQ(got.size(), text.size());
    EXPECT_TRUE(fs::is_fifo(path("pipe")));
  }
  std::string got = "none";
  std::thread reader([&] { got = text_in(path("pipe")); });
  write_file(path("pipe"), "");  // the reader still sees an end
  reader.join();
  EXPECT_EQ(got, "");
  EXPECT_EQ(names(), (Names{"link", "pipe"}));
}

TEST_F(FileTest, AReaderThatLeavesIsAFailedRunAndNoSignal) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  std::thread reader([&] { ::close(::open(path("pipe").c_str(), O_RDONLY)); });
  EXPECT_THROW(write_file(path("pipe"), std::string(1 << 20, 'x')), RunFailed);
  reader.join();
}

// A terminal of its own: a character device that nobody needs rights for.
TEST_F(FileTest, ACharacterDeviceIsWrittenToAndStays) {
  const int master = ::posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_TRUE(master >= 0 && ::grantpt(master) == 0 && ::unlockpt(master) == 0);
  const std::string device = ::ptsname(master);
  const int keeps_it_open = ::open(device.c_str(), O_RDWR | O_NOCTTY);
  fs::create_symlink(device, path("link"));
  char got[64] = {};
  write_file(device, "one");
  EXPECT_EQ(std::string(got, static_cast<std::size_t>(::read(master, got, sizeof got))), "one");
  write_file(path("link"), "two");
  EXPECT_EQ(std::string(got, static_cast<std::size_t>(::read(master, got, sizeof got))), "two");
  AppendFile(path("link")).write("three");
  EXPECT_EQ(std::string(got, static_cast<std::size_t>(::read(master, got, sizeof got))), "three");
  EXPECT_TRUE(fs::is_character_file(path("link")) && fs::is_symlink(path("link")));
  EXPECT_EQ(names(), Names{"link"});
  ::close(keeps_it_open), ::close(master);
}

TEST_F(FileTest, ACopyOfNullStays) {
  const fs::path null = path("null");
  if (::mknod(null.c_str(), S_IFCHR | 0666, makedev(1, 3)) != 0)
    GTEST_SKIP() << "only root may make a device; the other tests of devices use pipes and terminals";
  write_file(null, "text");
  EXPECT_TRUE(fs::is_character_file(null));
  EXPECT_EQ(names(), Names{"null"});
}

// What is open under a number is written to, not replaced: the shell's `> file` would keep a file without a name.
TEST_F(FileTest, AnOpenFileIsAppendedTo) {
  write_file(path("out"), "before ");
  const int descriptor = ::open(path("out").c_str(), O_WRONLY | O_APPEND);
  write_file("/proc/self/fd/" + std::to_string(descriptor), "after");
  EXPECT_EQ(::write(descriptor, "!", 1), 1);
  ::close(descriptor);
  EXPECT_EQ(text_in(path("out")), "before after!");
}

// A writer that was killed leaves its partial file; the next writer of the same file takes it away, and no other's.
TEST_F(FileTest, AKilledWritersPartOfTheSameFileGoes) {
  const pid_t dead = ::fork();
  if (dead == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(dead, nullptr, 0), dead);
  const std::string of_dead = ".part" + std::to_string(dead) + "-0", long_name(NAME_MAX, 'n');
  const std::vector<std::string> others{"file.part" + std::to_string(::getpid()) + "-77",
                                        "other" + of_dead,
                                        "fil" + of_dead,
                                        "file.txt" + of_dead,
                                        "file.part",
                                        "file.part12"};
  for (const std::string& name : others) write_file(path(name), "kept");
  write_file(path(long_name), "");  // room for the partial name is made at the end of the long one
  const std::string cut = long_name.substr(0, NAME_MAX - of_dead.size()) + of_dead;
  for (const std::string& name : {"file" + of_dead, cut}) {
    const int descriptor = ::open(path(name).c_str(), O_CREAT | O_WRONLY, 0600);
    ASSERT_GE(descriptor, 0) << name;
    ::close(descriptor);
  }
  write_file(path("file"), "whole");
  write_file(path(long_name), "whole");
  std::vector<std::string> left = others;
  left.insert(left.end(), {"file", long_name});
  std::sort(left.begin(), left.end());
  EXPECT_EQ(names(), left);
}

TEST_F(FileTest, FoldersSocketsAndDisksAreRefused) {
  const std::string tail = ", expected a file, a pipe or a character device";
  fs::create_directory(path("folder"));
  fs::create_symlink("folder", path("link"));
  for (const char* name : {"folder", "link"})
    EXPECT_EQ(refused(path(name)), path(name).string() + ": could not be written: is a directory" + tail);
  EXPECT_EQ(refused(path("new/")), path("new/").string() + ": could not be written: Is a directory");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string place = path("socket").string();
  ASSERT_LT(place.size(), sizeof address.sun_path);
  std::memcpy(address.sun_path, place.c_str(), place.size());
  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(::bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(refused(path("socket")), place + ": could not be written: is a socket" + tail);
  ::close(socket);
  if (::mknod(path("disk").c_str(), S_IFBLK | 0600, makedev(7, 200)) == 0) {  // may be forbidden, even for root
    EXPECT_EQ(refused(path("disk")), path("disk").string() + ": could not be written: is a block device" + tail);
    EXPECT_TRUE(fs::is_block_file(path("disk")));
  }
}

// ---- Errors

TEST_F(FileTest, NamesUpToTheLimitAreWrittenAndLongerOnesRefused) {
  const std::string longest(NAME_MAX, 'n');
  write_file(path(longest), "text");
  EXPECT_EQ(names(), Names{longest});
  EXPECT_EQ(refused(path(longest + "n")), path(longest + "n").string() + ": could not be written: File name too long");
  EXPECT_EQ(refused(path(longest) / "below"),
            (path(longest) / "below").string() + ": could not be written: Not a directory");
}

TEST_F(FileTest, WhatMayNotBeWrittenIsRefused) {
  fs::create_directory(path("closed"));
  write_file(path("kept"), "old");
  fs::permissions(path("kept"), fs::perms::owner_read);
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0400), 0);
  fs::permissions(path("closed"), fs::perms::owner_read);
  const PlainRights rights;
  const auto denied = [&](const char* name) {
    EXPECT_EQ(refused(path(name)), path(name).string() + ": could not be written: Permission denied");
  };
  denied("closed/new");
  denied("kept");  // its folder would let it be replaced
  EXPECT_THROW(write_file(path("pipe"), "text"), Error);
  EXPECT_EQ(text_in(path("kept")), "old");
}

TEST_F(FileTest, AFullDiskIsAFailedRun) {
  ASSERT_TRUE(fs::is_character_file("/dev/full"));
  for (const std::size_t size : {std::size_t{4}, std::size_t{1} << 20})
    EXPECT_THROW(write_file("/dev/full", std::string(size, 'x')), RunFailed) << size;
  EXPECT_EQ(message_of([] { write_file("/dev/full", "text"); }),
            "/dev/full: could not be written: No space left on device");
  AppendFile file("/dev/full");
  file.write("text");
  EXPECT_THROW(file.flush(), RunFailed);
}

TEST_F(FileTest, WhatTheStandardLibraryThrowsNamesPathAndReason) {
  write_file(path("file"), "");
  const auto thrown = [&](int code) {
    fail_as(fs::filesystem_error("status", path("x"), std::error_code(code, std::generic_category())));
  };
  EXPECT_EQ(message_of([&] { thrown(EACCES); }), path("x").string() + ": Permission denied");
  EXPECT_THROW(thrown(EACCES), Error);
  EXPECT_THROW(thrown(ENOSPC), RunFailed);
}

// ---- Folders

TEST_F(FileTest, AFolderIsMadeAndGoesWithAJobThatFails) {
  const auto job = [&](const std::string& name, bool fails) {
    OutputFolder folder(path(name));
    EXPECT_TRUE(fs::is_directory(path(name)));
    write_file(folder.claim("a"), "text");
    if (!fails) folder.keep();
  };
  job("one/two/three", true);
  EXPECT_EQ(names(), Names{});
  job("one/two/", false);
  EXPECT_EQ(names(), (Names{"one", "one/two", "one/two/a"}));
  job("one/two", true);  // it was there, and its file
  job("one/two/three", true);
  EXPECT_EQ(names(), (Names{"one", "one/two", "one/two/a"}));
  { const OutputFolder folder(path("one/four")); }
  EXPECT_EQ(names(), (Names{"one", "one/two", "one/two/a"}));
  {
    const OutputFolder folder(path("one/four"));
    write_file(path("one/four/of somebody else"), "text");
  }
  EXPECT_EQ(text_in(path("one/four/of somebody else")), "text");
}

TEST_F(FileTest, AFolderMayBeALink) {
  fs::create_directory(path("real"));
  fs::create_symlink("real", path("link"));
  fs::create_symlink("new/inner", path("dangling"));
  for (const char* name : {"link", "dangling"}) {
    OutputFolder folder(path(name));
    write_file(folder.claim("a"), "text");
    folder.keep();
  }
  EXPECT_EQ(names(), (Names{"dangling", "link", "new", "new/inner", "new/inner/a", "real", "real/a"}));
}

TEST_F(FileTest, AFolderThatCannotBeSaysWhy) {
  write_file(path("file"), "");
  fs::create_symlink("loop", path("loop"));
  fs::create_directory(path("closed"));
  fs::permissions(path("closed"), fs::perms::owner_read | fs::perms::owner_exec);
  const auto expect = [&](const std::string& name, const char* reason) {
    EXPECT_EQ(message_of([&] { const OutputFolder folder(path(name)); }),
              path(name).string() + ": could not be written: " + reason);
    EXPECT_THROW(OutputFolder{path(name)}, Error);
  };
  expect("file", "Not a directory");
  expect("file/below", "Not a directory");
  expect("loop/below", "Too many levels of symbolic links");
  expect("new/" + std::string(NAME_MAX + 1, 'n'), "File name too long");
  const PlainRights rights;
  expect("closed/new", "Permission denied");
  EXPECT_EQ(names(), (Names{"closed", "file", "loop"}));
}

// ---- Files that grow

TEST_F(FileTest, QuickFilesAreWholeAndLeaveNothingElse) {
  const std::string text = "as many bytes as there are";
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  write_file_quickly(path("quick"), bytes);
  EXPECT_EQ(text_in(path("quick")), text);
  write_file_quickly(path("quick"), bytes.first(7));
  EXPECT_EQ(text_in(path("quick")), "as many");
  fs::create_directory(path("place"));
  EXPECT_THROW(write_file_quickly(path("place"), bytes), Error);
  EXPECT_THROW(write_file_quickly(path("none/quick"), bytes), Error);
  EXPECT_THROW(sync_files(path("none")), Error);
  sync_files(path("place"));
  EXPECT_EQ(names(), (Names{"place", "quick"}));
}

TEST_F(FileTest, AppendKeepsWhatIsAskedForAndGrows) {
  {
    AppendFile file(path("log"));
    file.write("one\ntwo\n");
    EXPECT_EQ(file.size(), 8u);
  }
  {
    AppendFile file(path("log"), 4);
    EXPECT_EQ(file.size(), 4u);
    file.write("three\n");
  }
  AppendFile(path("log"), 100);  // longer than it is
  EXPECT_EQ(text_in(path("log")), "one\nthree\n");
}

}  // namespace
}  // namespace mhla
