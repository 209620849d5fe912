// Forward of the bidirectional form on Hopper. Where a head's summaries fit shared memory, one kernel does everything
// and memory sees q, k, v and out once (fused_kernel). Else three kernels: summaries, mixing, output, for as many heads
// at a time as the summaries of all of them stay in the second-level cache.
#include <algorithm>

#include "mhla/core/cuda_check.h"
#include "mhla/core/workspace.h"
#include "mhla/kernels/bidirectional/bidirectional_candidates.h"
#include "mhla/kernels/bidirectional/bidirectional_sm90.cuh"
#include "mhla/kernels/common/problem.h"

namespace mhla {
namespace sm90 {

static_assert(sizeof(BlockTokens) <= kBlockTableBytes);

__global__ void pack_mix_kernel(Arguments p, int tiles) {
  p.fragments[(static_cast<std::int64_t>(blockIdx.y) * tiles * tiles + blockIdx.x) * 32 + threadIdx.x] =
      mix_fragment(p, blockIdx.y, blockIdx.x / tiles, blockIdx.x % tiles, threadIdx.x);
}

// A block of a head: what the blocks of threads of phases 1 and 3 take in turn.
struct Item {
  int unit, index;  // unit of this launch, block
  Unit u;
  BlockTokens block;
  __device__ Item(const Arguments& p, int item)
      : unit(item / p.M), index(item % p.M), u(p, p.first_unit + unit), block(p.block(index)) {}
};

// Phase 1: summaries. One warp per 16 rows; tiles of kPhaseTokens tokens, the next ones on their way, also those of the
// next block.
template <class S>
__global__ void __launch_bounds__(S::kRows * 32) summary_kernel(Arguments p) {
  constexpr int kKeyBytes = kPhaseTokens * S::kPitch, kStage = 2 * kKeyBytes, kStages = phase_stages(S::kTiles);
  extern __shared__ __align__(16) char shared[];  // [kStages][keys, values], S
  const int items = p.units * p.M, row = threadIdx.x / 32 * 16, lane = threadIdx.x % 32, D = S::D(p), E = S::E(p);
  int next = blockIdx.x, next_first = 0, next_slot = 0;  // of the next fetch
  Item coming(p, min(next, items - 1));
  const auto fetch = [&] {
    if (next < items) {
      const std::uint32_t stage = shared_address(shared + next_slot * kStage);
      copy_keys<S, kPhaseTokens, S::kRows * 32>(p, p.k.at(coming.u.batch, coming.u.head),
                                                p.v.at(coming.u.batch, coming.u.head), coming.block, next_first, stage,
                                                stage + kKeyBytes, threadIdx.x);
      next_first += kPhaseTokens;
      if (next_first >= static_cast<int>(coming.block.size)) {
        next += gridDim.x, next_first = 0;
        if (next < items) coming = Item(p, next);
      }
    }
    next_slot = next_slot + 1 == kStages ? 0 : next_slot + 1;
    copy_commit();
  };
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) fetch();
  int slot = 0;
  for (int at = blockIdx.x; at < items; at += gridDim.x) {
    const int size = static_cast<int>(p.block(at % p.M).size);
    Summary<S> summary;
    for (int first = 0; first < size; first += kPhaseTokens) {
      copy_wait<kStages - 2>();
      __syncthreads();  // all copies of this tile are there, and all are done with the one before
      fetch();
      const std::uint32_t stage = shared_address(shared + slot * kStage);
#pragma unroll
      for (int step = 0; step < kPhaseTokens / 16; ++step) {
        const int tokens = size - first - step * 16;
        if (tokens <= 0) break;
        summary.add(p, stage + step * 16 * S::kPitch, stage + kKeyBytes + step * 16 * S::kPitch, tokens, row);
      }
      slot = slot + 1 == kStages ? 0 : slot + 1;
    }
    // Through shared memory of the warp's own, so that 16-byte stores fill whole lines.
    char* tile = shared + kStages * kStage + row * S::kPitch;
    store_tile<S::kColumns>(summary.acc, shared_address(tile + lane % 16 * S::kPitch));
    __syncwarp();
    Bf16* to = p.summaries + static_cast<std::int64_t>(at) * (D * E + D);
    const int chunks = E / 8, rows = min(16, D - row);
    for (int i = lane; i < rows * chunks; i += 32) {
      const int d = i / chunks, c = i % chunks;
      *reinterpret_cast<uint4*>(to + (row + d) * E + c * 8) =
          *reinterpret_cast<const uint4*>(tile + d * S::kPitch + c * 16);
    }
    summary.each_z(p, row, [&](int d, Bf16 value) { to[D * E + d] = value; });
    __syncwarp();
  }
  copy_wait<0>();
}

// Phase 2, in place: S~_i = sum_b mix[i,b] S_b for kStrip of the D E + D values of a block. All M rows of the strip go
// to shared memory first; a warp makes kPer * 16 rows of S~ at a time. Its fragments of mix come through shared memory
// too, kMixAhead ahead: every lane reads what it copied itself.
inline constexpr int kStrip = 64, kStripPitch = kStrip * 2 + 16, kMixAhead = 6;
constexpr int mix_shared_bytes(int M, int warps, int per) {
  return (M + 15) / 16 * 16 * kStripPitch + warps * kMixAhead * per * 512;
}

template <int kPer>
__global__ void __launch_bounds__(256, kPer == 1 ? 3 : 2) mix_kernel(Arguments p, int X, int strips) {
  extern __shared__ __align__(16) char shared[];  // [M rounded up][kStripPitch], fragments [warps][kMixAhead][kPer]
  const int unit = blockIdx.x / strips, x0 = blockIdx.x % strips * kStrip;
  const Unit u(p, p.first_unit + unit);
  const int tiles = (p.M + 15) / 16, lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  Bf16* S = p.summaries + static_cast<std::int64_t>(unit) * p.M * X + x0;
  for (int at = threadIdx.x; at < tiles * 16 * (kStrip / 8); at += blockDim.x) {
    const int b = at / (kStrip / 8), c = at % (kStrip / 8);
    const bool valid = b < p.M && x0 + c * 8 < X;
    copy16(shared_address(shared + b * kStripPitch + c * 16), valid ? S + std::int64_t{b} * X + c * 8 : S, valid);
  }
  copy_commit();
  const uint4* mix = p.fragments + (p.mix_head ? u.head * std::int64_t{tiles} * tiles * 32 : 0) + lane;
  char* own = shared + tiles * 16 * kStripPitch + warp * kMixAhead * kPer * 512 + lane * 16;
  const auto fetch = [&](int i, int b) {
    if (b < tiles && i < tiles) {
      const std::uint32_t to = shared_address(own + b % kMixAhead * kPer * 512);
#pragma unroll
      for (int k = 0; k < kPer; ++k) copy16(to + k * 512, mix + (min(i + k, tiles - 1) * tiles + b) * 32, true);
    }
    copy_commit();
  };
  const bool once = tiles <= kPer * warps;
  for (int i = warp * kPer; i < (once ? warp * kPer + 1 : tiles); i += warps * kPer) {
    for (int b = 0; b < kMixAhead - 1; ++b) fetch(i, b);
    if (i < warps * kPer) {  // the strip came before the fragments
      copy_wait<kMixAhead - 1>();
      __syncthreads();
    }
    float acc[kPer][kStrip / 8][4] = {};
    const std::uint32_t strip = shared_address(shared) + (lane % 16) * kStripPitch + lane / 16 * 16;
    for (int b = 0; b < tiles && i < tiles; ++b) {
      fetch(i, b + kMixAhead - 1);
      copy_wait<kMixAhead - 1>();
      std::uint32_t a[kPer][4];
#pragma unroll
      for (int k = 0; k < kPer; ++k) {
        const uint4 m = *reinterpret_cast<const uint4*>(own + (b % kMixAhead * kPer + k) * 512);
        a[k][0] = m.x, a[k][1] = m.y, a[k][2] = m.z, a[k][3] = m.w;
      }
#pragma unroll
      for (int j = 0; j < kStrip / 8; j += 2) {
        std::uint32_t two[4];
        load_matrices_transposed(two, strip + b * 16 * kStripPitch + j * 16);
#pragma unroll
        for (int k = 0; k < kPer; ++k) {
          multiply_add(acc[k][j], a[k], two[0], two[1]);
          multiply_add(acc[k][j + 1], a[k], two[2], two[3]);
        }
      }
    }
    copy_wait<0>();
    if (once) {  // nobody reads the strip any more: through it, whole lines are written
      __syncthreads();
#pragma unroll
      for (int k = 0; k < kPer; ++k) {
        if (i + k < tiles) {
          store_tile<kStrip / 8>(acc[k], shared_address(shared) + ((i + k) * 16 + lane % 16) * kStripPitch);
        }
      }
      __syncwarp();
      for (int at = lane; at < kPer * 16 * (kStrip / 8); at += 32) {
        const int row = i * 16 + at / (kStrip / 8), c = at % (kStrip / 8);
        if (row < p.M && x0 + c * 8 < X) {
          *reinterpret_cast<uint4*>(S + std::int64_t{row} * X + c * 8) =
              *reinterpret_cast<const uint4*>(shared + row * kStripPitch + c * 16);
        }
      }
      break;
    }
#pragma unroll
    for (int half = 0; half < 2 * kPer; ++half) {
      const int row = i * 16 + half * 8 + lane / 4;
#pragma unroll
      for (int j = 0; j < kStrip / 8; ++j) {
        const float* c = &acc[half / 2][j][half % 2 * 2];
        if (row < p.M && x0 + j * 8 < X) {
          *reinterpret_cast<std::uint32_t*>(S + std::int64_t{row} * X + j * 8 + lane % 4 * 2) = pack_bf16(c[0], c[1]);
        }
      }
    }
  }
}

struct Place {
  BlockTokens block;
  const Bf16* q;
  Bf16* out;
};

// Phase 3: out of a block for one query head after the other. S~ in shared memory, that of the next block on its way;
// warps take 16 tokens at a time.
template <class S>
__global__ void __launch_bounds__(128, S::kRows >= 8 ? 3 : 5) readout_kernel(Arguments p, int summary_bytes) {
  extern __shared__ __align__(16) char shared[];  // [2]: S~, z~; places
  const int items = p.units * p.group * p.M, warp = threadIdx.x / 32, D = S::D(p), E = S::E(p);
  const auto unit_of = [&](int at) { return at / p.M / p.group; };
  const auto fetch = [&](int at, int buffer) {
    if (at < items) {
      const Bf16* from = p.summaries + (static_cast<std::int64_t>(unit_of(at)) * p.M + at % p.M) * (D * E + D);
      const std::uint32_t to = shared_address(shared + buffer * summary_bytes);
      for (int i = threadIdx.x; i < D * (E / 8); i += 128) {
        copy16(to + summary_row(i / (E / 8), S::kPitch) + i % (E / 8) * 16, from + i * 8, true);
      }
      for (int i = threadIdx.x; i < D / 8; i += 128) {
        copy16(to + summary_row(D, S::kPitch) + i * 16, from + D * E + i * 8, true);
      }
    }
    copy_commit();
  };
  auto* places = reinterpret_cast<Place*>(shared + 2 * summary_bytes);  // [3]: where the next blocks lie
  const auto place = [&](int at, int slot) {
    if (threadIdx.x == 0 && at < items) {
      const Unit u(p, p.first_unit + unit_of(at));
      const int head = u.head * p.group + at / p.M % p.group;
      places[slot] = Place{p.block(at % p.M), p.q.at(u.batch, head), p.out.at(u.batch, head)};
    }
  };
  const int step = static_cast<int>(gridDim.x);
  int at = blockIdx.x, buffer = 0, slot = 0;
  fetch(at, 0);
  place(at, 0), place(at + step, 1);
  __syncthreads();
  Queries<S> queries;
  if (at < items) queries.load(p, places[0].q, places[0].block, warp * 16);
  for (; at < items; at += step, buffer ^= 1) {
    copy_wait<0>();
    __syncthreads();  // S~ is there, and all are done with the one before
    const int following = slot == 2 ? 0 : slot + 1;
    fetch(at + step, buffer ^ 1);
    place(at + 2 * step, following == 2 ? 0 : following + 1);
    const Place &here = places[slot], &there = places[following];
    const int size = static_cast<int>(here.block.size);
    bool loaded = false;  // the first tile of the next block
    for (int first = warp * 16; first < size; first += 64) {
      Queries<S> now = queries;
      if (first + 64 < size) {
        queries.load(p, here.q, here.block, first + 64);
      } else if (at + step < items) {
        queries.load(p, there.q, there.block, warp * 16);
        loaded = true;
      }
      const Readout<S> x(p, now, shared + buffer * summary_bytes);
      write_outputs<S>(p, x, here.out, here.block, first);
    }
    if (!loaded && at + step < items) queries.load(p, there.q, there.block, warp * 16);
    slot = following;
  }
}

__device__ inline void group_barrier(int group, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "r"(threads) : "memory");
}

