// What the gradients of the causal form on warpgroups share: tiles in several parts, maps in shared memory, and terms
// that are not finite.
#pragma once

#include "mhla/kernels/chunkwise/chunkwise_backward_sm90_plan.h"
#include "mhla/kernels/common/cuda/sm80_mix_gradient.cuh"
#include "mhla/kernels/common/cuda/sm90_meeting.cuh"
#include "mhla/kernels/common/cuda/sm90_ring.cuh"

namespace mhla::sm90 {

// A barrier of all warpgroups that multiply; 0 is that of __syncthreads(), 1 to 3 are those of warpgroups.
inline constexpr int kReadersBarrier = 4;
template <int kReaders>
__device__ inline void readers_barrier() {
  all_hold(kReadersBarrier, kReaders * kGroupThreads, true);
}

// A chunk of a sequence.
struct Chunk {
  std::int64_t origin = 0;  // token of its first place
  int size = 0;
  Chunk() = default;
  __device__ Chunk(const Arguments& p, const Unit& u, int index) {
    const std::int64_t C = p.layout.step[2];
    longlong2 range = {0, p.N};  // start, length
    if (p.maybe_ranges != nullptr) range = __ldcg(reinterpret_cast<const longlong2*>(p.maybe_ranges + u.sequence));
    const std::int64_t rest = range.y - index * C;
    origin = range.x + index * C, size = static_cast<int>(rest < 0 ? 0 : rest < C ? rest : C);
  }
};

// What all roles of a block of threads walk over alike: items [begin, end) of this launch, `per_chunk` for every chunk
// of every row, a kv head or (kHeads) a query head of it.
template <bool kHeads>
struct ChunkWalk {
  int per_chunk, begin, end;
  __device__ ChunkWalk(const Arguments& p, int per_chunk_) : per_chunk(per_chunk_) {
    const std::int64_t items = std::int64_t{p.units / p.parts} * (kHeads ? p.group : 1) * p.M * per_chunk;
    begin = static_cast<int>(items * blockIdx.x / gridDim.x);
    end = static_cast<int>(items * (blockIdx.x + 1) / gridDim.x);
  }
  // f(unit, chunk, row, index of the chunk, item of the chunk, whether it is the first, the last item of all).
  template <class F>
  __device__ void each(const Arguments& p, const F& f) const {
    if (begin >= end) return;
    int chunk_at = begin / per_chunk, item = begin - chunk_at * per_chunk, row = chunk_at / p.M,
        index = chunk_at - row * p.M;
    const auto unit = [&] { return Unit(p, p.first_unit + (kHeads ? row / p.group : row) * p.parts); };
    Unit u = unit();
    Chunk chunk(p, u, index);
    for (int i = begin; i < end; ++i) {
      f(u, chunk, row, index, item, i == begin, i + 1 == end);
      if (i + 1 == end || ++item < per_chunk) continue;
      item = 0;
      if (++index == p.M) index = 0, ++row, u = unit();
      chunk = Chunk(p, u, index);
    }
  }
};

// What a thread of the copying warpgroup moves of a tile of 64 tokens, one run of memory: TileMover of fewer registers.
struct LineMover {
  int row, c, offset;
  std::int64_t token;  // of this thread's first row
  int rows;            // that exist, from its first one on

  __device__ LineMover()
      : row(static_cast<int>(threadIdx.x) % kGroupThreads / 8), c(threadIdx.x % 8), offset(panel_offset(row, c)) {}
  // The tile from place `first` of a chunk on.
  __device__ void find(const Chunk& chunk, int first) {
    token = chunk.origin + first + row, rows = chunk.size - first - row;
  }
  // X values of every row to panels of 64, zeros past X and behind the end of the chunk.
  template <int kPanels>
  __device__ void copy(const Bf16* x, std::int64_t stride, int X, std::uint32_t to) const {
    const Bf16* from = x + token * stride + c * 8;
    to += offset;
#pragma unroll
    for (int i = 0; i < 4; ++i, from += 16 * stride) {
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        const bool there = i * 16 < rows && panel * 64 + c * 8 < X;
        copy16(to + panel * kPanelBytes + i * 16 * kPanelRowBytes, there ? from + panel * 64 : x, there);
      }
    }
  }
  // phi of what this thread copied, in place; D of its columns are not empty. Copies must have arrived.
  template <int kPanels>
  __device__ void map(FeatureMap map, int D, std::uint32_t tile) const {
    tile += offset;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        const std::uint32_t at = tile + panel * kPanelBytes + i * 16 * kPanelRowBytes;
        if (panel * 64 + c * 8 >= D) continue;
        const uint4 x = shared_words(at);
        set_shared_words(at, feature_pair(map, x.x), feature_pair(map, x.y), feature_pair(map, x.z),
                         feature_pair(map, x.w));
      }
    }
  }
  // A tile of all parts, X columns each, one behind the other.
  template <int kPanels, int kParts>
  __device__ void copy_parts(const Bf16* x, std::int64_t stride, int X, std::uint32_t to) const {
#pragma unroll
    for (int part = 0; part < kParts; ++part) copy<kPanels>(x + part * X, stride, X, to + part * kPanels * kPanelBytes);
  }
};

