// Memory before it is asked for: how much this process can still take, and whether an estimate fits into it. What
// cannot fit is refused at once, instead of growing until the system ends the process.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace mhla {

std::string bytes_text(double bytes);  // "1.5 GiB", "32 KiB"

struct SystemMemory {
  std::int64_t total_bytes = 0;      // physical memory; 0 where the system does not tell
  std::int64_t available_bytes = 0;  // usable without swapping, now
};
SystemMemory system_memory(const std::filesystem::path& root = "/");

// The smallest of what the system has available, the control group leaves and `ulimit -v` allows.
struct MemoryAtHand {
  std::int64_t bytes = 0;
  std::string bound;  // what bounds it: "available memory", "memory limit of the control group", "ulimit -v"
};
MemoryAtHand memory_at_hand(const std::filesystem::path& root = "/");
MemoryAtHand device_memory_at_hand(int device);  // of a CUDA device, free now

// What something needs at least, part by part.
class MemoryEstimate {
 public:
  MemoryEstimate& add(std::string_view part, double bytes);  // parts of 0 bytes are left out
  [[nodiscard]] double bytes() const { return bytes_; }
  [[nodiscard]] const std::string& parts() const { return parts_; }  // "weights 1.5 GiB, gradients 1.5 GiB"

 private:
  double bytes_ = 0.0;
  std::string parts_;
};

// Throws mhla::Error with the estimate and what is at hand. `what` opens the message: "train lm: a model of 3e9
// parameters".
void expect_fits(const std::string& what, const MemoryEstimate& needed, const MemoryAtHand& at_hand = memory_at_hand());

}  // namespace mhla