// Columns [x, x + 16 * kWide) of all blocks: mixed in registers, written in place. mix: fragments in shared memory.
template <int kTiles, int kWide>
__device__ inline void mix_columns(char* S, int block_bytes, const uint4* mix, int x) {
  const int lane = threadIdx.x % 32;
  const std::uint32_t rows = shared_address(S) + lane % 16 * block_bytes + x * 2;
  float acc[kTiles][2 * kWide][4] = {};
#pragma unroll
  for (int b = 0; b < kTiles; ++b) {
#pragma unroll
    for (int w = 0; w < kWide; ++w) {
      std::uint32_t r[4];
      load_matrices_transposed(r, rows + b * 16 * block_bytes + (w * 16 + lane / 16 * 8) * 2);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const uint4 m = mix[(i * kTiles + b) * 32 + lane];
        const std::uint32_t a[4] = {m.x, m.y, m.z, m.w};
        multiply_add(acc[i][2 * w], a, r[0], r[1]);
        multiply_add(acc[i][2 * w + 1], a, r[2], r[3]);
      }
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kTiles; ++i) store_tile<2 * kWide>(acc[i], rows + i * 16 * block_bytes);
}

// All columns, warp by warp: their number is a multiple of 16.
template <int kTiles, int kWarps>
__device__ inline void mix_in_place(char* S, int block_bytes, const uint4* mix, int columns) {
  constexpr int kWide = kTiles == 1 ? 4 : kTiles == 2 ? 2 : 1, kStep = 16 * kWide;
  const int warp = threadIdx.x / 32, whole = columns / kStep * kStep;
  for (int x = warp * kStep; x < whole; x += kWarps * kStep) mix_columns<kTiles, kWide>(S, block_bytes, mix, x);
  for (int x = whole + warp * 16; x < columns; x += kWarps * 16) mix_columns<kTiles, 1>(S, block_bytes, mix, x);
}

