// What the fused kernels of Hopper share, forward and backward (bidirectional_sm90_fused_plan.h): one warp asks the
// copy engine for boxes of 16 tokens of one head after the other through a ring of slots, as far ahead as slots are
// empty; backward, another one for boxes on their way back to memory. The others summarise, mix and read out, with a
// barrier between these phases. Through a phase a slot always has the same readers, or a barrier between two readings,
// so nobody waits for a parity that is two rounds old.
#pragma once

#include "mhla/kernels/bidirectional/bidirectional_sm90_fused_plan.h"
#include "mhla/kernels/common/cuda/sm90_grid_boxes.cuh"
#include "mhla/kernels/common/cuda/sm90_ring.cuh"

namespace mhla::sm90 {

// The blocks of a grid as boxes of 16 tokens.
struct BoxGrid {
  int blocks, tokens;          // tokens of a block
  int columns, rows, per_row;  // as BlockBoxes says
  __device__ int per_block() const { return tokens / kBoxTokens; }
  __device__ int boxes() const { return blocks * per_block(); }  // of a head
};
inline BoxGrid box_grid(const Problem& p, const BlockBoxes& b) {
  return {static_cast<int>(p.M), static_cast<int>(p.C), static_cast<int>(b.columns), static_cast<int>(b.rows),
          static_cast<int>(b.per_row)};
}

// Where a box of a head lies, as one word of a table: divisions would hold up the warp that copies.
struct BoxPlace {
  int block, x, y;
  __device__ explicit BoxPlace(std::uint32_t word) : block(word >> 22), x(word & 0x7ff), y(word >> 11 & 0x7ff) {}
};
static_assert(sm80::kMostFusedTokens <= 0x800 && sm80::kMaxFusedBlocks <= 0x400);

// The table of all boxes, by all threads; a barrier must follow.
__device__ inline void fill_places(const BoxGrid& g, std::uint32_t* places) {
  for (int i = threadIdx.x; i < g.boxes(); i += blockDim.x) {
    const int block = i / g.per_block(), row = block / g.per_row, first = (i - block * g.per_block()) * kBoxTokens,
              line = first / g.columns;
    const int x = (block - row * g.per_row) * g.columns + first - line * g.columns, y = row * g.rows + line;
    places[i] = static_cast<std::uint32_t>(x | y << 11 | block << 22);
  }
}

// Sums of 16 kPer rows of a block's summary.
template <class S, int kPer>
struct BoxSummary {
  float acc[kPer][S::kColumns][4] = {};
  float z[kPer][4] = {};  // every column

  // += k~^T [v 1] over 16 tokens; rows of S from `row`.
  __device__ void add(FeatureMap map, std::uint32_t keys, std::uint32_t values, int row, int D) {
    constexpr std::uint32_t kOnes = 0x3f803f80u;
    const int lane = threadIdx.x % 32;
    std::uint32_t a[kPer][4];
#pragma unroll
    for (int m = 0; m < kPer; ++m) {
      const int d = row + m * 16;
      const int column = d + 8 < D ? d + lane / 8 % 2 * 8 : d < D ? d : 0;  // rows of S past D go to the trash
      load_matrices_transposed(a[m], keys + (lane % 8 + lane / 16 * 8) * S::kPitch + column * 2);
    }
#pragma unroll
    for (int m = 0; m < kPer; ++m) feature_fragment(map, a[m]);
    const std::uint32_t from = values + lane % 16 * S::kPitch + lane / 16 * 16;
#pragma unroll
    for (int j = 0; j + 1 < S::kColumns; j += 2) {
      std::uint32_t b[4];
      load_matrices_transposed(b, from + j * 16);
#pragma unroll
      for (int m = 0; m < kPer; ++m) {
        multiply_add(acc[m][j], a[m], b[0], b[1]);
        multiply_add(acc[m][j + 1], a[m], b[2], b[3]);
      }
    }
    if constexpr (S::kColumns % 2 == 1) {
      std::uint32_t b[2];
      load_two_transposed(b, values + lane % 16 * S::kPitch + (S::kColumns - 1) * 16);
#pragma unroll
      for (int m = 0; m < kPer; ++m) multiply_add(acc[m][S::kColumns - 1], a[m], b[0], b[1]);
    }
#pragma unroll
    for (int m = 0; m < kPer; ++m) multiply_add(z[m], a[m], kOnes, kOnes);
  }

  __device__ void store(char* to, char* trash, int row, int D) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < kPer; ++m) {
      const int d = row + m * 16 + lane % 16, upper = row + m * 16 + lane / 4;
      store_tile<S::kColumns>(acc[m], shared_address(d < D ? to + d * S::kPitch : trash));
      auto* at = reinterpret_cast<Bf16*>(to + D * S::kPitch);
      if (lane % 4 == 0 && upper < D) at[upper] = __float2bfloat16_rn(z[m][0]);
      if (lane % 4 == 0 && upper + 8 < D) at[upper + 8] = __float2bfloat16_rn(z[m][2]);
    }
  }
};

