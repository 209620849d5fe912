#include "mhla/core/memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <limits>

#include "mhla/core/control_group.h"
#include "mhla/core/cuda.h"
#include "mhla/core/error.h"

namespace mhla {
namespace {

// Bytes of address space this process has, of /proc/self/statm.
std::int64_t mapped_bytes(const std::filesystem::path& root) {
  std::ifstream file(root / "proc/self/statm");
  std::int64_t pages = 0;
  return file >> pages ? pages * sysconf(_SC_PAGESIZE) : 0;
}

}  // namespace

std::string bytes_text(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  std::size_t unit = 0;
  for (; bytes >= 1024.0 && unit + 1 < std::size(kUnits); ++unit) bytes /= 1024.0;
  const bool whole = bytes < 1e15 && bytes == static_cast<double>(static_cast<std::int64_t>(bytes));
  char text[64];
  std::snprintf(text, sizeof text, bytes >= 1e6 ? "%.2g %s" : whole ? "%.0f %s" : "%.1f %s", bytes, kUnits[unit]);
  return text;
}

SystemMemory system_memory(const std::filesystem::path& root) {
  SystemMemory memory;
  std::ifstream file(root / "proc/meminfo");
  std::string key, unit;
  for (std::int64_t kib = 0; file >> key >> kib; std::getline(file, unit)) {
    if (key == "MemTotal:") memory.total_bytes = kib << 10;
    if (key == "MemAvailable:") memory.available_bytes = kib << 10;
  }
  return memory;
}

MemoryAtHand memory_at_hand(const std::filesystem::path& root) {
  MemoryAtHand at_hand{std::numeric_limits<std::int64_t>::max(), "the address space"};
  const auto bound = [&](std::int64_t bytes, const char* by) {
    if (bytes < at_hand.bytes) at_hand = {std::max<std::int64_t>(0, bytes), by};
  };
  if (const SystemMemory memory = system_memory(root); memory.total_bytes > 0)
    bound(memory.available_bytes, "available memory");
  if (const auto group = group_limits(root).memory_bytes) bound(*group, "memory limit of the control group");
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    bound(static_cast<std::int64_t>(std::min<rlim_t>(limit.rlim_cur, std::numeric_limits<std::int64_t>::max())) -
              mapped_bytes(root),
          "ulimit -v");
  return at_hand;
}

MemoryAtHand device_memory_at_hand(int device) {
  const bool known = device < cuda_device_count();  // this library may lack CUDA where LibTorch has it
  return {known ? device_free_bytes(device) : std::numeric_limits<std::int64_t>::max(), str("memory of cuda:", device)};
}

MemoryEstimate& MemoryEstimate::add(std::string_view part, double bytes) {
  if (!(bytes > 0.0)) return *this;
  bytes_ += bytes;
  parts_ += str(parts_.empty() ? "" : ", ", part, " ", bytes_text(bytes));
  return *this;
}

void expect_fits(const std::string& what, const MemoryEstimate& needed, const MemoryAtHand& at_hand) {
  if (needed.bytes() <= static_cast<double>(at_hand.bytes)) return;
  fail(what, " needs at least ", bytes_text(needed.bytes()), " of memory (", needed.parts(), "), expected at most ",
       bytes_text(static_cast<double>(at_hand.bytes)), " (", at_hand.bound, ")");
}

}  // namespace mhla
