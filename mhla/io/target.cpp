#include "mhla/io/target.h"

#include <linux/magic.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <ctime>

#include "mhla/core/error.h"
#include "mhla/io/file.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxLinks = 40;  // as the kernel has it

// /dev/stdout leads to /proc/self/fd/1, a link to an open file: its text need not be a path, and what is open must not
// be replaced.
bool is_open_file(const fs::path& link) {
  struct statfs system {};
  return ::statfs(link.parent_path().c_str(), &system) == 0 && system.f_type == PROC_SUPER_MAGIC;
}

[[noreturn]] void refuse(const fs::path& path, const char* kind) {
  fail(path.string(), ": could not be written: is ", kind, ", expected a file, a pipe or a character device");
}

sigset_t only_sigpipe() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  return set;
}

}  // namespace

fs::path follow_links(const fs::path& path) {
  fs::path at = path;
  for (int links = 0; links <= kMaxLinks; ++links) {
    std::error_code error;
    if (fs::symlink_status(at, error).type() != fs::file_type::symlink || is_open_file(at)) return at;
    const fs::path to = fs::read_symlink(at, error);
    if (error) fail_to_write(path, error.value());
    at = to.is_absolute() ? to : at.parent_path() / to;
  }
  fail_to_write(path, ELOOP);
}

WriteTarget write_target(const fs::path& path) {
  const fs::path at = follow_links(path);
  struct stat status {};
  if (::lstat(at.c_str(), &status) != 0) {
    if (errno == ENOENT && at.has_filename()) return {at, false};
    fail_to_write(path, errno == ENOENT && !path.empty() ? EISDIR : errno);  // "new/"
  }
  const bool open_file = S_ISLNK(status.st_mode);
  if (open_file && ::stat(at.c_str(), &status) != 0) fail_to_write(path, errno);
  if (S_ISDIR(status.st_mode)) refuse(path, "a directory");
  if (S_ISBLK(status.st_mode)) refuse(path, "a block device");
  if (S_ISSOCK(status.st_mode)) refuse(path, "a socket");
  return {at, open_file || S_ISCHR(status.st_mode) || S_ISFIFO(status.st_mode)};
}

WithoutSigpipe::WithoutSigpipe() {
  sigset_t now, before;
  sigpending(&now);
  pending_ = sigismember(&now, SIGPIPE) == 1;
  const sigset_t pipe = only_sigpipe();
  pthread_sigmask(SIG_BLOCK, &pipe, &before);
  blocked_ = sigismember(&before, SIGPIPE) == 1;
}

WithoutSigpipe::~WithoutSigpipe() {
  const int error = errno;
  const sigset_t pipe = only_sigpipe();
  const timespec at_once{};
  if (!pending_) sigtimedwait(&pipe, nullptr, &at_once);
  if (!blocked_) pthread_sigmask(SIG_UNBLOCK, &pipe, nullptr);
  errno = error;
}

}  // namespace mhla
