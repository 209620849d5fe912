// Backward of the bidirectional form on Hopper where a head's summaries fit shared memory and blocks come in boxes
// (bidirectional_sm90_boxes.cuh), blocks of whole tiles of 64 tokens (bidirectional/README.md, eq. 6 to 10). A head
// from beginning to end, its summaries always in the same place:
//   S from k and v, mixed in place: S~
//   queries, a tile at a time: w = scale / den, c = -(num . dout) / den, dq~ = w (dout S~^T + c z~),
//     dS~ = (w q~)^T dout and dz~ = (w q~)^T c in registers; they take the place of S~ behind the last tile of a block
//   mixed back in place: dS
//   keys: dk~ = v dS^T + dz, dv = k~ dS
// For dmix = dS~ S^T, S goes to memory on the way, as it lies in shared memory, and comes back behind the queries: a
// head's S is all that a block of threads keeps there, so it mostly stays in the second-level cache. Gradients leave as
// boxes from the slots their tokens came in.
#pragma once

#include "mhla/kernels/bidirectional/bidirectional_sm90_boxes.cuh"
#include "mhla/kernels/common/cuda/sm80_mix_gradient.cuh"

namespace mhla::sm90 {

struct BoxGradientArguments {
  GridBoxes q, k, v, dout, dq, dk, dv;
  GridBoxes kept;      // rows of S in p.summaries: [blocks of threads][M] of BoxPlan::block_bytes
  float* maybe_parts;  // of dmix: [units][16][16], or [heads][sequences][16][16] where heads have their own
  Arguments p;
  BoxPlan plan;
  BoxGrid grid;
};

// Rows of S as boxes: all columns that are mixed, 16 rows at a time.
inline GridBoxes kept_summaries(const Arguments& p, const BoxPlan& plan, int blocks, int pitch) {
  const std::int64_t rows = std::int64_t{blocks} * p.M, values = plan.block_bytes / 2;
  ConstView x;
  x.data = p.summaries, x.dtype = DType::kBF16, x.rank = 4;
  x.shape[0] = x.shape[2] = 1, x.shape[1] = rows, x.shape[3] = values - 8;  // what lies behind z is not mixed
  x.stride[0] = rows * values, x.stride[1] = x.stride[2] = values, x.stride[3] = 1;
  return grid_boxes(x, rows, pitch, kBoxTokens, 1);
}

// Work of the warps on a tile of queries. For dq a warp has a box, or one of kShares of its columns; for dS~ 16 rows
// of it and the left or right half of its columns.
template <class S, class T>
struct QueryTiles {
  static constexpr int kBoxes = 4, kShares = T::kWarps / kBoxes, kOwn = (S::kColumns + kShares - 1) / kShares;
  static constexpr int kLeft = (S::kColumns + 1) / 2, kRight = S::kColumns / 2;
  static_assert(T::kWarps == 2 * S::kRows && kShares >= 1 && kShares <= 2 && T::kSlots >= 2 * kBoxes);
  static_assert(kBoxTokens * kBoxes == kBoxGradientTokens);
};
// Named barriers: 0 all, 1 meet(), then groups of warps that summarise, then pairs of warps.
inline constexpr int kGroupBarrier = 2, kPairBarrier = 6;

// What a tile shares beside its slots: sums of shares and c, in BoxPlan::scratch_at.
struct TileScratch {
  float2 sums[2][kBoxGradientTokens];  // q~ z~ and num . dout
  Bf16 terms[kBoxGradientTokens];      // c
};
static_assert(sizeof(TileScratch) <= 1280);

// dq of this warp's columns of a box, packed, and w q~ in place of q.
template <class S, class T>
struct BoxQueryGradient {
  using W = QueryTiles<S, T>;
  std::uint32_t dq[W::kOwn][2];

