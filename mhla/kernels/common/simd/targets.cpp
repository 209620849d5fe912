#include "mhla/kernels/common/simd/targets.h"

#include "hwy/highway.h"
#include "mhla/core/error.h"

namespace mhla {
namespace {

// Bits of Highway's target mask, best first: its lowest bit is its best instruction set.
std::vector<std::int64_t> available() {
  std::vector<std::int64_t> targets;
  const std::int64_t all = static_cast<std::int64_t>(HWY_TARGETS) & hwy::SupportedTargets();
  for (std::int64_t rest = all; rest != 0; rest &= rest - 1) targets.push_back(rest & -rest);
  return targets;
}

}  // namespace

std::vector<std::string> simd_targets() {
  std::vector<std::string> names;
  for (const std::int64_t target : available()) names.emplace_back(hwy::TargetName(target));
  return names;
}

std::string simd_target() { return simd_targets().front(); }

void use_simd_target(std::string_view name) {
  hwy::SetSupportedTargetsForTest(0);  // back to what the CPU has
  if (!name.empty()) {
    std::int64_t found = 0;
    std::string names;
    for (const std::int64_t target : available()) {
      if (name == hwy::TargetName(target)) found = target;
      names += str(names.empty() ? "" : ", ", hwy::TargetName(target));
    }
    if (found == 0) fail("use_simd_target: no instruction set is called '", name, "' here, expected one of ", names);
    hwy::SetSupportedTargetsForTest(found);
  }
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace mhla
