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
#include <climits>
#include <csignal>
#include <cstring>

#include "mhla/core/error.h"
#include "mhla/core/run_failed.h"
#include "mhla/io/quick_file.h"
#include "mhla/io/target.h"

namespace mhla {
namespace {

using File = std::unique_ptr<std::FILE, CloseFile>;

std::string reason(int error) { return std::strerror(error); }

constexpr std::string_view kPartial = ".part";  // then process and counter: "model.safetensors.part4711-0"

// The process in the name of such a file of `target`, or of any file where that is empty; 0: the name is another.
pid_t writer_of(const std::string& name, const std::string& target = "") {
  const std::size_t at = name.rfind(kPartial);
  if (at == std::string::npos || at == 0) return 0;
  const bool cut_short = name.size() == NAME_MAX;  // partial_beside()
  if (!target.empty() && (name.compare(0, at, target, 0, at) != 0 || (at < target.size() && !cut_short))) return 0;
  const char *digits = name.data() + at + kPartial.size(), *end = name.data() + name.size();
  pid_t process = 0;
  const auto [dash, error] = std::from_chars(digits, end, process);
  if (error != std::errc() || dash == end || *dash != '-' || dash + 1 == end || process <= 0) return 0;
  return std::all_of(dash + 1, end, [](char c) { return c >= '0' && c <= '9'; }) ? process : 0;
}

// Process and counter keep two writers of one target apart; the last rename wins. Names have 255 bytes at most.
std::filesystem::path partial_beside(const std::filesystem::path& target) {
  static std::atomic<unsigned> counter{0};
  const std::string end = str(kPartial, ::getpid(), "-", counter++);
  return target.parent_path() / (target.filename().string().substr(0, NAME_MAX - end.size()) + end);
}

// What dead processes left in a folder of the file `target`, or of all where that is empty.
void remove_partials(const std::filesystem::path& folder, const std::string& target) {
  std::error_code none;
  std::vector<std::filesystem::path> left;
  for (const std::filesystem::directory_entry& entry : std::filesystem::directory_iterator(folder, none)) {
    const pid_t process = writer_of(entry.path().filename().string(), target);
    const bool dead = process > 0 && ::kill(process, 0) != 0 && errno == ESRCH;
    if (dead && entry.is_regular_file(none)) left.push_back(entry.path());
  }
  for (const std::filesystem::path& path : left) std::filesystem::remove(path, none);
}

bool is_failure_of_machine(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EIO:
    case EPIPE:  // whoever read the pipe is gone
    case ENOMEM:
    case EMFILE:
    case ENFILE:
    case ESTALE: return true;
    default: return false;
  }
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

void fail_to_write(const std::filesystem::path& path, int error) {
  const std::string text = str(path.string(), ": could not be written: ", reason(error));
  if (is_failure_of_machine(error)) throw RunFailed(text);
  throw Error(text);
}

void fail_as(const std::filesystem::filesystem_error& thrown) {
  if (thrown.path1().empty()) fail(thrown.what());
  if (is_failure_of_machine(thrown.code().value())) fail_to_write(thrown.path1(), thrown.code().value());
  fail(thrown.path1().string(), ": ", thrown.code().message());
}

void write_file(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

void write_file(const std::filesystem::path& path, const std::string& text) {
  write_file(path, std::as_bytes(std::span(text.data(), text.size())));
}

void write_file_quickly(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  const std::filesystem::path partial = partial_beside(path);
  const auto give_up = [&](int error) {
    ::unlink(partial.c_str());
    fail_to_write(path, error);
  };
  const int descriptor = ::open(partial.c_str(), O_WRONLY | O_CLOEXEC | O_CREAT | O_TRUNC, 0666);
  if (descriptor < 0) fail_to_write(path, errno);
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      const int error = count == 0 ? ENOSPC : errno;
      ::close(descriptor);
      give_up(error);
    }
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  if (::close(descriptor) != 0) give_up(errno);
  if (std::rename(partial.c_str(), path.c_str()) != 0) give_up(errno);
}

void sync_files(const std::filesystem::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail_to_write(folder, errno);
  const int error = ::syncfs(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  if (error != 0 && error != EINVAL && error != ENOTSUP && error != ENOSYS) fail_to_write(folder, error);
}

void CloseFile::operator()(std::FILE* file) const {
  const WithoutSigpipe quiet;
  std::fclose(file);
}

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)) {
  const WriteTarget target = write_target(path_);
  target_ = target.path;
  if (target.stream && ::eaccess(target_.c_str(), W_OK) != 0) fail_to_write(path_, errno);
  if (target.stream) return;
  // A file that may not be written is not replaced either, though its folder would allow it.
  const int there = ::open(target_.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
  if (there >= 0) ::close(there);
  if (there < 0 && errno != ENOENT) fail_to_write(path_, errno);
  partial_ = partial_beside(target_);
  open(partial_, O_CREAT | O_TRUNC);
}

void AtomicFile::open(const std::filesystem::path& path, int flags) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | flags, 0666);
  if (descriptor < 0) fail_to_write(path_, errno);
  file_.reset(::fdopen(descriptor, "wb"));
  if (file_) return;
  const int error = errno;
  ::close(descriptor);
  fail_to_write(path_, error);
}