  __device__ void compute(const Arguments& p, std::uint32_t tile, const char* summary, TileScratch& scratch, int box,
                          int share) {
    const int lane = threadIdx.x % 32, D = S::D(p), d0 = share * W::kOwn * 8;
    float acc[W::kOwn][4] = {};
    multiply_box_rows<S>(p, acc, tile + T::kBox, shared_address(summary), d0);  // dout S~^T
    const std::uint32_t q = tile + lane / 4 * S::kPitch + d0 * 2 + lane % 4 * 4;
    const std::uint32_t z = shared_address(summary) + D * S::kPitch + d0 * 2 + lane % 4 * 4;
    const auto there = [&](int j) { return d0 + j * 8 < D; };
    float den[2] = {}, dot[2] = {};
    std::uint32_t raw[W::kOwn][2];
#pragma unroll
    for (int j = 0; j < W::kOwn; ++j) {
      if (!there(j)) break;
      const float2 zz = unpack_bf16(shared_word(z + j * 16));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        raw[j][half] = shared_word(q + half * 8 * S::kPitch + j * 16);
        const float2 x = unpack_bf16(feature_pair(S::map(p), raw[j][half]));
        den[half] = fmaf(x.x, zz.x, fmaf(x.y, zz.y, den[half]));
        dot[half] = fmaf(x.x, acc[j][2 * half], fmaf(x.y, acc[j][2 * half + 1], dot[half]));
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) den[half] = quad_sum(den[half]), dot[half] = quad_sum(dot[half]);
    if constexpr (W::kShares > 1) {
      const int row = box * kBoxTokens + lane / 4;
      if (lane % 4 == 0) {
        scratch.sums[share][row] = {den[0], dot[0]}, scratch.sums[share][row + 8] = {den[1], dot[1]};
      }
      named_barrier(kPairBarrier + box, 64);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 one = scratch.sums[0][row + half * 8], two = scratch.sums[1][row + half * 8];
        den[half] = one.x + two.x, dot[half] = one.y + two.y;
      }
    }
    float w[2], c[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float total = p.eps + den[half];
      w[half] = p.normalized ? p.scale / total : p.scale, c[half] = p.normalized ? -dot[half] / total : 0.0f;
      if (lane % 4 == 0 && share == 0) {
        scratch.terms[box * kBoxTokens + lane / 4 + half * 8] = __float2bfloat16_rn(c[half]);
      }
    }
#pragma unroll
    for (int j = 0; j < W::kOwn; ++j) {
      if (!there(j)) break;
      const float2 zz = unpack_bf16(shared_word(z + j * 16));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 x = unpack_bf16(feature_pair(S::map(p), raw[j][half]));
        set_shared_word(q + half * 8 * S::kPitch + j * 16, pack_bf16(x.x * w[half], x.y * w[half]));
        const float left = fmaf(c[half], zz.x, acc[j][2 * half]), right = fmaf(c[half], zz.y, acc[j][2 * half + 1]);
        dq[j][half] = through_slope(S::map(p), raw[j][half], pack_bf16(left * w[half], right * w[half]));
      }
    }
  }

  // In place of w q~.
  __device__ void store(const Arguments& p, std::uint32_t tile, int share) const {
    const int lane = threadIdx.x % 32, d0 = share * W::kOwn * 8;
#pragma unroll
    for (int j = 0; j < W::kOwn; ++j) {
      if (d0 + j * 8 >= S::D(p)) break;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        set_shared_word(tile + (lane / 4 + half * 8) * S::kPitch + (d0 + j * 8) * 2 + lane % 4 * 4, dq[j][half]);
      }
    }
  }
};

// 16 rows of dS~ from `row`, the columns of one half.
template <class S, class T>
struct BoxSummaryGradient {
  using W = QueryTiles<S, T>;
  float acc[W::kLeft][4] = {};
  float z[4] = {};  // every column

