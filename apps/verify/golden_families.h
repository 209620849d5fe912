// The families of golden cases, one line each. A family follows from the keys of a case's metadata, or is what the
// metadata calls `family`; never from names of cases. Whole modules are recomputed by the engine, by the function of
// the same name in apps/engine/golden/.
#pragma once

#include <array>
#include <string_view>

namespace mhla::apps {

struct GoldenFamily {
  std::string_view name;
  std::array<std::string_view, 2> keys;  // all of them are there; an empty one does not count
  double limit = 1e-4;                   // max |got - want| / max |want|
  bool named = false;                    // by the metadata: several outputs, integers, gradients of a loss
  double levels = 0.0;                   // that integers may be off by
};

// Pillow rounds twice; other resampling code may differ by one level.
inline constexpr std::string_view kOffByOne = "center_crop";

inline constexpr std::string_view kCausalOperator = "causal operator";  // runs without the engine

// The first whose keys are all there.
inline constexpr GoldenFamily kGoldenFamilies[] = {
    {kCausalOperator, {"chunk"}},
    {"LM layer", {"hidden_size"}, 3e-4},  // recorded on a GPU
    {"video module", {"block_layout"}},
    {"DiT module", {"block_size"}},
    {"DeiT model", {"window_size", "patch_size"}},
    {"image classification module", {"window_size"}},
    {"linear attention module", {"dim", "heads"}},
};

}  // namespace mhla::apps
