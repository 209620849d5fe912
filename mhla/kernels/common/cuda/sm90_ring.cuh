// Kernels on Hopper whose first warpgroup copies while the others multiply. Tiles of 64 tokens lie in shared memory as
// panels (warpgroup.cuh), in a ring of stages: a stage is `full` when all copies of it have arrived, and `empty` when
// every warp that reads it has said so. Roles walk the same items in the same order, so both sides count stages alike.
#pragma once

#include "mhla/kernels/common/cuda/intrinsics.cuh"
#include "mhla/kernels/common/cuda/sm80_phases.cuh"
#include "mhla/kernels/common/cuda/sm90_barriers.cuh"
#include "mhla/kernels/common/cuda/warpgroup.cuh"

namespace mhla::sm90 {

using namespace mhla::sm80;  // NOLINT(google-build-using-namespace): what these kernels add to

inline constexpr int kGroupThreads = 128, kPanelBytes = 64 * kPanelRowBytes;

// Where a role stands in a ring of kStages.
template <int kStages>
struct RingPlace {
  int stage = 0, parity = 0;
  __device__ void next() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

// Barriers of a ring: kStages full ones, then as many empty ones.
template <int kStages>
struct Ring {
  static constexpr int kBytes = 16 * kStages;
  std::uint32_t barriers;

  __device__ void init(int reading_warps) const {  // by one thread, before __syncthreads()
    for (int i = 0; i < kStages; ++i) {
      barrier_init(barriers + i * 8, kGroupThreads);
      barrier_init(barriers + (kStages + i) * 8, reading_warps * 32);
    }
  }
  // The side that copies: all threads of its warpgroup.
  __device__ void wait_empty(const RingPlace<kStages>& at) const {
    barrier_wait(barriers + (kStages + at.stage) * 8, at.parity ^ 1);
  }
  __device__ void copied(const RingPlace<kStages>& at) const { barrier_arrive_copied(barriers + at.stage * 8); }
  __device__ void written(const RingPlace<kStages>& at) const {
    barrier_arrive(barriers + at.stage * 8);
  }  // all is there
  // The side that reads.
  __device__ void wait_full(const RingPlace<kStages>& at) const { barrier_wait(barriers + at.stage * 8, at.parity); }
  __device__ void release(const RingPlace<kStages>& at) const {  // every lane for itself, or racecheck sees no order
    barrier_arrive(barriers + (kStages + at.stage) * 8);
  }
};

// What a thread of the copying warpgroup moves of a tile of 64 tokens: one piece of every 16th row.
struct TileMover {
  static constexpr int kCount = 4;
  std::int64_t token[kCount];
  bool valid[kCount];
  int c, offset;

  __device__ TileMover()
      : c(threadIdx.x % 8), offset(panel_offset(static_cast<int>(threadIdx.x) % kGroupThreads / 8, c)) {}
  // The tile from place `first` of a block on.
  __device__ void find(const BlockTokens& block, int first) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int place = first + static_cast<int>(threadIdx.x) % kGroupThreads / 8 + i * 16;
      valid[i] = place < static_cast<int>(block.size);
      token[i] = valid[i] ? block.token(place) : 0;
    }
  }
  // X values of every row to panels of 64, zeros past X and behind the end of the block.
  template <int kPanels>
  __device__ void copy(const Bf16* x, std::int64_t stride, int X, std::uint32_t to) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const Bf16* row = x + token[i] * stride;
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        const int column = panel * 64 + c * 8;
        const bool there = valid[i] && column < X;
        copy16(to + panel * kPanelBytes + offset + i * 16 * kPanelRowBytes, there ? row + column : x, there);
      }
    }
  }
};

// f(Spec<...>{}) for the tiles that fill panels: where on_panels() holds.
template <bool kCausal, class F>
void with_panel_spec(const Arguments& a, const F& f) {
  with_spec<kCausal>(a, [&](auto spec) {
    using S = decltype(spec);
    if constexpr (S::kRows == 4 || S::kRows == 8) f(spec);
  });
}

// A summary [D, E] from memory to shared memory, by the copying warpgroup: panels of 64 columns with 64 kPanels rows
// each, zeros past D and E.
template <int kPanels>
__device__ inline void copy_summary_panels(const Bf16* from, int D, int E, std::uint32_t to) {
  constexpr int kRows = 64 * kPanels;
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads, c = thread % 8;
#pragma unroll
  for (int panel = 0; panel < kPanels; ++panel) {
    const int column = panel * 64 + c * 8;
#pragma unroll 4
    for (int row = thread / 8; row < kRows; row += kGroupThreads / 8) {
      const bool there = row < D && column < E;
      copy16(to + panel * kRows * kPanelRowBytes + panel_offset(row, c), there ? from + row * E + column : from, there);
    }
  }
}
// The D values of z behind it: kRows equal rows of kPanels panels, of which the first is in order.
template <int kPanels, int kRows>
__device__ inline void copy_z_rows(const Bf16* from, int D, int E, std::uint32_t to) {
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads, row = thread / 8, c = thread % 8;
  if (row >= kRows) return;
#pragma unroll
  for (int panel = 0; panel < kPanels; ++panel) {
    const int column = panel * 64 + c * 8;
    copy16(to + panel * kRows * kPanelRowBytes + panel_offset(row, c), column < D ? from + D * E + column : from,
           column < D);
  }
}
// Both, z in eight rows, as the right side of a product.
template <int kPanels>
constexpr int kSummaryPanelBytes = kPanels* kPanels* kPanelBytes + kPanels * 8 * kPanelRowBytes;
template <int kPanels>
__device__ inline void copy_summary_and_z(const Bf16* from, int D, int E, std::uint32_t to) {
  copy_summary_panels<kPanels>(from, D, E, to);
  copy_z_rows<kPanels, 8>(from, D, E, to + kPanels * kPanels * kPanelBytes);
}