  // += (w q~)^T [dout c] over a box.
  __device__ void add(const Arguments& p, std::uint32_t tile, const Bf16* terms, int row, bool right) {
    const int lane = threadIdx.x % 32, D = S::D(p);
    const int column = row + 8 < D ? row + lane / 8 % 2 * 8 : row < D ? row : 0;  // rows past D go to the trash
    std::uint32_t a[4];
    load_matrices_transposed(a, tile + (lane % 8 + lane / 16 * 8) * S::kPitch + column * 2);
    const std::uint32_t dout = tile + T::kBox + lane % 16 * S::kPitch;
    if (right) {
      multiply_rows<W::kRight>(reinterpret_cast<float(&)[W::kRight][4]>(acc), a, dout + W::kLeft * 16);
    } else {
      multiply_rows<W::kLeft>(acc, a, dout);
      const std::uint32_t at = shared_address(terms) + lane % 4 * 4;
      multiply_add(z, a, shared_word(at), shared_word(at + 16));
    }
  }

  __device__ void store(const Arguments& p, char* to, char* trash, int row, bool right) const {
    const int lane = threadIdx.x % 32, D = S::D(p), d = row + lane % 16, upper = row + lane / 4;
    const std::uint32_t at = shared_address(d < D ? to + d * S::kPitch : trash);
    if (right) {
      store_tile<W::kRight>(reinterpret_cast<const float(&)[W::kRight][4]>(acc), at + W::kLeft * 16);
      return;
    }
    store_tile<W::kLeft>(acc, at);
    auto* sums = reinterpret_cast<Bf16*>(to + D * S::kPitch);
    if (lane % 4 == 0 && upper < D) sums[upper] = __float2bfloat16_rn(z[0]);
    if (lane % 4 == 0 && upper + 8 < D) sums[upper + 8] = __float2bfloat16_rn(z[2]);
  }
};

// Products for dmix: a slot takes 16 kSteps columns of S of all blocks, and 8 more for a pitch that suits its banks.
template <class S>
struct PartTiles {
  static constexpr int kPitch = 2 * S::kPitch - 16, kBytes = 16 * kPitch, kSteps = (kPitch / 2 - 8) / 16;
  __device__ static int columns(const Arguments& p) { return S::D(p) * (S::kPitch / 2) + (S::D(p) + 15) / 16 * 16; }
  __device__ static int slots(const Arguments& p) { return (columns(p) + 16 * kSteps - 1) / (16 * kSteps); }
};

// The warp that copies: one lane. `written`: barrier of the groups whose S is in memory.
template <class S, class T>
__device__ inline void copy_gradient_boxes(const BoxGradientArguments& a, const BoxRing<T>& ring,
                                           const std::uint32_t* places, std::uint32_t written) {
  const Arguments& p = a.p;
  typename BoxRing<T>::Place at;
  const int per_block = a.grid.per_block(), slots = PartTiles<S>::slots(p);
  int parity = 0;
  for (int unit = blockIdx.x; unit < p.units; unit += gridDim.x, parity ^= 1) {
    const Unit u(p, unit);
    bring_keys(ring, at, a.grid, places, a.k, a.v, u.head, u.batch);
    for (int block = 0; block < a.grid.blocks; ++block) {
      for (int h = 0; h < p.group; ++h) {
        for (int box = 0; box < per_block; ++box) {
          bring_pair(ring, at, a.q, a.dout, places[block * per_block + box], u.head * p.group + h, u.batch);
        }
      }
    }
    if (a.maybe_parts != nullptr) {
      barrier_wait(written, parity);
      publish_written();
      for (int i = 0; i < slots; ++i, at.step(1)) {
        ring.begin_bytes(at, PartTiles<S>::kBytes);
        copy_grid_box(ring.at(at), a.kept, ring.full(at), static_cast<int>(blockIdx.x) * p.M, 0, 0, 0,
                      i * 16 * PartTiles<S>::kSteps);
      }
    }
    for (int box = 0; box < a.grid.boxes(); ++box) {
      bring_pair(ring, at, a.k, a.v, places[box], u.head, u.batch);
    }
  }
}

