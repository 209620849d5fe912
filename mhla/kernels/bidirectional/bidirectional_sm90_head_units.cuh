// What the two sides of bidirectional_sm90_heads.cuh share, and the side that helps: units of 64 rows of q, k or v of
// one head after the other, brought to shared memory as boxes, and k sent through the map.
#pragma once

#include "mhla/kernels/bidirectional/bidirectional_sm90_boxes.cuh"
#include "mhla/kernels/bidirectional/bidirectional_sm90_short.cuh"

namespace mhla::sm90 {

inline constexpr int kForwardThreads = 3 * 128;  // the warpgroup that helps, then those that multiply
inline constexpr int kForwardWarps = 8;          // that multiply
inline constexpr int kUnitSquares = kMaxPairTiles / 4, kHeadUnits = 3 * kUnitSquares;  // a unit: a panel of 8 KB
inline constexpr int kRowsOfQ = 0, kRowsOfK = kUnitSquares, kRowsOfV = 2 * kUnitSquares;

struct HeadBarriers {
  std::uint64_t full[2][kHeadUnits];      // 64 rows have arrived,
  std::uint64_t mapped[2][kUnitSquares];  // those of k through the map too,
  std::uint64_t empty[2][kHeadUnits];     // nobody reads them any more
};
// Shared memory: [2][kHeadUnits] panels; 16 rows for both squares of every warp that multiplies, on their way out;
// ones; barriers. Panels begin where it does: there is no room to align them.
struct HeadMemory {
  static constexpr int kOutRows = 16 * kPanelRowBytes, kOut = 2 * kHeadUnits * kPanelBytes,
                       kOnes = kOut + 2 * kForwardWarps * kOutRows, kBarriers = kOnes + 16 * kPanelRowBytes,
                       kBytes = kBarriers + static_cast<int>(sizeof(HeadBarriers));
  static_assert(kBytes <= kMaxSharedBytes);
  char* shared;
  __device__ HeadBarriers& barriers() const { return *reinterpret_cast<HeadBarriers*>(shared + kBarriers); }
};

// The n-th head of a block of threads: its units, and the parity of their barriers.
struct HeadSlot {
  char* shared;
  std::uint32_t barriers;
  int slot, parity;
  __device__ HeadSlot(const HeadMemory& memory, int n)
      : shared(memory.shared), barriers(shared_address(memory.barriers().full)), slot(n % 2), parity(n / 2 % 2) {}
  __device__ char* unit(int i) const { return shared + (slot * kHeadUnits + i) * kPanelBytes; }
  __device__ std::uint32_t full(int i) const { return barriers + (slot * kHeadUnits + i) * 8; }
  __device__ std::uint32_t mapped(int j) const { return barriers + (2 * kHeadUnits + slot * kUnitSquares + j) * 8; }
  __device__ std::uint32_t empty(int i) const {
    return barriers + (2 * kHeadUnits + 2 * kUnitSquares + slot * kHeadUnits + i) * 8;
  }
};

// Each by one thread, before all threads meet. The thread that asks for the first units makes the full ones.
__device__ inline void init_full_barriers(const HeadMemory& memory) {
  for (int i = 0; i < 2 * kHeadUnits; ++i) barrier_init(shared_address(memory.barriers().full) + i * 8, 1);
  barriers_ready();
}
__device__ inline void init_other_barriers(const HeadMemory& memory) {
  HeadBarriers& barriers = memory.barriers();
  for (int i = 0; i < 2 * kUnitSquares; ++i) barrier_init(shared_address(barriers.mapped) + i * 8, 64);
  for (int slot = 0; slot < 2; ++slot) {  // a square of queries is for one warpgroup, keys and values are for both
    for (int i = 0; i < kHeadUnits; ++i) {
      const int warps = i < kRowsOfK ? kForwardWarps / 2 : kForwardWarps;
      barrier_init(shared_address(&barriers.empty[slot][i]), warps * kWarpArrivals);
    }
  }
}

// One head of one sequence, and the head of its keys.
struct HeadPlace {
  int batch, head, kv;
  __device__ HeadPlace(const Arguments& p, const PairShape& shape, int row)
      : batch(static_cast<int>(shape.heads.divide(row))),
        head(row - batch * static_cast<int>(shape.heads.divisor)),
        kv(p.group == 1 ? head : head / p.group) {}
};

// q, k, v and out as boxes, a tile of tokens each, and where tile i lies, as BoxPlace reads it. Where there is none, a
// row past the last, which is read as zeros and not written.
struct HeadBoxes {
  GridBoxes q, k, v, out;
  std::uint32_t places[kMaxPairTiles];
};
// Where pairs_in_boxes() says so.
inline HeadBoxes head_boxes(const Problem& p) {
  const BlockBoxes b = block_boxes(p.layout, p.N);
  const auto boxes = [&](const auto& x) { return grid_boxes(x, b.width, kPanelRowBytes, b.across, b.down, true); };
  HeadBoxes all{boxes(p.q), boxes(p.k), boxes(p.v), boxes(p.out), {}};
  const std::int64_t per_block = p.C / kBoxTokens;
  for (std::int64_t i = 0; i < kMaxPairTiles; ++i) {
    const std::int64_t block = i / per_block, row = block / b.per_row, first = i % per_block * kBoxTokens;
    const std::int64_t x = block % b.per_row * b.columns + first % b.columns, y = row * b.rows + first / b.columns;
    all.places[i] = static_cast<std::uint32_t>(i < p.M * per_block ? x | y << 11 : 0x7ff << 11);
  }
  return all;
}

// A unit, asked for by one thread.
__device__ inline void bring_unit(const HeadBoxes& boxes, const HeadPlace& from, const HeadSlot& to, int unit) {
  const int head = unit < kRowsOfK ? from.head : from.kv;
  const GridBoxes& tensor = unit < kRowsOfK ? boxes.q : unit < kRowsOfV ? boxes.k : boxes.v;
  const std::uint32_t at = shared_address(to.unit(unit));
  barrier_expect(to.full(unit), kPanelBytes);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const BoxPlace place(boxes.places[unit % kUnitSquares * 4 + i]);
    copy_grid_box(at + i * 16 * kPanelRowBytes, tensor, to.full(unit), place.x, place.y, head, from.batch);
  }
}

