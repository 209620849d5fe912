#include "mhla/train/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "mhla/core/error.h"

namespace mhla::train {

RunLock::RunLock(const std::filesystem::path& folder, const char* doing)
    : descriptor_(::open((folder / ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
  if (descriptor_ < 0) fail((folder / ".lock").string(), ": ", std::strerror(errno));
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0) return;
  const int error = errno;
  ::close(descriptor_);
  if (error == EWOULDBLOCK) fail(folder.string(), ": another process is ", doing, " this folder");
  // A file system without locks is none to refuse a run for.
  descriptor_ = -1;
}

RunLock::~RunLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace mhla::train
