#include "mhla/io/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>

#include "mhla/core/error.h"

namespace mhla {
namespace {

using File = std::unique_ptr<std::FILE, CloseFile>;

std::string reason(int error) { return std::strerror(error); }

constexpr std::string_view kPartial = ".part";  // then process and counter: "model.safetensors.part4711-0"

// The process in the name of such a file; 0: the name is another.
pid_t writer_of(const std::string& name) {
  const std::size_t at = name.rfind(kPartial);
  if (at == std::string::npos || at == 0) return 0;
  const char *digits = name.data() + at + kPartial.size(), *end = name.data() + name.size();
  pid_t process = 0;
  const auto [dash, error] = std::from_chars(digits, end, process);
  if (error != std::errc() || dash == end || *dash != '-' || dash + 1 == end || process <= 0) return 0;
  return std::all_of(dash + 1, end, [](char c) { return c >= '0' && c <= '9'; }) ? process : 0;
}

}  // namespace

std::vector<std::byte> read_file(const std::filesystem::path& path, std::uint64_t limit) {
  std::error_code none;
  if (std::filesystem::is_directory(path, none)) fail(path.string(), ": is a directory, expected a file");
  const File file(std::fopen(path.c_str(), "rb"));
  if (!file) fail(path.string(), ": ", reason(errno));
  const auto check = [&](std::uint64_t size) {
    if (size > limit) fail(path.string(), ": more than ", limit, " bytes, the most that is read here");
  };
  // The size is a hint: pipes have none, and a file may grow while it is read.
  const std::uintmax_t size = std::filesystem::is_regular_file(path, none) ? std::filesystem::file_size(path, none) : 0;
  std::vector<std::byte> bytes;
  if (!none) {
    check(size);
    bytes.reserve(size);
  }
  std::array<std::byte, std::size_t{1} << 16> piece{};
  while (const std::size_t count = std::fread(piece.data(), 1, piece.size(), file.get())) {
    check(bytes.size() + count);
    bytes.insert(bytes.end(), piece.begin(), piece.begin() + static_cast<std::ptrdiff_t>(count));
  }
  if (std::ferror(file.get()) != 0) fail(path.string(), ": could not be read to its end: ", reason(errno));
  return bytes;
}

void write_file(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

void write_file(const std::filesystem::path& path, const std::string& text) {
  write_file(path, std::as_bytes(std::span(text.data(), text.size())));
}

void CloseFile::operator()(std::FILE* file) const { std::fclose(file); }

void AtomicFile::give_up(const std::string& why) const { fail(path_.string(), ": could not be written: ", why); }

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)), partial_(path_) {
  // Process and counter keep two writers of one target apart; the last rename wins.
  static std::atomic<unsigned> counter{0};
  std::error_code none;
  if (std::filesystem::is_directory(path_, none)) give_up("is a directory");
  partial_ += str(kPartial, ::getpid(), "-", counter++);
  file_.reset(std::fopen(partial_.c_str(), "wb"));
  if (!file_) give_up(reason(errno));
}

AtomicFile::~AtomicFile() {
  file_.reset();
  if (!partial_.empty()) std::remove(partial_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) != bytes.size()) give_up(reason(errno));
}

void AtomicFile::commit() {
  // Without the sync a power cut after the rename could leave an empty file under the final name.
  if (std::fflush(file_.get()) != 0 || ::fsync(::fileno(file_.get())) != 0) give_up(reason(errno));
  if (std::fclose(file_.release()) != 0) give_up(reason(errno));
  std::error_code error;
  std::filesystem::rename(partial_, path_, error);
  if (error) give_up(error.message());
  partial_.clear();
  try {
    sync_directory(path_.parent_path());
  } catch (const Error& refused) {
    give_up(refused.what());
  }
}

void remove_partial_files(const std::filesystem::path& folder) {
  std::error_code none;
  std::vector<std::filesystem::path> left;
  for (const std::filesystem::directory_entry& entry : std::filesystem::directory_iterator(folder, none)) {
    const pid_t process = writer_of(entry.path().filename().string());
    const bool dead = process > 0 && ::kill(process, 0) != 0 && errno == ESRCH;
    if (dead && entry.is_regular_file(none)) left.push_back(entry.path());
  }
  for (const std::filesystem::path& path : left) std::filesystem::remove(path, none);
}

AppendFile::AppendFile(std::filesystem::path path, std::uint64_t keep) : path_(std::move(path)) {
  file_.reset(std::fopen(path_.c_str(), "ab"));
  if (!file_) give_up(errno);
  struct stat status {};
  if (::fstat(::fileno(file_.get()), &status) != 0) give_up(errno);
  size_ = static_cast<std::uint64_t>(status.st_size);
  if (size_ <= keep) return;
  if (::ftruncate(::fileno(file_.get()), static_cast<off_t>(keep)) != 0) give_up(errno);
  size_ = keep;
}

void AppendFile::give_up(int error) const { fail(path_.string(), ": could not be written: ", reason(error)); }

void AppendFile::write(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), file_.get()) != text.size()) give_up(errno);
  size_ += text.size();
}

void AppendFile::flush() {
  if (std::fflush(file_.get()) != 0) give_up(errno);
}

void sync_directory(const std::filesystem::path& path) {
  const std::filesystem::path folder = path.empty() ? "." : path;
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail(folder.string(), ": ", reason(errno));
  const int error = ::fsync(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  // Some file systems have no such thing; what they are asked for cannot be lost there.
  if (error != 0 && error != EINVAL && error != ENOTSUP) fail(folder.string(), ": ", reason(error));
}

MappedFile::MappedFile(const std::filesystem::path& path) {
  // Looked at before it is opened: opening a pipe would wait for its writer.
  std::error_code none;
  if (std::filesystem::exists(path, none) && !std::filesystem::is_regular_file(path, none))
    fail(path.string(), ": is no regular file");
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail(path.string(), ": ", reason(errno));
  struct stat status {};
  void* data = nullptr;
  if (::fstat(descriptor, &status) != 0 ||
      (status.st_size > 0 && (data = ::mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_PRIVATE,
                                            descriptor, 0)) == MAP_FAILED)) {
    const int error = errno;
    ::close(descriptor);
    fail(path.string(), ": could not be read: ", reason(error));
  }
  ::close(descriptor);  // the mapping keeps the file
  bytes_ = {static_cast<const std::byte*>(data), static_cast<std::size_t>(status.st_size)};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace mhla