// Mixed rows of blocks that do not exist: 0, where 0 times NaN made NaN. They are multiplied with zeros again.
template <int kTiles, int kColumns>
__device__ inline void cut_blocks(float (&acc)[kTiles][kColumns][4], int M) {
  if (M > (kTiles - 1) * 16 + 15) return;
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((kTiles - 1) * 16 + static_cast<int>(threadIdx.x) % 32 / 4 + i / 2 * 8 >= M) acc[kTiles - 1][j][i] = 0;
    }
  }
}

// Columns [x, x + 16 * kWide) of all blocks, mixed in registers, written in place. mix: fragments in shared memory.
template <int kTiles, int kWide>
__device__ inline void mix_box_columns(std::uint32_t S, int block_bytes, const uint4* mix, int M, int x) {
  const int lane = threadIdx.x % 32;
  const std::uint32_t rows = S + lane % 16 * block_bytes + x * 2;
  float acc[kTiles][2 * kWide][4] = {};
#pragma unroll
  for (int b = 0; b < kTiles; ++b) {
    std::uint32_t r[kWide][4];
#pragma unroll
    for (int w = 0; w < kWide; ++w) {
      load_matrices_transposed(r[w], rows + b * 16 * block_bytes + (w * 16 + lane / 16 * 8) * 2);
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const uint4 m = mix[(i * kTiles + b) * 32 + lane];
      const std::uint32_t a[4] = {m.x, m.y, m.z, m.w};
#pragma unroll
      for (int w = 0; w < kWide; ++w) {
        multiply_add(acc[i][2 * w], a, r[w][0], r[w][1]);
        multiply_add(acc[i][2 * w + 1], a, r[w][2], r[w][3]);
      }
    }
  }
  cut_blocks<kTiles>(acc, M);
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kTiles; ++i) store_tile<2 * kWide>(acc[i], rows + i * 16 * block_bytes);
}

template <int kTiles, int kWarps>
__device__ inline void mix_boxes(std::uint32_t S, int block_bytes, const uint4* mix, int M, int columns) {
  constexpr int kWide = kTiles == 1 ? 4 : kTiles == 2 ? 2 : 1, kStep = 16 * kWide;
  const int warp = threadIdx.x / 32, whole = columns / (kStep * kWarps) * (kStep * kWarps);  // the rest is shared too
  for (int x = warp * kStep; x < whole; x += kWarps * kStep) mix_box_columns<kTiles, kWide>(S, block_bytes, mix, M, x);
  for (int x = whole + warp * 16; x < columns; x += kWarps * 16) mix_box_columns<kTiles, 1>(S, block_bytes, mix, M, x);
}

// Where a phase begins in the ring of kSlots, and slots of it.
template <int kSlots>
struct SlotPlace {
  int slot = 0, parity = 0;
  __device__ void move(int count) {
    slot += count;
    const int rounds = slot / kSlots;
    slot -= rounds * kSlots, parity ^= rounds & 1;
  }
  __device__ void step(int count) {  // at most kSlots
    slot += count;
    if (slot >= kSlots) slot -= kSlots, parity ^= 1;
  }
};

// kHelpers: warps that copy and store.
template <class S, BoxWarps kWarps_, int kHelpers>
struct BoxTiles {
  static constexpr BoxWarps kW = kWarps_;
  static constexpr int kWarps = kW.warps(), kPairs = kW.pairs(), kSlots = kW.slots, kThreads = (kWarps + kHelpers) * 32;
  static constexpr int kBox = kBoxTokens * S::kPitch, kSlot = 2 * kBox;
  static constexpr int kReleases = 2 * kW.in_group;  // of a slot: 2 by a warp of a group, or in_group by one of a pair
  static_assert(kWarps % 2 == 0 && kSlots % kW.groups == 0 && kSlots % kPairs == 0);
  static_assert(kW.in_group * kW.per_warp >= S::kRows && kBox % 128 == 0);
};

// The slots and their barriers: full ones, then empty ones; then those of slots that are ready to leave, in the order
// in which they leave.
template <class T>
struct BoxRing {
  using Place = SlotPlace<T::kSlots>;
  std::uint32_t slots, barriers;

