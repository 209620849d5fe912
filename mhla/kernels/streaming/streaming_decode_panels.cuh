// What the kernels of decode in bf16 share: how shared memory is divided, and rows of query heads as operands.
#pragma once

#include "mhla/kernels/common/cuda/tensor_core.cuh"
#include "mhla/kernels/streaming/streaming_cuda.h"

namespace mhla::cuda {

inline constexpr int kWarps = kThreads / 32;
inline constexpr int kRows = 16;    // query heads of a product
inline constexpr int kTokens = 32;  // scores at a time, 16 for a warp
inline constexpr int kStep = 16;    // depths of an instruction
inline constexpr int kScorePitch = kTokens + 8;
inline constexpr int kPieceSize = 8;  // elements moved at once, 16 bytes
static_assert(kTokens <= kWarps * kStep && kTokens % kStep == 0);

__host__ __device__ constexpr int up(int value, int multiple) { return ceil_div(value, multiple) * multiple; }

// Shared memory of a block, in elements of bf16 from its start. Rows of k, v and q are padded by a piece, so that eight
// of them lie in different banks; panels are swizzled.
struct DecodePlaces {
  int depth;                    // D, up to whole steps
  int tokens;                   // rows of k and v
  int key_pitch, value_pitch;   // also of q
  int prefix, k, v, q, scores;  // panels of [depth][64]
  int running, den;             // f32
  int end;

  __host__ __device__ DecodePlaces(const StreamShape& s, int panels, int rows) {
    depth = up(s.D, kStep), tokens = up(s.C < kTokens ? s.C : kTokens, kStep);
    key_pitch = depth + kPieceSize, value_pitch = panels * kPanelColumns + kPieceSize;
    prefix = 0;
    k = prefix + panels * depth * kPanelColumns;
    v = k + tokens * key_pitch;
    q = v + tokens * value_pitch;
    scores = q + rows * key_pitch;
    running = scores + up(rows * kScorePitch, kPieceSize);
    den = running + (s.normalized ? 2 * s.D : 0);
    end = den + (s.normalized ? 2 * rows : 0);
  }
};

__host__ __device__ inline int most_rows(const StreamShape& s) {
  return s.per_head ? 1 : (s.group < kRows ? s.group : kRows);
}
__host__ __device__ inline int row_tiles(const StreamShape& s) { return ceil_div(s.group, most_rows(s)); }

// The first operand: `rows` rows of a step of 16, as the instruction wants them.
__device__ inline void load_rows(std::uint32_t (&x)[4], const bf16* a, int pitch, int rows) {
  const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  const auto pair = [&](int row, int k) {
    return row < rows ? *reinterpret_cast<const std::uint32_t*>(a + row * pitch + k) : 0u;
  };
  x[0] = pair(g, 2 * q), x[1] = pair(g + 8, 2 * q), x[2] = pair(g, 2 * q + 8), x[3] = pair(g + 8, 2 * q + 8);
}

// Two panels a block where that still fills a card and fits its shared memory; bits do not depend on it.
inline bool decode_wide(const DecodeJob& job) {
  constexpr std::int64_t kFull = 256;   // blocks
  constexpr int kMostBytes = 96 << 10;  // fits every card from sm_80 on
  const StreamShape& s = job.shape;
  const std::int64_t heads = static_cast<std::int64_t>(job.count) * s.Hkv * row_tiles(s);
  return s.E > kPanelColumns && heads * ceil_div(s.E, 2 * kPanelColumns) >= kFull &&
         DecodePlaces(s, 2, most_rows(s)).end * static_cast<int>(sizeof(bf16)) <= kMostBytes;
}

}  // namespace mhla::cuda
