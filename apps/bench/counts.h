// Flops and bytes of one call, by the formulas of docs/benchmarks.md, whatever algorithm runs. A multiplication
// and an addition are two flops. Per (batch, head), M blocks of the N tokens, C tokens in a chunk:
//
// clang-format off
//   bidirectional forward   2NDE summaries + 2M^2 DE mixing + 2NDE output
//   bidirectional backward  2NDE + 2M^2 DE recomputed S and S~, 2NDE dS~, 2M^2 DE dS, 2M^2 DE dmix, 2NDE each dq, dk, dv
//   causal forward          2NDE + M(M-1) DE + 2NDE, and inside a chunk of c tokens c(c+1)/2 pairs of 2D + 2E
//   causal backward         10NDE + 3M(M-1) DE, and per pair q.k, dout.v, dq, dk, dv: 6D + 4E
//   decode, one token       2DE prefix, and 2D + 2E per token of the open chunk
// clang-format on
//
// With grouped heads the summaries, dk and dv belong to the kv heads. Bytes are what must move once: every input
// read, every output written.
#pragma once

#include <algorithm>
#include <cstdint>

#include "mhla/kernels/common/schedule.h"

namespace mhla::apps {

enum class Pass : std::uint8_t { kForward, kBackward, kBoth };

struct OpSizes {
  bool causal = false;
  std::int64_t B = 1, N = 0, H = 1, Hkv = 1, D = 0, E = 0;
  std::int64_t M = 0;         // blocks of a sequence
  std::int64_t C = 0;         // causal: tokens of a chunk
  std::int64_t mix_rows = 0;  // rows of mix in memory
};

struct Counts {
  double flops = 0.0;
  double bytes = 0.0;
};

// Pairs (t, s <= t) inside the chunks of N tokens.
constexpr double pairs_in_chunks(std::int64_t N, std::int64_t C) {
  if (C <= 0) return 0.0;
  const auto full = static_cast<double>(N / C), chunk = static_cast<double>(C), rest = static_cast<double>(N % C);
  return full * chunk * (chunk + 1.0) / 2.0 + rest * (rest + 1.0) / 2.0;
}

constexpr Counts count_forward(const OpSizes& s, std::int64_t element_bytes) {
  const auto B = static_cast<double>(s.B), N = static_cast<double>(s.N), H = static_cast<double>(s.H);
  const auto Hkv = static_cast<double>(s.Hkv), D = static_cast<double>(s.D), E = static_cast<double>(s.E);
  const auto M = static_cast<double>(s.M), rows = static_cast<double>(s.mix_rows);
  Counts counts;
  const double products = 2.0 * N * D * E;
  const double mixing = s.causal ? M * (M - 1.0) * D * E : 2.0 * M * M * D * E;
  counts.flops = B * (Hkv * (products + mixing) + H * products);
  if (s.causal) counts.flops += B * H * pairs_in_chunks(s.N, s.C) * 2.0 * (D + E);
  counts.bytes = B * N * (H * (D + E) + Hkv * (D + E)) * static_cast<double>(element_bytes) + rows * rows * 4.0;
  return counts;
}

constexpr Counts count_backward(const OpSizes& s, std::int64_t element_bytes) {
  const auto B = static_cast<double>(s.B), N = static_cast<double>(s.N), H = static_cast<double>(s.H);
  const auto Hkv = static_cast<double>(s.Hkv), D = static_cast<double>(s.D), E = static_cast<double>(s.E);
  const auto M = static_cast<double>(s.M), rows = static_cast<double>(s.mix_rows);
  Counts counts;
  const double products = 2.0 * N * D * E;
  const double mixing = s.causal ? M * (M - 1.0) * D * E : 2.0 * M * M * D * E;
  // kv heads: S, dk, dv, and the three mixing products; query heads: dS~ and dq.
  counts.flops = B * (Hkv * (3.0 * products + 3.0 * mixing) + H * 2.0 * products);
  if (s.causal) counts.flops += B * H * pairs_in_chunks(s.N, s.C) * (6.0 * D + 4.0 * E);
  // q, k, v, dout read; dq, dk, dv written; mix read and dmix written.
  counts.bytes =
      B * N * (H * (2.0 * D + E) + Hkv * 2.0 * (D + E)) * static_cast<double>(element_bytes) + 2.0 * rows * rows * 4.0;
  return counts;
}

constexpr Counts count_pass(const OpSizes& s, Pass pass, std::int64_t element_bytes) {
  Counts total;
  for (const bool backward : {false, true}) {
    if (pass == (backward ? Pass::kForward : Pass::kBackward)) continue;
    const Counts part = backward ? count_backward(s, element_bytes) : count_forward(s, element_bytes);
    total.flops += part.flops;
    total.bytes += part.bytes;
  }
  return total;
}

// One token of one sequence with `open` tokens in its open chunk, this one among them: the mixed prefix (f32, or bf16
// where a device keeps it so), the raw k and v of the open chunk, q and out.
constexpr Counts count_decode(const OpSizes& s, std::int64_t open, std::int64_t element_bytes,
                              std::int64_t prefix_bytes = 4) {
  const auto H = static_cast<double>(s.H), Hkv = static_cast<double>(s.Hkv);
  const auto D = static_cast<double>(s.D), E = static_cast<double>(s.E), tokens = static_cast<double>(open);
  Counts counts;
  counts.flops = H * (2.0 * D * E + tokens * 2.0 * (D + E));
  counts.bytes = Hkv * D * E * static_cast<double>(prefix_bytes) +
                 (Hkv * tokens * (D + E) + H * (D + E)) * static_cast<double>(element_bytes);
  return counts;
}

// What the token that completes chunk number `chunks` of a sequence adds: its summary written and read, the summaries
// before it read, the next prefix written.
constexpr Counts count_boundary(const OpSizes& s, std::int64_t chunks, std::int64_t prefix_bytes = 4) {
  const auto Hkv = static_cast<double>(s.Hkv), D = static_cast<double>(s.D), E = static_cast<double>(s.E);
  const auto M = static_cast<double>(chunks);
  return {.flops = Hkv * 2.0 * D * E * (static_cast<double>(s.C) + M),
          .bytes = Hkv * D * E * (4.0 * (M + 1.0) + static_cast<double>(prefix_bytes))};
}

// The most scratch memory a call of the vector kernels may take, in bytes. Per thread: the summaries of the heads it
// works on, as many as fit a second-level cache and at least one (backward keeps S and S~), rows padded to whole
// vectors and an odd number of cache lines, in the causal form 64 mixed prefixes beside them, and a fixed part for
// tiles; or, where that is more, the summaries of the heads that all threads visit together. Once: mix packed for the
// vectors, and in backward its transpose and one partial dmix per sequence and head; on a grid the token table, 8 bytes
// a token.
constexpr double memory_bound(const OpSizes& s, Pass pass, int threads) {
  const auto padded = [](std::int64_t size) { return (size + 31) / 32 * 32; };
  const std::int64_t row = 4 * (padded(s.E) * s.D + padded(s.D) + 32);
  const std::int64_t head = (pass == Pass::kForward ? 1 : 2) * (s.M + (s.causal ? 64 : 0)) * row;
  const std::int64_t own = s.causal ? 1 : std::clamp<std::int64_t>(kOnChipBytes / head, 1, s.Hkv);
  const std::int64_t shared = s.causal ? 1 : heads_per_visit(s.Hkv, head);
  const double mix = 4.0 * static_cast<double>((s.M + 16) * (s.M + 16));
  const double mixes = pass == Pass::kForward ? 2.0 : 4.0 + static_cast<double>(s.B * s.H);
  constexpr double kFixed = 1 << 20;
  return static_cast<double>(std::max(threads * own, shared) * head) + threads * kFixed + mixes * mix +
         (s.causal ? 0.0 : 8.0 * static_cast<double>(s.N));
}

// Softmax attention over the same inputs: q k^T and p v, halved for causal. Its exponentials are not counted.
constexpr double softmax_flops(const OpSizes& s) {
  const auto B = static_cast<double>(s.B), N = static_cast<double>(s.N), H = static_cast<double>(s.H);
  const double dense = B * H * N * N * 2.0 * static_cast<double>(s.D + s.E);
  return s.causal ? dense / 2.0 : dense;
}

}  // namespace mhla::apps