  __device__ void init() const {  // by one thread, before __syncthreads()
    for (int i = 0; i < T::kSlots; ++i) {
      barrier_init(barriers + i * 8, 1), barrier_init(barriers + (T::kSlots + i) * 8, T::kReleases);
      barrier_init(barriers + (2 * T::kSlots + i) * 8, 2);
    }
  }
  __device__ std::uint32_t full(const Place& at) const { return barriers + at.slot * 8; }
  __device__ std::uint32_t at(const Place& place) const { return slots + place.slot * T::kSlot; }
  // The lane that copies: a slot for so many bytes, or boxes.
  __device__ void begin_bytes(const Place& at, int bytes) const {
    barrier_wait(barriers + (T::kSlots + at.slot) * 8, at.parity ^ 1);
    barrier_expect(full(at), bytes);
  }
  __device__ void begin(const Place& at, int boxes) const { begin_bytes(at, boxes * T::kBox); }
  // Those that read.
  __device__ void wait(const Place& at) const { barrier_wait(full(at), at.parity); }
  __device__ void release(const Place& at, int count) const {  // by one lane of a warp
    barrier_arrive(barriers + (T::kSlots + at.slot) * 8, count);
  }
  // What a slot holds may leave, behind publish_shared(): two such calls. `leaving`: its place in the order of these.
  __device__ void hand_over(const Place& leaving, int count = 1) const {
    barrier_arrive(barriers + (2 * T::kSlots + leaving.slot) * 8, count);
  }
};

// The lane that stores: boxes leave their slots while warps go on, and slots become empty one after the other.
template <class T>
struct BoxStores {
  using Place = typename BoxRing<T>::Place;
  const BoxRing<T>& ring;
  Place leaving, pending;
  bool any = false;

  __device__ void wait() {  // until the next slot is ready
    barrier_wait(ring.barriers + (2 * T::kSlots + leaving.slot) * 8, leaving.parity);
    leaving.step(1);
  }
  __device__ void stored(const Place& at) {  // its boxes have been asked for
    commit_boxes();
    if (any) wait_boxes_read_but<1>(), ring.release(pending, T::kReleases);
    pending = at, any = true;
  }
  __device__ void finish() {
    if (any) wait_boxes_read_but<0>(), ring.release(pending, T::kReleases);
    any = false;
  }
};

// The lane that copies: boxes of two tensors to a slot.
template <class T>
__device__ inline void bring_pair(const BoxRing<T>& ring, typename BoxRing<T>::Place& at, const GridBoxes& x,
                                  const GridBoxes& y, std::uint32_t word, int head, int batch) {
  const BoxPlace place(word);
  ring.begin(at, 2);
  copy_grid_box(ring.at(at), x, ring.full(at), place.x, place.y, head, batch);
  copy_grid_box(ring.at(at) + T::kBox, y, ring.full(at), place.x, place.y, head, batch);
  at.step(1);
}

template <class T>
__device__ inline int summary_slots(const BoxGrid& grid) {
  return (grid.blocks + T::kW.groups - 1) / T::kW.groups * T::kW.groups * grid.per_block();
}

// Keys and values of a head, a block for every group of warps at a time.
template <class T>
__device__ inline void bring_keys(const BoxRing<T>& ring, typename BoxRing<T>::Place& at, const BoxGrid& grid,
                                  const std::uint32_t* places, const GridBoxes& k, const GridBoxes& v, int head,
                                  int batch) {
  const int per_block = grid.per_block();
  for (int first = 0; first < grid.blocks; first += T::kW.groups) {
    for (int box = 0; box < per_block; ++box) {
#pragma unroll
      for (int group = 0; group < T::kW.groups; ++group) {
        if (first + group < grid.blocks) {
          bring_pair(ring, at, k, v, places[(first + group) * per_block + box], head, batch);
        } else {
          ring.begin(at, 0), at.step(1);
        }
      }
    }
  }
}

// All warps but the one that copies.
template <class T>
__device__ inline void meet() {
  named_barrier(1, T::kWarps * 32);
}

// Summaries of all blocks from the slots from `phase` on. stored(block) behind every one, by the warps of its group.
template <class S, class T, class F>
__device__ inline void summarise_boxes(const Arguments& p, const BoxGrid& grid, const BoxRing<T>& ring,
                                       typename BoxRing<T>::Place& phase, char* summaries, int block_bytes, char* trash,
                                       const F& stored) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = threadIdx.x % 32, group = warp / T::kW.in_group,
            row = warp % T::kW.in_group * T::kW.per_warp * 16, D = S::D(p);
  auto at = phase;
  at.step(group);
  for (int first = 0; first < grid.blocks; first += T::kW.groups) {
    BoxSummary<S, T::kW.per_warp> summary;
    const int block = first + group;
    for (int box = 0; box < grid.per_block(); ++box, at.step(T::kW.groups)) {
      ring.wait(at);
      if (block < grid.blocks) summary.add(S::map(p), ring.at(at), ring.at(at) + T::kBox, row, D);
      __syncwarp();
      if (lane == 0) ring.release(at, 2);
    }
    if (block >= grid.blocks) continue;
    summary.store(summaries + block * block_bytes, trash, row, D);
    stored(block);
  }
  phase.move(summary_slots<T>(grid));
}

