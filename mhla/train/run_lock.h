// One process trains in a folder at a time, or samples into it: a second one is refused by name. The system takes the
// lock back when the process ends, however it ends.
#pragma once

#include <filesystem>

namespace mhla::train {

class RunLock {
 public:
  // Makes `folder`/.lock. `doing` is what the other process does: "training in".
  explicit RunLock(const std::filesystem::path& folder, const char* doing = "training in");
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int descriptor_;
};

}  // namespace mhla::train