// Heads from beginning to end, one after the other, summaries in shared memory. Groups of warps summarise blocks in
// turn, all warps mix columns in place, then every warp reads out tiles of 16 tokens of its own. The keys and values of
// the next head travel meanwhile.
template <class S, int kStages>
__global__ void __launch_bounds__(groups_of(S::kTiles) * S::kRows * 32, S::kRows == 2 ? 3 : 1)
    fused_kernel(Arguments p, FusedPlan plan, FastDivisor block_tiles, FastDivisor blocks_of_head) {
  constexpr int kGroups = groups_of(S::kTiles), kGroupThreads = S::kRows * 32, kWarps = kGroups * S::kRows;
  extern __shared__ __align__(16) char shared[];
  const int tiles = (p.M + 15) / 16, D = S::D(p);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = warp / S::kRows, row = warp % S::kRows * 16;
  auto* mix = reinterpret_cast<uint4*>(shared + plan.mix_at);
  auto* blocks = reinterpret_cast<BlockTokens*>(shared + plan.table_at);
  if (threadIdx.x < p.M) blocks[threadIdx.x] = p.block(threadIdx.x);
  // Blocks that do not exist are multiplied with zeros: they must be finite.
  for (int at = p.M * plan.block_bytes / 16 + threadIdx.x; at < tiles * plan.block_bytes; at += kWarps * 32) {
    reinterpret_cast<uint4*>(shared)[at] = uint4{};
  }
  __syncthreads();

  const std::uint32_t ring = shared_address(shared + plan.ring_at) + group * kStages * plan.stage_bytes;
  int next_unit = blockIdx.x, next_index = group, next_first = 0, next_slot = 0;  // of the next fetch
  const Bf16 *k = nullptr, *v = nullptr;                                          // of its head
  const auto enter = [&] {
    const Unit u(p, next_unit);
    k = p.k.at(u.batch, u.head), v = p.v.at(u.batch, u.head);
  };
  enter();
  const auto fetch = [&] {  // 16 tokens of this group's blocks, one after the other, of one head after the other
    if (next_index >= p.M) next_unit += gridDim.x, next_index = group, enter();
    if (next_unit < p.units && next_index < p.M) {
      const std::uint32_t stage = ring + next_slot * plan.stage_bytes;
      copy_keys<S, kStepTokens, kGroupThreads>(p, k, v, blocks[next_index], next_first, stage,
                                               stage + kStepTokens * S::kPitch, threadIdx.x % kGroupThreads);
      next_first += kStepTokens;
      if (next_first >= static_cast<int>(blocks[next_index].size)) next_index += kGroups, next_first = 0;
    }
    next_slot = next_slot + 1 == kStages ? 0 : next_slot + 1;
    copy_commit();
  };
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) fetch();

  int slot = 0;
  for (int unit = blockIdx.x; unit < p.units; unit += gridDim.x) {
    const Unit u(p, unit);
    if (unit == blockIdx.x || p.mix_head) {
      for (int at = warp; at < tiles * tiles; at += kWarps) {
        mix[at * 32 + lane] = mix_fragment(p, p.mix_head ? u.head : 0, at / tiles, at % tiles, lane);
      }
    }
    for (int index = group; index < p.M; index += kGroups) {
      const int size = static_cast<int>(blocks[index].size);
      Summary<S> summary;
      for (int first = 0; first < size; first += kStepTokens) {
        copy_wait<kStages - 2>();
        group_barrier(group, kGroupThreads);  // all copies of this slot are there, and all are done with the one before
        fetch();
        const std::uint32_t stage = ring + slot * plan.stage_bytes;
        summary.add(p, stage, stage + kStepTokens * S::kPitch, size - first, row);
        slot = slot + 1 == kStages ? 0 : slot + 1;
      }
      char* to = shared + index * plan.block_bytes;
      const int d = row + lane % 16;
      store_tile<S::kColumns>(summary.acc,
                              shared_address(d < D ? to + summary_row(d, S::kPitch) : shared + plan.trash_at));
      auto* z = reinterpret_cast<Bf16*>(to + summary_row(D, S::kPitch));
      summary.each_z(p, row, [&](int at, Bf16 value) { z[at] = value; });
    }
    __syncthreads();

    // Tiles of 16 tokens: every block has as many places for them as the largest. The first queries travel while
    // summaries are mixed.
    const int count = static_cast<int>(block_tiles.divisor) * p.M * p.group;
    int tile = warp, head = 0, index = 0, first = 0;
    const auto settle = [&] {  // the place of `tile`, or of the next that holds tokens
      for (; tile < count; tile += kWarps) {
        const auto block = static_cast<int>(block_tiles.divide(tile));
        head = static_cast<int>(blocks_of_head.divide(block)), index = block - head * p.M;
        first = (tile - block * static_cast<int>(block_tiles.divisor)) * 16;
        if (first < static_cast<int>(blocks[index].size)) return;
      }
      head = p.group;
    };
    settle();
    Queries<S> queries;
    const auto load = [&] {
      if (head < p.group) queries.load(p, p.q.at(u.batch, u.head * p.group + head), blocks[index], first);
    };
    load();
    const int columns = summary_row(D, S::kPitch) / 2 + (D + 15) / 16 * 16;
    switch (tiles) {
      case 1: mix_in_place<1, kWarps>(shared, plan.block_bytes, mix, columns); break;
      case 2: mix_in_place<2, kWarps>(shared, plan.block_bytes, mix, columns); break;
      case 3: mix_in_place<3, kWarps>(shared, plan.block_bytes, mix, columns); break;
      default: mix_in_place<4, kWarps>(shared, plan.block_bytes, mix, columns); break;
    }
    __syncthreads();

    while (head < p.group) {
      Queries<S> now = queries;
      const BlockTokens& block = blocks[index];
      const int now_first = first, now_head = u.head * p.group + head;
      const char* summary = shared + index * plan.block_bytes;
      tile += kWarps;
      settle();
      load();
      const Readout<S> x(p, now, summary);
      write_outputs<S>(p, x, p.out.at(u.batch, now_head), block, now_first);
    }
    __syncthreads();  // the next head's summaries take the place of this one's
  }
  copy_wait<0>();
}