// phi of fragments by load_panel_rows(); columns past D stay 0.
template <int kPanels>
__device__ inline void map_rows(std::uint32_t (&a)[4 * kPanels][4], FeatureMap map, int D) {
#pragma unroll
  for (int step = 0; step < 4 * kPanels; ++step) {
    feature_fragment(map, a[step]);
    if (step * 16 >= D) a[step][0] = a[step][1] = 0;
    if (step * 16 + 8 >= D) a[step][2] = a[step][3] = 0;
  }
}

// Whether none of this thread's sums is infinite or NaN: so are all of a row of products with one that is not.
__device__ inline bool finite_sums(const Accumulator& x) {
  float zero[4] = {};
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int c = 0; c < 4; ++c) zero[c] = fmaf(x[j][c], 0.0f, zero[c]);
  }
  return zero[0] + zero[1] + zero[2] + zero[3] == 0.0f;
}

// acc += a y for the values of a diagonal tile that are infinite or NaN, where a row of a sees them: a query the keys
// (rows of y) up to itself, kLater: a key the queries from itself on. `first`: the place of this warp's first row.
template <int kPanels, bool kLater>
__device__ inline void add_unusual(Accumulator (&acc)[kPanels], const std::uint32_t (&a)[4][4], const char* y,
                                   int first) {
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int pair = 0; pair < 4; ++pair) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // row lane / 4 + i % 2 * 8, rows of y i / 2 * 8 + 2 pair and the next
        const float2 weight = unpack_bf16(__shfl_sync(0xffffffffu, a[step][i], (lane & ~3) + pair));
#pragma unroll 1
        for (int next = 0; next < 2; ++next) {
          const int own = first + lane / 4 + i % 2 * 8, other = step * 16 + i / 2 * 8 + pair * 2 + next;
          if (kLater ? other < own : other > own) continue;
          const float x = next ? weight.y : weight.x;
#pragma unroll
          for (int panel = 0; panel < kPanels; ++panel) {
#pragma unroll
            for (int j = 0; j < 8; ++j) {
              const float2 value = unpack_bf16(*reinterpret_cast<const std::uint32_t*>(
                  y + panel * kPanelBytes + panel_offset(other, j) + lane % 4 * 4));
              float(&c)[4] = acc[panel][j];
              if (!isfinite(value.x)) c[i % 2 * 2] = fmaf(x, value.x, c[i % 2 * 2]);
              if (!isfinite(value.y)) c[i % 2 * 2 + 1] = fmaf(x, value.y, c[i % 2 * 2 + 1]);
            }
          }
        }
      }
    }
  }
}

// 64 columns of a summary [D, E] from `column` on, as one panel of 64 kPanels rows, zeros past D and E.
template <int kPanels>
__device__ inline void copy_summary_columns(const Bf16* from, int D, int E, int column, std::uint32_t to) {
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads, c = thread % 8;
#pragma unroll
  for (int row = thread / 8; row < 64 * kPanels; row += kGroupThreads / 8) {
    const bool there = row < D && column + c * 8 < E;
    copy16(to + panel_offset(row, c), there ? from + row * E + column + c * 8 : from, there);
  }
}

// write_panel_row() through the slope of the map at row `x` in memory.
template <int kHalf>
__device__ inline void write_slope_row(const Accumulator& acc, float factor, bool valid, Bf16* to, int X,
                                       FeatureMap map, const Bf16* x) {
  const auto pair = [&](const float(&c)[4]) { return pack_bf16(c[2 * kHalf] * factor, c[2 * kHalf + 1] * factor); };
#pragma unroll
  for (int j = 0; j < 8; j += 4) {
    std::uint32_t y[4] = {pair(acc[j]), pair(acc[j + 1]), pair(acc[j + 2]), pair(acc[j + 3])};
    transpose_quad(y);
    const int c = j + static_cast<int>(threadIdx.x) % 4;
    if (!valid || c * 8 >= X) continue;
    if (map != FeatureMap::kIdentity) {
      const uint4 at = *reinterpret_cast<const uint4*>(x + c * 8);
      y[0] = through_slope(map, at.x, y[0]), y[1] = through_slope(map, at.y, y[1]);
      y[2] = through_slope(map, at.z, y[2]), y[3] = through_slope(map, at.w, y[3]);
    }
    *reinterpret_cast<uint4*>(to + c * 8) = {y[0], y[1], y[2], y[3]};
  }
}

}  // namespace mhla::sm90