// The warp that stores: one lane.
template <class S, class T>
__device__ inline void store_gradients(const BoxGradientArguments& a, const BoxRing<T>& ring,
                                       const std::uint32_t* places) {
  using W = QueryTiles<S, T>;
  const Arguments& p = a.p;
  BoxStores<T> stores{ring};
  typename BoxRing<T>::Place at;
  const int per_block = a.grid.per_block(), keys = summary_slots<T>(a.grid),
            parts = a.maybe_parts == nullptr ? 0 : PartTiles<S>::slots(p);
  for (int unit = blockIdx.x; unit < p.units; unit += gridDim.x) {
    const Unit u(p, unit);
    at.move(keys);
    for (int block = 0; block < a.grid.blocks; ++block) {
      for (int h = 0; h < p.group; ++h) {
        for (int box = 0; box < per_block; ++box, at.step(1)) {
          const BoxPlace place(places[block * per_block + box]);
          stores.wait();
          store_grid_box(a.dq, ring.at(at), place.x, place.y, u.head * p.group + h, u.batch);
          stores.stored(at);
          if (box % W::kBoxes == W::kBoxes - 1) stores.finish();
        }
      }
    }
    at.move(parts);
    for (int box = 0; box < a.grid.boxes(); ++box, at.step(1)) {
      const BoxPlace place(places[box]);
      stores.wait();
      store_grid_box(a.dk, ring.at(at) + T::kBox, place.x, place.y, u.head, u.batch);
      store_grid_box(a.dv, ring.at(at), place.x, place.y, u.head, u.batch);
      stores.stored(at);
    }
    stores.finish();
  }
}

// dq of all queries of a head, and dS~ in place of S~.
template <class S, class T>
__device__ inline void query_boxes(const BoxGradientArguments& a, const BoxRing<T>& ring,
                                   typename BoxRing<T>::Place& phase, typename BoxRing<T>::Place& leaving,
                                   char* summaries, char* trash, TileScratch& scratch) {
  using W = QueryTiles<S, T>;
  const Arguments& p = a.p;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = threadIdx.x % 32, box = warp % W::kBoxes,
            share = warp / W::kBoxes, row = warp % S::kRows * 16;
  const bool active = share < W::kShares, right = warp >= S::kRows;
  for (int block = 0; block < a.grid.blocks; ++block) {
    char* summary = summaries + block * a.plan.block_bytes;
    BoxSummaryGradient<S, T> gradient;
    for (int h = 0; h < p.group; ++h) {
      for (int first = 0; first < a.grid.per_block(); first += W::kBoxes) {
        auto own = phase;
        own.step(box);
        BoxQueryGradient<S, T> query;
        if (active) {
          ring.wait(own);
          query.compute(p, ring.at(own), summary, scratch, box, share);
        }
        meet<T>();  // w q~ and c are there
        auto at = phase;
#pragma unroll
        for (int i = 0; i < W::kBoxes; ++i, at.step(1)) {
          gradient.add(p, ring.at(at), scratch.terms + i * kBoxTokens, row, right);
        }
        meet<T>();  // nobody reads them any more
        if (active) {
          auto done = leaving;
          done.step(box);
          query.store(p, ring.at(own), share);
          publish_shared();
          __syncwarp();
          if (lane == 0) ring.hand_over(done, 2 / W::kShares);
        }
        phase.step(W::kBoxes), leaving.step(W::kBoxes);
      }
    }
    gradient.store(p, summary, trash, row, right);
  }
}

