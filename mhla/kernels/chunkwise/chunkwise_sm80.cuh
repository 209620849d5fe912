// Tiles of 64 tokens of a chunk, as the causal kernels move them: four warps, 16 tokens each.
#pragma once

#include "mhla/kernels/common/cuda/sm80_pairs.cuh"
#include "mhla/kernels/common/cuda/sm80_phases.cuh"

namespace mhla::sm80 {

inline constexpr int kChunkThreads = 128;
template <class S>
constexpr int kChunkTileBytes = kPhaseTokens* S::kPitch;

// The tiles of a chunk as a type: f(Spec<...>{}). Only for heads of 64 and 128 does the compiler know the map, and the
// identity only where kIdentity is set: every variant takes seconds to compile.
template <bool kIdentity, class F>
void with_chunk_spec(const Arguments& a, const F& f) {
  with_tiles(a, [&](auto rows, auto columns, bool filled) {
    constexpr int kRows = rows, kColumns = columns;
    if constexpr (kRows == 4 || kRows == 8) {
      if (filled && a.map == FeatureMap::kReluEps) return f(Spec<kRows, kColumns, Known::kReluEps>{});
      if constexpr (kIdentity) {
        if (filled && a.map == FeatureMap::kIdentity) return f(Spec<kRows, kColumns, Known::kIdentity>{});
      }
    }
    f(Spec<kRows, kColumns, Known::kNothing>{});
  });
}

// f(row, column / 8) for the 16-byte pieces of a tile that this thread copies.
template <class F>
__device__ inline void each_piece(int columns, const F& f) {
  for (int row = threadIdx.x / 8; row < kPhaseTokens; row += kChunkThreads / 8) {
    for (int c = threadIdx.x % 8; c < columns / 8; c += 8) f(row, c);
  }
}

// Rows of one head to shared memory, zeros behind the end of the chunk. x: the chunk's first token.
template <class S>
__device__ inline void copy_tile(const Bf16* x, std::int64_t stride, int first, int size, int columns, char* to) {
  each_piece(columns, [&](int row, int c) {
    const bool valid = first + row < size;
    copy16(shared_address(to + row * S::kPitch + c * 16), x + (valid ? (first + row) * stride : 0) + c * 8, valid);
  });
}

// phi of what this thread copied itself, in place.
template <class S>
__device__ inline void map_tile(const Arguments& p, char* tile) {
  if (S::map(p) == FeatureMap::kIdentity) return;
  each_piece(S::D(p), [&](int row, int c) {
    auto* at = reinterpret_cast<uint4*>(tile + row * S::kPitch + c * 16);
    uint4 x = *at;
    x.x = feature_pair(S::map(p), x.x), x.y = feature_pair(S::map(p), x.y);
    x.z = feature_pair(S::map(p), x.z), x.w = feature_pair(S::map(p), x.w);
    *at = x;
  });
}

// 16 rows of X values in shared memory as fragments.
template <class S>
__device__ inline void load_tile(std::uint32_t (&a)[S::kRows][4], const char* rows, int X) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 0; step < S::kRows; ++step) {
    if (step * 16 >= X) break;
    load_matrices(a[step], shared_address(rows) + lane % 16 * S::kPitch + step * 32 + lane / 16 * second_half(step, X));
    if (step * 16 + 8 >= X) a[step][2] = a[step][3] = 0;
  }
}

// A tile of 64 tokens of one chunk of one head: what a block of threads works on.
struct ChunkTile {
  int tile, index, row;  // of the chunk, chunk, row: kv head and query head of its group where those are rows
  __device__ ChunkTile(const Arguments& p, int tiles)
      : tile(blockIdx.x % tiles), index(blockIdx.x / tiles % p.M), row(blockIdx.x / tiles / p.M) {}
};

}  // namespace mhla::sm80