template <class T, class View>
Strided<T> strided(const View& x) {
  return {static_cast<T*>(x.data), x.stride[0], x.stride[1], x.stride[2]};
}

class Forward {
 public:
  Forward(const Problem& p, Workspace& ws) : p_(p), tiles_(tiles_of(p.D, p.E)), plan_(fused_plan(p.M, p.D, tiles_)) {
    units_ = p.B * p.Hkv;
    if (plan_.stages > 0) return;
    const std::int64_t mix_tiles = (p.M + 15) / 16;
    fragments_ = ws.take<uint4>(p.Hm * mix_tiles * mix_tiles * 32, "packed mix");
    block_ = p.D * p.E + p.D;
    at_once_ = units_at_once(units_, 2 * p.M * block_);
    summaries_ = ws.take<Bf16>(at_once_ * p.M * block_, "summaries");
  }

  void run() {
    Arguments a{};
    a.q = strided<const Bf16>(p_.q), a.k = strided<const Bf16>(p_.k), a.v = strided<const Bf16>(p_.v);
    a.out = strided<Bf16>(p_.out);
    a.layout = DeviceLayout(p_.layout, p_.C);
    a.N = p_.N;
    a.M = static_cast<int>(p_.M), a.D = static_cast<int>(p_.D), a.E = static_cast<int>(p_.E);
    a.Hkv = static_cast<int>(p_.Hkv), a.group = static_cast<int>(p_.group());
    a.map = p_.feature_map, a.normalized = p_.normalized();
    a.eps = static_cast<float>(p_.eps), a.scale = static_cast<float>(p_.scale);
    a.mix = data_as<float>(p_.mix), a.mix_head = p_.Hm > 1 ? p_.mix.stride[0] : 0;
    a.mix_row = p_.mix.stride[1], a.mix_column = p_.mix.stride[2];
    a.fragments = fragments_, a.summaries = summaries_;
    a.units = static_cast<int>(units_);
    const cudaStream_t stream = stream_of(p_.stream);
    switch (tiles_.rows) {
      case 2: pick<2, 4>(a, stream); break;
      case 4: pick<4, 8>(a, stream); break;
      case 5: pick<5, 9>(a, stream); break;
      default: pick<8, 16>(a, stream); break;
    }
  }