// dS~ S^T of a head to 16 x 16 values: a slot has two warps, for every second step of its columns.
template <class S, class T>
__device__ inline void part_of_mix(const BoxGradientArguments& a, const BoxRing<T>& ring,
                                   typename BoxRing<T>::Place& phase, const char* summaries, float* sums, float* to) {
  using P = PartTiles<S>;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = threadIdx.x % 32, pair = warp / 2,
            columns = P::columns(a.p), slots = P::slots(a.p);
  const std::uint32_t left = shared_address(summaries) + lane % 16 * a.plan.block_bytes + lane / 16 * 16;
  float acc[2][4] = {};
  auto at = phase;
  at.step(pair);
  for (int i = pair; i < slots; i += T::kPairs, at.step(T::kPairs)) {
    const std::uint32_t right = ring.at(at) + (lane % 8 + lane / 16 * 8) * P::kPitch + lane / 8 % 2 * 16;
    ring.wait(at);
#pragma unroll
    for (int step = warp % 2; step < P::kSteps; step += 2) {
      const int column = (i * P::kSteps + step) * 16;
      if (column >= columns) break;
      std::uint32_t x[4], y[4];
      load_matrices(x, left + column * 2);
      load_matrices(y, right + step * 32);
      multiply_add(acc[0], x, y[0], y[1]);
      multiply_add(acc[1], x, y[2], y[3]);
    }
    __syncwarp();
    if (lane == 0) ring.release(at, T::kW.in_group);
  }
  phase.move(slots);
#pragma unroll
  for (int j = 0; j < 2; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sums[warp * 256 + (lane / 4 + i / 2 * 8) * 16 + j * 8 + lane % 4 * 2 + i % 2] = acc[j][i];
    }
  }
  meet<T>();
  for (int i = threadIdx.x; i < 256; i += T::kWarps * 32) {
    float sum = sums[i];
    for (int other = 1; other < T::kWarps; ++other) sum += sums[other * 256 + i];
    to[i] = sum;
  }
}

// dk and dv of all keys of a head: a slot has two warps, one for each.
template <class S, class T>
__device__ inline void key_boxes(const BoxGradientArguments& a, const BoxRing<T>& ring,
                                 typename BoxRing<T>::Place& phase, typename BoxRing<T>::Place& leaving,
                                 const std::uint32_t* places, const char* summaries) {
  const Arguments& p = a.p;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = threadIdx.x % 32, pair = warp / 2, D = S::D(p);
  auto at = phase, done = leaving;
  at.step(pair), done.step(pair);
  for (int box = pair; box < a.grid.boxes(); box += T::kPairs, at.step(T::kPairs), done.step(T::kPairs)) {
    const char* summary = summaries + BoxPlace(places[box]).block * a.plan.block_bytes;
    const std::uint32_t k = ring.at(at), v = k + T::kBox;
    float acc[S::kColumns][4];
    ring.wait(at);
    if (warp % 2 == 0) {  // dk, in place of v
      const std::uint32_t own = lane / 4 * S::kPitch + lane % 4 * 4,
                          z = shared_address(summary) + D * S::kPitch + lane % 4 * 4;
      std::uint32_t raw[S::kColumns][2];
#pragma unroll
      for (int j = 0; j < S::kColumns; ++j) {
        if (j * 8 >= D) break;
        raw[j][0] = shared_word(k + own + j * 16), raw[j][1] = shared_word(k + own + 8 * S::kPitch + j * 16);
        const float2 zz = p.normalized ? unpack_bf16(shared_word(z + j * 16)) : float2{};
        acc[j][0] = acc[j][2] = zz.x, acc[j][1] = acc[j][3] = zz.y;
      }
      named_barrier(kPairBarrier + pair, 64);  // nobody reads k for its slope any more
      multiply_box_rows<S>(p, acc, v, shared_address(summary), 0);
      __syncwarp();
#pragma unroll
      for (int j = 0; j < S::kColumns; ++j) {
        if (j * 8 >= D) break;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          set_shared_word(v + own + half * 8 * S::kPitch + j * 16,
                          through_slope(S::map(p), raw[j][half], pack_bf16(acc[j][2 * half], acc[j][2 * half + 1])));
        }
      }
    } else {  // dv, in place of k
      float none[4];
#pragma unroll
      for (auto& tile : acc) tile[0] = tile[1] = tile[2] = tile[3] = 0;
      read_out_box<S, false>(p, acc, none, k, summary);
      named_barrier(kPairBarrier + pair, 64);
      store_tile<S::kColumns>(acc, k + lane % 16 * S::kPitch);
    }
    publish_shared();
    __syncwarp();
    if (lane == 0) ring.hand_over(done);
  }
  phase.move(a.grid.boxes()), leaving.move(a.grid.boxes());
}

