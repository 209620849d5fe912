// Files that are replaced together: whenever the process ends, never some of the old and some of the new.
#include "mhla/io/folder.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "mhla/core/error.h"
#include "mhla/io/file.h"
#include "mhla/testing/messages.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& path) {
  if (!fs::exists(path)) return "none";
  const std::vector<std::byte> bytes = read_file(path);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool is_old(const std::string& name) { return name == "shard-1" || name == "shard-2"; }

class StagedFolderTest : public testing::Test {
 protected:
  void SetUp() override {
    folder = fs::temp_directory_path() / ("mhla_staged_" + std::to_string(::getpid()));
    fs::remove_all(folder);
    fs::create_directories(folder);
  }
  void TearDown() override { fs::remove_all(folder); }
  void write_old() const {
    for (const char* name : {"shard-1", "shard-2", "weights", "mine", "config.json"}) write_file(folder / name, "old");
  }
  static void write_new(const fs::path& to) {
    for (const char* name : {"weights", "classes", "config.json"}) write_file(to / name, "new");
  }
  fs::path folder;
};

TEST_F(StagedFolderTest, ReplacesAllOfThem) {
  write_old();
  StagedFolder staged(folder);
  write_new(staged.path());
  EXPECT_EQ(text_of(folder / "weights"), "old");
  staged.commit(is_old);
  for (const char* name : {"weights", "classes", "config.json"}) EXPECT_EQ(text_of(folder / name), "new") << name;
  EXPECT_EQ(text_of(folder / "mine"), "old");
  EXPECT_FALSE(fs::exists(folder / "shard-1"));
}

TEST_F(StagedFolderTest, WithoutCommitNothingChanges) {
  write_old();
  {
    StagedFolder staged(folder);
    write_new(staged.path());
  }
  EXPECT_EQ(text_of(folder / "weights"), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 5);
}

// The process is killed before the first change of the folder, before the second, and so on.
TEST_F(StagedFolderTest, AKillLeavesTheOldTheNewOrNoConfig) {
  int ended = 0;
  for (int kill_at = 0; ended == 0; ++kill_at) {
    ASSERT_LT(kill_at, 20);
    write_old();
    fs::remove(folder / "classes");
    const pid_t child = ::fork();
    if (child == 0) {
      int step = 0;
      StagedFolder staged(folder);
      write_new(staged.path());
      staged.commit(is_old, [&] {
        if (step++ == kill_at) ::raise(SIGKILL);
      });
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    if (WIFEXITED(status)) ended = kill_at;
    const std::string config = text_of(folder / "config.json"), weights = text_of(folder / "weights");
    if (config == "none") continue;
    EXPECT_EQ(config, weights) << "killed before step " << kill_at;
    EXPECT_EQ(text_of(folder / "shard-2"), config == "old" ? "old" : "none") << kill_at;
    EXPECT_EQ(text_of(folder / "classes"), config == "old" ? "none" : "new") << kill_at;
  }
  EXPECT_EQ(ended, 6);  // config.json and two shards away, three files in
  // What the killed processes left goes with the next.
  StagedFolder staged(folder);
  write_new(staged.path());
  staged.commit(is_old);
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    EXPECT_TRUE(entry.path() == staged.path() || !has(entry.path().string(), "/.new-")) << entry.path();
}

TEST_F(StagedFolderTest, KeepsLinksAndRefusesWhatMayNotBeWritten) {
  write_file(folder / "elsewhere", "old");
  fs::create_symlink("elsewhere", folder / "weights");
  write_file(folder / "config.json", "old");
  {
    StagedFolder staged(folder);
    write_new(staged.path());
    staged.commit(is_old);
  }
  EXPECT_TRUE(fs::is_symlink(folder / "weights"));
  EXPECT_EQ(text_of(folder / "elsewhere"), "new");
  fs::remove(folder / "classes");
  fs::create_directory(folder / "classes");
  write_file(folder / "config.json", "old");
  StagedFolder staged(folder);
  write_new(staged.path());
  EXPECT_TRUE(has(message_of([&] { staged.commit(is_old); }), "classes"));
  EXPECT_EQ(text_of(folder / "config.json"), "old");
}

}  // namespace
}  // namespace mhla
