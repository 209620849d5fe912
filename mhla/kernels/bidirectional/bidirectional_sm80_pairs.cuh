// Short sequences: sums over all pairs of tokens, without summaries. Tokens lie in tiles of 16, none with
// tokens of two blocks, so mix is one number per pair of tiles. A block of threads takes a head: a warp holds tiles of
// one side of the pairs as fragments, the other side lies in shared memory.
#pragma once

#include <type_traits>

#include "mhla/kernels/bidirectional/bidirectional_sm80_plan.h"
#include "mhla/kernels/common/cuda/sm80_pairs.cuh"
#include "mhla/kernels/common/cuda/sm80_phases.cuh"

namespace mhla::sm80 {

inline constexpr int kPairThreads = 256, kPairWarps = kPairThreads / 32;
inline constexpr int kPairStageTiles = 4, kPairStages = kMaxPairTiles / kPairStageTiles;  // a stage arrives at once

struct PairShape {
  int tiles;                    // of a sequence
  FastDivisor tiles_per_block;  // tiles may be without tokens
  FastDivisor heads;            // of a sequence: blocks of threads
};

inline PairShape pair_shape(const Problem& p, std::int64_t heads) {
  const std::int64_t per = pair_tiles_per_block(p.C);
  return {.tiles = static_cast<int>(p.M * per), .tiles_per_block = FastDivisor(per), .heads = FastDivisor(heads)};
}

// Shared memory: two tensors of tiles * 16 rows, then this.
struct PairTable {
  int tokens[kMaxPairTiles * 16];               // -1: none
  int counts[kMaxPairTiles];                    // tokens of a tile, 0 behind the last
  float mix[kMaxPairTiles][kMaxPairTiles + 1];  // tiles of queries, tiles of keys
  float2 weights[kMaxPairTiles * 16];           // backward: w and c of the queries
};
static_assert(sizeof(PairTable) == kPairTableBytes);

// One head of one sequence, and the table.
struct PairHead {
  const Arguments& p;
  const PairShape& shape;
  PairTable& table;
  int batch = 0, head = 0;

  __device__ PairHead(const Arguments& arguments, const PairShape& pairs, char* shared)
      : p(arguments), shape(pairs), table(*reinterpret_cast<PairTable*>(shared)) {}
  __device__ void enter(int row) {
    batch = static_cast<int>(shape.heads.divide(row));
    head = row - batch * static_cast<int>(shape.heads.divisor);
  }

  // Where the tokens are; ends with a barrier.
  __device__ void fill_tokens() {
    const int per = static_cast<int>(shape.tiles_per_block.divisor);
    for (int at = threadIdx.x; at < kMaxPairTiles * 16; at += blockDim.x) {
      const int tile = at / 16;
      int token = -1, count = 0;
      if (tile < shape.tiles) {
        const int block = static_cast<int>(shape.tiles_per_block.divide(tile)),
                  place = (tile - block * per) * 16 + at % 16;
        const BlockTokens tokens = p.block(block);
        const int size = static_cast<int>(tokens.size);
        if (place < size) token = static_cast<int>(tokens.token(place));
        count = max(0, min(16, size - place));
      }
      table.tokens[at] = token;
      if (at % 16 == 0) table.counts[tile] = count;
    }
    __syncthreads();
  }
  __device__ void fill_mix(int mix_head) {  // a barrier must follow
    for (int at = threadIdx.x; at < kMaxPairTiles * kMaxPairTiles; at += blockDim.x) {
      const int i = at / kMaxPairTiles, b = at % kMaxPairTiles;
      const bool used = i < shape.tiles && b < shape.tiles;
      table.mix[i][b] =
          !used ? 0.0f
                : p.mix[(p.mix_head ? mix_head : 0) * p.mix_head + shape.tiles_per_block.divide(i) * p.mix_row +
                        shape.tiles_per_block.divide(b) * p.mix_column];
    }
  }
};

template <class S>
struct PairWork : PairHead {
  char *first, *second;  // rows of D and of E values

  __device__ PairWork(const Arguments& arguments, const PairShape& pairs, char* shared)
      : PairHead(arguments, pairs, shared + 2 * pairs.tiles * 16 * S::kPitch),
        first(shared),
        second(shared + pairs.tiles * 16 * S::kPitch) {
    enter(static_cast<int>(blockIdx.x));
  }