template <class S, class T>
__global__ void __launch_bounds__(T::kThreads, T::kW.blocks)
    box_gradient_kernel(const __grid_constant__ BoxGradientArguments a) {
  after_previous();
  extern __shared__ __align__(128) char shared[];
  const Arguments& p = a.p;
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0), lane = threadIdx.x % 32;
  const int bytes = a.plan.block_bytes, tiles = (p.M + 15) / 16;
  const BoxRing<T> ring{shared_address(shared), shared_address(shared + a.plan.barriers_at)};
  char *const summaries = shared + a.plan.summaries_at, *const trash = shared + a.plan.trash_at;
  auto* mix = reinterpret_cast<uint4*>(shared + a.plan.mix_at);
  uint4* const back = mix + tiles * tiles * 32;
  auto& scratch = *reinterpret_cast<TileScratch*>(shared + a.plan.scratch_at);
  const std::uint32_t written = ring.barriers + 24 * T::kSlots;
  auto* places = reinterpret_cast<std::uint32_t*>(shared + a.plan.places_at);
  fill_places(a.grid, places);
  if (threadIdx.x == 0) ring.init(), barrier_init(written, T::kW.groups);
  publish_shared();
  // Blocks that do not exist are multiplied with zeros, columns past E and D go to the product for dmix.
  for (int at = threadIdx.x; at < tiles * bytes; at += T::kThreads) reinterpret_cast<uint4*>(summaries)[at] = uint4{};
  __syncthreads();
  if (warp >= T::kWarps) {
    if (lane == 0) {
      warp == T::kWarps ? copy_gradient_boxes<S>(a, ring, places, written) : store_gradients<S>(a, ring, places);
    }
    return;
  }
  typename BoxRing<T>::Place phase, leaving;
  for (int unit = blockIdx.x; unit < p.units; unit += gridDim.x) {
    const Unit u(p, unit);
    if (unit == blockIdx.x || p.mix_head) fill_mix<T>(p, u.head, mix, false), fill_mix<T>(p, u.head, back, true);
    if (unit != blockIdx.x) meet<T>();  // all are done with the head before
    const int group = warp / T::kW.in_group;
    const bool first = warp % T::kW.in_group == 0 && lane == 0;  // of its group
    summarise_boxes<S, T>(p, a.grid, ring, phase, summaries, bytes, trash, [&](int block) {
      if (a.maybe_parts == nullptr) return;
      publish_shared();
      if constexpr (T::kW.in_group > 1) {
        named_barrier(kGroupBarrier + group, T::kW.in_group * 32);
      } else {
        __syncwarp();
      }
      if (first) {
        store_bytes(p.summaries + (std::int64_t{blockIdx.x} * p.M + block) * (bytes / 2),
                    shared_address(summaries + block * bytes), bytes);
        commit_boxes();
      }
    });
    if (first) wait_boxes_read();
    meet<T>();
    mix_all<S, T>(p, summaries, bytes, mix);
    meet<T>();
    if (first && a.maybe_parts != nullptr) {
      wait_boxes_written();
      publish_written();
      barrier_arrive(written);
    }
    query_boxes<S, T>(a, ring, phase, leaving, summaries, trash, scratch);
    meet<T>();
    if (a.maybe_parts != nullptr) {
      const int part = p.mix_head ? u.head * (p.units / p.Hkv) + u.batch : unit;
      part_of_mix<S, T>(a, ring, phase, summaries, reinterpret_cast<float*>(&scratch),
                        a.maybe_parts + std::int64_t{part} * 256);
    }
    mix_all<S, T>(p, summaries, bytes, back);
    meet<T>();
    key_boxes<S, T>(a, ring, phase, leaving, places, summaries);
  }
}

}  // namespace mhla::sm90