AtomicFile::~AtomicFile() {
  file_.reset();
  if (!partial_.empty()) std::remove(partial_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  const WithoutSigpipe quiet;
  if (!file_) open(target_, O_APPEND);
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) != bytes.size()) fail_to_write(path_, errno);
}

void AtomicFile::commit() {
  const WithoutSigpipe quiet;
  const bool stream = partial_.empty();
  if (!file_) open(target_, O_APPEND);  // nothing was written
  // Without the sync a power cut after the rename could leave an empty file under the final name.
  if (std::fflush(file_.get()) != 0 || (!stream && ::fsync(::fileno(file_.get())) != 0)) fail_to_write(path_, errno);
  if (std::fclose(file_.release()) != 0) fail_to_write(path_, errno);
  if (stream) return;
  std::error_code error;
  std::filesystem::rename(partial_, target_, error);
  if (error) fail_to_write(path_, error.value());
  partial_.clear();
  sync_directory(target_.parent_path());
  const std::filesystem::path folder = target_.parent_path();
  remove_partials(folder.empty() ? "." : folder, target_.filename().string());
}

void remove_partial_files(const std::filesystem::path& folder) { remove_partials(folder, ""); }

AppendFile::AppendFile(std::filesystem::path path, std::uint64_t keep) : path_(std::move(path)) {
  file_.reset(std::fopen(write_target(path_).path.c_str(), "abe"));
  if (!file_) fail_to_write(path_, errno);
  struct stat status {};
  if (::fstat(::fileno(file_.get()), &status) != 0) fail_to_write(path_, errno);
  size_ = S_ISREG(status.st_mode) ? static_cast<std::uint64_t>(status.st_size) : 0;
  if (size_ <= keep) return;
  if (::ftruncate(::fileno(file_.get()), static_cast<off_t>(keep)) != 0) fail_to_write(path_, errno);
  size_ = keep;
}

void AppendFile::write(std::string_view text) {
  const WithoutSigpipe quiet;
  if (std::fwrite(text.data(), 1, text.size(), file_.get()) != text.size()) fail_to_write(path_, errno);
  size_ += text.size();
}

void AppendFile::flush() {
  const WithoutSigpipe quiet;
  if (std::fflush(file_.get()) != 0) fail_to_write(path_, errno);
}

void sync_directory(const std::filesystem::path& path) {
  const std::filesystem::path folder = path.empty() ? "." : path;
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail_to_write(folder, errno);
  const int error = ::fsync(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  // Some file systems have no such thing; what they are asked for cannot be lost there.
  if (error != 0 && error != EINVAL && error != ENOTSUP) fail_to_write(folder, error);
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