// All summaries, in place, by all warps but the one that copies.
template <class S, class T>
__device__ inline void mix_all(const Arguments& p, char* summaries, int block_bytes, const uint4* mix) {
  const int D = S::D(p), columns = D * (S::kPitch / 2) + (D + 15) / 16 * 16;
  const std::uint32_t at = shared_address(summaries);
  switch ((p.M + 15) / 16) {
    case 1: mix_boxes<1, T::kWarps>(at, block_bytes, mix, p.M, columns); break;
    case 2: mix_boxes<2, T::kWarps>(at, block_bytes, mix, p.M, columns); break;
    case 3: mix_boxes<3, T::kWarps>(at, block_bytes, mix, p.M, columns); break;
    default: mix_boxes<4, T::kWarps>(at, block_bytes, mix, p.M, columns); break;
  }
}

// mix of a head, or its transpose, as fragments.
template <class T>
__device__ inline void fill_mix(const Arguments& p, int head, uint4* mix, bool back) {
  const int tiles = (p.M + 15) / 16, lane = threadIdx.x % 32;
  for (int at = static_cast<int>(threadIdx.x) / 32; at < tiles * tiles; at += T::kWarps) {
    mix[at * 32 + lane] = mix_fragment(p, p.mix_head ? head : 0, at / tiles, at % tiles, lane, back);
  }
}

// acc += x y over the E columns of 16 rows and of rows of a summary, d0 and so on: kTiles times 8 of these.
template <class S, int kTiles>
__device__ inline void multiply_box_rows(const Arguments& p, float (&acc)[kTiles][4], std::uint32_t tile,
                                         std::uint32_t summary, int d0) {
  const int lane = threadIdx.x % 32, D = S::D(p), E = S::E(p);
#pragma unroll
  for (int step = 0; step < S::kRows; ++step) {
    if (step * 16 >= E) break;
    std::uint32_t a[4];
    load_matrices(a, tile + lane % 16 * S::kPitch + step * 32 + lane / 16 * second_half(step, E));
    const bool whole = step * 16 + 8 < E;
    if (!whole) a[2] = a[3] = 0;
#pragma unroll
    for (int j = 0; j < kTiles; j += 2) {
      if (d0 + j * 8 >= D) break;
      std::uint32_t b[4];
      load_matrices(b, summary + min(d0 + j * 8 + lane % 8 + lane / 16 * 8, D - 1) * S::kPitch + step * 32 +
                           lane / 8 % 2 * second_half(step, E));
      if (!whole) b[1] = b[3] = 0;  // what lies there may be NaN
      multiply_add(acc[j], a, b[0], b[1]);
      if (j + 1 < kTiles) multiply_add(acc[j + 1], a, b[2], b[3]);
    }
  }
}

// acc += phi(x) S, den += phi(x) z over the D columns of 16 rows at `tile`.
template <class S, bool kDen>
__device__ inline void read_out_box(const Arguments& p, float (&acc)[S::kColumns][4], float (&den)[4],
                                    std::uint32_t tile, const char* summary) {
  const int lane = threadIdx.x % 32, D = S::D(p);
  const auto* z = reinterpret_cast<const Bf16*>(summary + D * S::kPitch) + lane % 4 * 2;
  const std::uint32_t rows = shared_address(summary);
  std::uint32_t a[S::kRows][4];
#pragma unroll
  for (int step = 0; step < S::kRows; ++step) {
    if (step * 16 >= D) break;
    load_matrices(a[step], tile + lane % 16 * S::kPitch + step * 32 + lane / 16 * second_half(step, D));
  }
#pragma unroll
  for (int step = 0; step < S::kRows; ++step) {
    if (step * 16 >= D) break;
    feature_fragment(S::map(p), a[step]);
    const bool whole = step * 16 + 8 < D;  // D is a multiple of 8
    if (!whole) a[step][2] = a[step][3] = 0;
    multiply_rows<S::kColumns>(acc, a[step], rows + min(step * 16 + lane % 16, D - 1) * S::kPitch);
    if constexpr (kDen) {
      const auto first = *reinterpret_cast<const std::uint32_t*>(z + step * 16);
      const auto second = whole ? *reinterpret_cast<const std::uint32_t*>(z + step * 16 + 8) : 0u;
      multiply_add(den, a[step], first, second);  // in every column
    }
  }
}

}  // namespace mhla::sm90
