// What the control group of this process leaves it: containers and batch systems bound memory and processors there,
// where /proc/meminfo and the affinity of threads do not show it. Version 1 and 2, the smallest along the path.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace mhla {

struct GroupLimits {
  std::optional<std::int64_t> memory_bytes;  // left now: the limit less what is used and cannot be given back
  std::optional<double> processors;          // quota over period: 1.5 is one and a half
};

// `root`: where /proc and /sys are; tests have their own.
GroupLimits group_limits(const std::filesystem::path& root = "/");

}  // namespace mhla