// The order in which units are needed: the first square of queries of both warpgroups, their first keys, ...
__device__ inline int unit_of_order(int i) {
  constexpr std::uint64_t kOrder = 0xba7968531420;
  return static_cast<int>(kOrder >> 4 * i & 15);
}
inline constexpr int kFirstUnits = 3;  // that are asked for before all threads have met

// One thread brings all heads, as far ahead as units are empty.
__device__ inline void bring_heads(const Arguments& p, const HeadBoxes& boxes, const PairShape& shape,
                                   const HeadMemory& memory, int heads) {
  int n = 0;
  for (int row = blockIdx.x; row < heads; row += gridDim.x, ++n) {
    const HeadPlace from(p, shape, row);
    const HeadSlot to(memory, n);
#pragma unroll 1
    for (int i = n == 0 ? kFirstUnits : 0; i < kHeadUnits; ++i) {
      const int unit = unit_of_order(i);
      barrier_wait(to.empty(unit), to.parity ^ 1);
      bring_unit(boxes, from, to, unit);
    }
  }
}

// phi of a unit of k, in place, by the 64 threads of two warps.
template <class S>
__device__ inline void map_unit(const Arguments& p, char* unit) {
  constexpr int kBatch = 4;
  const int thread = threadIdx.x % 64, c = thread % 8;
  if (S::map(p) == FeatureMap::kIdentity || c * 8 >= S::D(p)) return;
  const std::uint32_t at = shared_address(unit) + panel_offset(thread / 8, c);
  const auto phi = [&](std::uint32_t pair) { return feature_pair(S::map(p), pair); };
#pragma unroll
  for (int i = 0; i < 8; i += kBatch) {
    uint4 x[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) x[b] = shared_words(at + (i + b) * 8 * kPanelRowBytes);
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      set_shared_words(at + (i + b) * 8 * kPanelRowBytes, phi(x[b].x), phi(x[b].y), phi(x[b].z), phi(x[b].w));
    }
  }
}
template <class S>
__device__ inline void map_heads(const Arguments& p, const HeadMemory& memory, int heads) {
  int n = 0;
  for (int row = blockIdx.x; row < heads; row += gridDim.x, ++n) {
    const HeadSlot here(memory, n);
#pragma unroll 1
    for (int j = 0; j < kUnitSquares; ++j) {
      barrier_wait(here.full(kRowsOfK + j), here.parity);
      map_unit<S>(p, here.unit(kRowsOfK + j));
      publish_shared();
      barrier_arrive(here.mapped(j));
    }
  }
}

}  // namespace mhla::sm90
