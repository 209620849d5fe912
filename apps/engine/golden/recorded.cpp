// Families that cases name in their metadata: each room that has recorded cases says which, and computes them.
#include "apps/engine/golden/golden.h"
#include "mhla/diffusion/diffusion_recorded.h"
#include "mhla/models/dit/dit_recorded.h"

namespace mhla::golden {
namespace {

template <Weights (*recompute)(const std::string& family, const RecordedCase& recorded)>
Tensors compute_named(const Case& c) {
  return recompute(std::string(c.config.at("family").as_string()), {c.config, c.tensors});
}

struct Room {
  Room(const std::vector<std::string>& families, Family::Compute compute) {
    for (const std::string& name : families) Family(name, compute);
  }
};
const Room kRooms[] = {{diffusion_families(), compute_named<recompute_diffusion>},
                       {dit_families(), compute_named<recompute_dit>}};

}  // namespace
}  // namespace mhla::golden
