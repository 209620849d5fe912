// One process trains in a folder at a time: a second one is refused by name. The system takes the lock back when the
// process ends, however it ends.
#pragma once

#include <filesystem>

namespace mhla::train {

class RunLock {
 public:
  explicit RunLock(const std::filesystem::path& folder);  // makes `folder`/.lock
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int descriptor_;
};

}  // namespace mhla::train
