// Rotary positions behind a feature map, of q and k at once (README.md):
//   (a, b) = phi of a pair of channels      out = (a cos - b sin, a sin + b cos)
// Pair j of D channels is (j, j + D/2) with halves, (2j, 2j + 1) without. Products are f32 (f64 for f64), the result is
// rounded once to the dtype of q. A row's bits depend on nothing but its own values and its line of the table.
#pragma once

#include <string_view>
#include <vector>

#include "mhla/core/view.h"
#include "mhla/kernels/common/options.h"

namespace mhla {

struct RopeParams {
  ConstView q;         // [B, N, H, D]    last stride 1, the others free; D even
  ConstView maybe_k;   // [B, N, Hkv, D]  any number of heads
  ConstView cos, sin;  // [N, D / 2] or [B, N, D / 2], f32 (f64 for f64); last stride 1
  bool halves = true;
  FeatureMap feature_map = FeatureMap::kIdentity;
};

struct RopeGrads {
  ConstView dq_out, maybe_dk_out;  // like q and k
  View dq, maybe_dk;
};

// Candidates: "cuda", "simd", and "ref" by name and for f64 in host memory. On a GPU one launch for both tensors.
void rope(const RopeParams& params, const View& q_out, const View& maybe_k_out, const RunOptions& run = {});
// dq = phi'(q) (the rotation back) dq_out. With the identity map q and k are not read and need not be given.
void rope_backward(const RopeParams& params, const RopeGrads& grads, const RunOptions& run = {});

void check_rope(const RopeParams& params);  // throws what rope() would say about its inputs
std::vector<std::string_view> rope_candidates();

}  // namespace mhla
