// What the attentions of the zoo share.
#pragma once

#include <vector>

#include "mhla/core/error.h"
#include "mhla/modules/torch.h"

namespace mhla {

// Sizes that published models fix: rank of GLA's gate, states of Mamba's scans, taps of short convolutions.
inline constexpr std::int64_t kGateRank = 16, kMambaStates = 16, kMamba2States = 128, kMamba2Head = 64, kTaps = 4;

inline torch::nn::Linear plain_linear(std::int64_t in, std::int64_t out, bool bias) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(bias));
}

inline void expect_divisible(const char* name, std::int64_t value, std::int64_t by) {
  if (by < 1 || value < 1 || value % by != 0) fail(name, ": ", value, " channels are not divisible by ", by);
}

inline torch::Tensor by_heads(const torch::Tensor& x, std::int64_t heads) { return x.unflatten(-1, {heads, -1}); }

inline void refuse_packed(const char* name, const torch::Tensor& cu_seqlens) {
  if (cu_seqlens.defined())
    fail(name, ": cu_seqlens is given, but it does not know packed sequences; expected a batch");
}

// Packed sequences as the zoo sees them; without cu_seqlens everything is undefined or empty.
struct Packed {
  Packed() = default;
  Packed(const char* name, const torch::Tensor& x /* [B, N, C] */, const torch::Tensor& cu_seqlens);
  std::vector<std::int64_t> bounds;  // [S + 1]: 0, ..., N
  torch::Tensor positions;           // [N]: places of the tokens in their sequences
  torch::Tensor first;               // [N]: whether a sequence starts there
};

}  // namespace mhla