 private:
  // As many blocks of threads as run at once, at most `items`.
  template <class Kernel>
  unsigned blocks_for(Kernel kernel, int threads, int bytes, std::int64_t items) const {
    int count = 0, resident = 0;
    cuda_check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, p_.q.device), "multiprocessors");
    cuda_check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, threads, bytes), "occupancy");
    return static_cast<unsigned>(std::min<std::int64_t>(items, std::int64_t{count} * std::max(resident, 1)));
  }
  template <class Kernel>
  static void allow(Kernel kernel, int bytes, const char* name) {
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), name);
  }

  template <int kRows, int kColumns>
  void pick(const Arguments& a, cudaStream_t stream) {
    constexpr int kExact = exact_size({kRows, kColumns});
    if (a.D == kExact && a.E == kExact && a.map == FeatureMap::kReluEps)
      launch<Spec<kRows, kColumns, true>>(a, stream);
    else
      launch<Spec<kRows, kColumns, false>>(a, stream);
  }

  template <class S>
  void launch(const Arguments& a, cudaStream_t stream) {
    switch (plan_.stages) {
      case 4: fused<S, 4>(a, stream); return;
      case 3: fused<S, 3>(a, stream); return;
      case 2: fused<S, 2>(a, stream); return;
      default: phases<S>(a, stream); return;
    }
  }

  template <class S, int kStages>
  void fused(const Arguments& a, cudaStream_t stream) {
    constexpr int kThreads = groups_of(S::kTiles) * S::kRows * 32;
    allow(fused_kernel<S, kStages>, plan_.shared_bytes, "sm90 fused_kernel");
    fused_kernel<S, kStages>
        <<<blocks_for(fused_kernel<S, kStages>, kThreads, plan_.shared_bytes, units_), kThreads, plan_.shared_bytes,
           stream>>>(a, plan_, FastDivisor((p_.C + 15) / 16), FastDivisor(p_.M));
    check_launch("sm90 fused_kernel");
  }

  template <class S>
  void phases(Arguments a, cudaStream_t stream) {
    const int stage_bytes = (phase_stages(S::kTiles) * kPhaseTokens * 2 + S::kRows * 16) * S::kPitch;
    const int mix_tiles = (a.M + 15) / 16, summary = summary_bytes(a.D, S::kTiles);
    const int mix_rows = mix_tiles <= 8 ? 1 : 2, mix_warps = std::min((mix_tiles + mix_rows - 1) / mix_rows, 8);
    const int mix_bytes = mix_shared_bytes(a.M, mix_warps, mix_rows);
    const auto mix = mix_rows == 1 ? mix_kernel<1> : mix_kernel<2>;
    allow(summary_kernel<S>, stage_bytes, "sm90 summary_kernel");
    allow(mix, mix_bytes, "sm90 mix_kernel");
    const int readout_bytes = 2 * summary + 3 * static_cast<int>(sizeof(Place));
    allow(readout_kernel<S>, readout_bytes, "sm90 readout_kernel");
    const int strips = static_cast<int>((block_ + kStrip - 1) / kStrip);
    pack_mix_kernel<<<dim3(mix_tiles * mix_tiles, static_cast<unsigned>(p_.Hm)), 32, 0, stream>>>(a, mix_tiles);
    check_launch("sm90 pack_mix_kernel");
    for (std::int64_t first = 0; first < units_; first += at_once_) {
      a.first_unit = static_cast<int>(first), a.units = static_cast<int>(std::min(at_once_, units_ - first));
      const std::int64_t blocks = std::int64_t{a.units} * a.M;
      summary_kernel<S>
          <<<blocks_for(summary_kernel<S>, S::kRows * 32, stage_bytes, blocks), S::kRows * 32, stage_bytes, stream>>>(
              a);
      check_launch("sm90 summary_kernel");
      mix<<<static_cast<unsigned>(a.units * strips), mix_warps * 32, mix_bytes, stream>>>(a, static_cast<int>(block_),
                                                                                          strips);
      check_launch("sm90 mix_kernel");
      readout_kernel<S>
          <<<blocks_for(readout_kernel<S>, 128, readout_bytes, blocks * a.group), 128, readout_bytes, stream>>>(
              a, summary);
      check_launch("sm90 readout_kernel");
    }
  }

  const Problem& p_;
  Tiles tiles_;
  FusedPlan plan_;
  std::int64_t units_ = 0, block_ = 0, at_once_ = 0;
  uint4* fragments_ = nullptr;
  Bf16* summaries_ = nullptr;
};

}  // namespace sm90

void bidirectional_forward_sm90(const Problem& problem, Workspace& workspace, Executor&) {
  sm90::Forward pass(problem, workspace);
  if (!workspace.counting()) pass.run();
}

}  // namespace mhla