  // All rows of two tensors on their way to shared memory, zeros where there is no token: kPairStages groups of copies.
  __device__ void fetch(const Bf16* x, std::int64_t x_stride, const Bf16* y, std::int64_t y_stride) {
    const int D = S::D(p), E = S::E(p), c0 = threadIdx.x % 8;
    for (int stage = 0; stage < kPairStages; ++stage) {
#pragma unroll
      for (int i = 0; i < kPairStageTiles * 16; i += kPairThreads / 8) {
        const int row = stage * kPairStageTiles * 16 + i + threadIdx.x / 8;
        if (row >= shape.tiles * 16) break;
        const int token = table.tokens[row];
        const Bf16 *x_row = x + max(token, 0) * x_stride, *y_row = y + max(token, 0) * y_stride;
        const std::uint32_t x_to = shared_address(first + row * S::kPitch),
                            y_to = shared_address(second + row * S::kPitch);
#pragma unroll
        for (int c = c0; c < D / 8; c += 8) copy16(x_to + c * 16, x_row + c * 8, token >= 0);
#pragma unroll
        for (int c = c0; c < E / 8; c += 8) copy16(y_to + c * 16, y_row + c * 8, token >= 0);
      }
      copy_commit();
    }
  }
  // Stage `stage` is there, its first tensor through the feature map: every thread maps what it copied itself.
  __device__ void arrive(int stage) {
    switch (stage) {
      case 0: copy_wait<3>(); break;
      case 1: copy_wait<2>(); break;
      case 2: copy_wait<1>(); break;
      default: copy_wait<0>(); break;
    }
    if (S::map(p) != FeatureMap::kIdentity) {
#pragma unroll
      for (int i = 0; i < kPairStageTiles * 16; i += kPairThreads / 8) {
        const int row = stage * kPairStageTiles * 16 + i + threadIdx.x / 8;
        if (row >= shape.tiles * 16) break;
#pragma unroll
        for (int c = threadIdx.x % 8; c < S::D(p) / 8; c += 8) {
          auto* at = reinterpret_cast<uint4*>(first + row * S::kPitch + c * 16);
          uint4 x = *at;
          x.x = feature_pair(S::map(p), x.x), x.y = feature_pair(S::map(p), x.y);
          x.z = feature_pair(S::map(p), x.z), x.w = feature_pair(S::map(p), x.w);
          *at = x;
        }
      }
    }
    __syncthreads();
  }

  // f(i, tile, whole) for the tiles of a stage that have tokens, i from 0; `whole` is a constant, true where all have
  // 16: no branches then, so that the products of one tile hide the latency of another's.
  template <class F>
  __device__ void each_tile(int stage, const F& f) const {
    const int at = stage * kPairStageTiles;
    const int* counts = table.counts + at;
    const bool whole = at + 4 <= shape.tiles && counts[0] + counts[1] + counts[2] + counts[3] == 64;
    if (whole) {
#pragma unroll
      for (int i = 0; i < kPairStageTiles; ++i) f(i, at + i, std::true_type{});
    } else {
#pragma unroll
      for (int i = 0; i < kPairStageTiles; ++i) {
        if (at + i < shape.tiles && counts[i] > 0) f(i, at + i, std::false_type{});
      }
    }
  }
};

// The rows of a tile of tokens that this lane holds.
struct TileRows {
  int token[2];
  bool valid[2];
  __device__ TileRows(const PairTable& table, int tile, int tiles) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = tile < tiles ? table.tokens[tile * 16 + threadIdx.x % 32 / 4 + half * 8] : -1;
      valid[half] = at >= 0, token[half] = max(at, 0);
    }
  }
  template <class T>
  __device__ T* row(T* base, std::int64_t stride, int half) const {
    return base + token[half] * stride;
  }
  template <int kSteps>
  __device__ void load(std::uint32_t (&a)[kSteps][4], const Bf16* base, std::int64_t stride, int X) const {
    const Bf16* rows[2] = {row(base, stride, 0), row(base, stride, 1)};
    load_rows<kSteps>(a, rows, valid, X);
    put_in_order<kSteps>(a, X);
  }
  // acc * factors to these rows of X values; kGradient: through the slope at x.
  template <bool kGradient, int kTiles>
  __device__ void write(const float (&acc)[kTiles][4], const float (&factors)[2], Bf16* base, std::int64_t stride,
                        int X, FeatureMap map = FeatureMap::kIdentity, const Bf16* x = nullptr,
                        std::int64_t x_stride = 0) const {
    write_row<0, kGradient>(acc, factors[0], valid[0], row(base, stride, 0), X, map, row(x, x_stride, 0));
    write_row<1, kGradient>(acc, factors[1], valid[1], row(base, stride, 1), X, map, row(x, x_stride, 1));
  }
};

}  // namespace mhla::sm80
