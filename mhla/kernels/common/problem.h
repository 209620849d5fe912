// A checked call of one pass, as the candidates see it. The entry points of the forms fill the views
// and options, then check_problem() validates everything once and derives the sizes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mhla/core/view.h"
#include "mhla/core/workspace.h"
#include "mhla/kernels/common/layout.h"
#include "mhla/kernels/common/options.h"
#include "mhla/kernels/common/part.h"

namespace mhla {

// Tokens [start, start + length) of batch element `batch`: attention never crosses its edge.
struct Sequence {
  std::int64_t batch, start, length;
};

struct Problem {
  const char* entry = "";  // name of the entry point, opens every message
  bool causal = false;
  bool backward = false;
  bool extend = false;  // causal only: BeyondMix::kExtend

  ConstView q, k, v;  // [B, N, H, D], [B, N, Hkv, D], [B, N, Hkv, E]
  ConstView maybe_q_den, maybe_k_den;
  ConstView mix;  // [Hm, L, L] after checking
  ConstView maybe_cu_seqlens;
  Layout layout;                                      // causal: line(chunk)
  View out;                                           // forward: [B, N, H, E]
  ConstView dout;                                     // backward
  View dq, dk, dv, dmix, maybe_dq_den, maybe_dk_den;  // not given: not wanted. dmix [Hm, L, L] after checking

  FeatureMap feature_map = FeatureMap::kReluEps;
  Normalizer normalizer = Normalizer::kPaper;
  double eps = 1e-6;
  double scale = 1.0;
  void* stream = nullptr;  // cudaStream_t of a problem in device memory
  // Summaries that forward leaves for backward (RunOptions::kept): both take the same buffers from it in the same
  // order.
  Workspace* maybe_kept = nullptr;
  Part part;  // not given: the whole operator

  // Derived by check_problem.
  std::int64_t B = 0, N = 0, H = 0, Hkv = 0, D = 0, E = 0;
  std::int64_t Hm = 0;              // 1 or H
  std::int64_t L = 0;               // rows of mix
  std::int64_t M = 0;               // blocks of the longest sequence; with a part, of the whole one
  std::int64_t C = 0;               // tokens of the largest block
  std::vector<Sequence> sequences;  // B of them, or one per cu_seqlens interval

  [[nodiscard]] DType dtype() const { return q.dtype; }
  [[nodiscard]] int device() const { return q.device; }  // of all tensors but cu_seqlens: kCpu, or a CUDA ordinal
  [[nodiscard]] bool is_f64() const { return q.dtype == DType::kF64; }
  [[nodiscard]] std::int64_t group() const { return H / Hkv; }  // query heads per kv head
  [[nodiscard]] bool normalized() const { return normalizer != Normalizer::kNone; }
  [[nodiscard]] bool has_den() const { return maybe_q_den.given(); }
  // Heads of dP: query heads that share their coefficients also share it.
  [[nodiscard]] std::int64_t gradient_heads() const { return Hm > 1 ? H : Hkv; }
  [[nodiscard]] std::int64_t summary_size() const { return D * E + (normalized() ? D : 0); }  // X of common/part.h
  [[nodiscard]] std::string describe() const;  // "f32 B=2 N=64 H=4 Hkv=4 D=32 E=32 M=4 on cpu"
};

// Throws mhla::Error naming the argument, what came and what was expected. Touches no tensor data but cu_seqlens.
void check_problem(Problem& problem);

// What a CUDA candidate does in a build without CUDA, where its fit function steps aside.
[[noreturn]] void refuse_without_cuda(const Problem& problem, const char* candidate);

// Which entry of mix weighs block b for query block i: the entry itself, or the one `extend` reuses.
struct MixIndex {
  std::int64_t row, column;
};
constexpr MixIndex mix_index(std::int64_t i, std::int64_t b, std::int64_t L) {
  if (i < L) return {i, b};
  const std::int64_t distance = i - b;
  return {L - 1, distance < L ? L - 1 - distance : 0};
}

}  // namespace mhla