// 16 rows of a tile in panels as fragments: the rows of this warp of its warpgroup.
template <int kPanels>
__device__ inline void load_panel_rows(std::uint32_t (&a)[4 * kPanels][4], std::uint32_t tile) {
  const int lane = threadIdx.x % 32, row = static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane % 16;
#pragma unroll
  for (int step = 0; step < 4 * kPanels; ++step) {
    load_matrices(a[step], tile + step / 4 * kPanelBytes + panel_offset(row, step % 4 * 2 + lane / 16));
  }
}

// The same of its transpose: 16 columns of a panel, those of this warp, over the 64 rows.
__device__ inline void load_panel_columns(std::uint32_t (&a)[4][4], std::uint32_t panel) {
  const int lane = threadIdx.x % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4;
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    load_matrices_transposed(a[step],
                             panel + panel_offset(step * 16 + lane % 8 + lane / 16 * 8, warp * 2 + lane / 8 % 2));
  }
}

// Zero where a fragment of load_panel_columns() belongs to a row from `rows` on.
__device__ inline void cut_rows(std::uint32_t (&a)[4][4], int rows) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = step * 16 + i / 2 * 8 + static_cast<int>(threadIdx.x) % 4 * 2;
      if (row >= rows)
        a[step][i] = 0;
      else if (row + 1 >= rows)
        a[step][i] &= 0xffffu;
    }
  }
}

// One row of sums, X values of a panel's 64: factor * acc[j][2 * kHalf] and the next, to memory, 16 bytes at a time;
// with kGradient through the slope of the map at row `row` of a panel. All lanes call.
template <int kHalf, bool kGradient = false>
__device__ inline void write_panel_row(const Accumulator& acc, float factor, bool valid, Bf16* to, int X,
                                       FeatureMap map = FeatureMap::kIdentity, const char* panel = nullptr,
                                       int row = 0) {
  const auto pair = [&](const float(&c)[4]) { return pack_bf16(c[2 * kHalf] * factor, c[2 * kHalf + 1] * factor); };
#pragma unroll
  for (int j = 0; j < 8; j += 4) {
    std::uint32_t y[4] = {pair(acc[j]), pair(acc[j + 1]), pair(acc[j + 2]), pair(acc[j + 3])};
    transpose_quad(y);
    const int c = j + static_cast<int>(threadIdx.x) % 4;
    if (!valid || c * 8 >= X) continue;
    if constexpr (kGradient) {
      const uint4 at = *reinterpret_cast<const uint4*>(panel + panel_offset(row, c));
      y[0] = through_slope(map, at.x, y[0]), y[1] = through_slope(map, at.y, y[1]);
      y[2] = through_slope(map, at.z, y[2]), y[3] = through_slope(map, at.w, y[3]);
    }
    *reinterpret_cast<uint4*>(to + c * 8) = {y[0], y[1], y[2], y[3]};
  }
}

// f(16 bytes) for all of kBytes in shared memory, by the threads of a warpgroup.
template <int kBytes, class F>
__device__ inline void each_panel_word(char* panels, const F& f) {
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x) % kGroupThreads; i < kBytes / 16; i += kGroupThreads) {
    f(reinterpret_cast<uint4*>(panels)[i]);
  }
}

// Whether eight values are neither infinite nor NaN; the same values with 0 instead of these.
__device__ inline bool finite_words(const uint4& x) {
  bool finite = true;
  for (const std::uint32_t pair : {x.x, x.y, x.z, x.w}) {
    finite = finite && (pair & 0x7f80u) != 0x7f80u && (pair & 0x7f800000u) != 0x7f800000u;
  }
  return finite;
}
template <int kBytes>
__device__ inline void make_finite(char* panels) {
  each_panel_word<kBytes>(panels, [](uint4& x) {
    x = {finite_pair(x.x), finite_pair(x.y), finite_pair(x.z), finite_pair(x.w)};
  });
}

// Begins products onto these sums.
template <int kCount, class... RowSums>
__device__ inline void begin_products(Accumulator (&acc)[kCount], RowSums&... row_sums) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) settle_sums(acc[i]);
  (settle_sums(row_sums), ...);
  warpgroup_begin();
}
// Ends the products that were begun: what follows may read their sums and overwrite what they read.
template <int kCount, class... RowSums>
__device__ inline void finish_products(Accumulator (&acc)[kCount], RowSums&... row_sums) {
  warpgroup_commit();
  warpgroup_wait<0>();
#pragma unroll
  for (int i = 0; i < kCount; ++i) settle_sums(acc[i]);
  (settle_sums(row_sums), ...);
}

}  // namespace mhla::sm90
