// Linux tells everything through /proc/self/cgroup and /sys/fs/cgroup; a file that is missing bounds nothing.
#include "mhla/core/control_group.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

namespace mhla {
namespace {

namespace fs = std::filesystem;

template <class Value>
void lower(std::optional<Value>& bound, Value value) {
  bound = bound ? std::min(*bound, value) : value;
}

// The first number of a file, or none: "max" and files that are missing have none.
std::optional<std::int64_t> number_in(const fs::path& path) {
  std::ifstream file(path);
  std::int64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

// Bytes of files that are cached: the system takes them back when memory is short.
std::int64_t cached_bytes(const fs::path& stat, const std::string& prefix) {
  std::ifstream file(stat);
  std::int64_t sum = 0, bytes = 0;
  for (std::string key; file >> key >> bytes;)
    if (key == prefix + "active_file" || key == prefix + "inactive_file") sum += bytes;
  return sum;
}

void read_memory(const fs::path& group, const char* most, const char* used, const std::string& prefix,
                 GroupLimits& limits) {
  const std::optional<std::int64_t> limit = number_in(group / most), now = number_in(group / used);
  if (!limit || !now) return;
  const std::int64_t held = std::max<std::int64_t>(0, *now - cached_bytes(group / "memory.stat", prefix));
  lower(limits.memory_bytes, std::max<std::int64_t>(0, *limit - held));
}

void read_processors(std::optional<std::int64_t> quota, std::optional<std::int64_t> period, GroupLimits& limits) {
  if (quota && period && *quota > 0 && *period > 0)
    lower(limits.processors, static_cast<double>(*quota) / static_cast<double>(*period));
}

// The group at `path` below `mount` and all above it. Inside a container the path may not be there, the mount is.
template <class Visit>
void each_group(const fs::path& mount, const std::string& path, const Visit& visit) {
  fs::path inside = fs::path(path).relative_path();
  for (; !inside.empty(); inside = inside.parent_path()) visit(mount / inside);
  visit(mount);
}

void read_unified(const fs::path& mount, const std::string& path, GroupLimits& limits) {
  each_group(mount, path, [&](const fs::path& group) {
    read_memory(group, "memory.max", "memory.current", "", limits);
    std::ifstream file(group / "cpu.max");
    std::int64_t quota = 0, period = 0;
    if (file >> quota >> period) read_processors(quota, period, limits);
  });
}

bool names(const std::string& controllers, const std::string& one) {
  std::istringstream list(controllers);
  for (std::string name; std::getline(list, name, ',');)
    if (name == one) return true;
  return false;
}

}  // namespace

GroupLimits group_limits(const fs::path& root) {
  GroupLimits limits;
  const fs::path mount = root / "sys/fs/cgroup";
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // "0::/user.slice" or "4:memory:/docker/1234"
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
    if (controllers.empty()) read_unified(mount, path, limits);
    if (names(controllers, "memory"))
      each_group(mount / "memory", path, [&](const fs::path& group) {
        read_memory(group, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_", limits);
      });
    if (names(controllers, "cpu"))
      each_group(mount / "cpu", path, [&](const fs::path& group) {
        read_processors(number_in(group / "cpu.cfs_quota_us"), number_in(group / "cpu.cfs_period_us"), limits);
      });
  }
  return limits;
}

}  // namespace mhla
