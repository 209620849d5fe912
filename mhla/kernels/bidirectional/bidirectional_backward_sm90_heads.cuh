// Backward over all pairs of tokens, as bidirectional_backward_sm90_short.cuh, where every query head has its own keys.
// A block of threads takes heads one after the other and fetches the next one while it works. Each head is computed
// by one block, so the bits do not depend on how many there are. Shared memory holds six panels of 256 rows. For the
// n-th head of a block:
//   slot of the ring of four   n: q    n + 1: dout    n + 2: the next dout    n + 3: k
//   slot of the ring of two    n: v    n + 1: the next v
// The next dout and v arrive while the keys are summed. The next k and q take the slots of q and dout, 64 rows at a
// time, as soon as all warpgroups are done with these rows: only the last 64 rows arrive after the sums.
#pragma once

#include "mhla/kernels/bidirectional/bidirectional_backward_sm90_head_sums.cuh"

namespace mhla::sm90 {

// Warpgroups of a block of threads: 2 or 4, of 255 or 128 registers a thread.
inline constexpr int kHeadGroups = 4;

constexpr int head_shared_bytes() { return kPanelAlign + 6 * ShortPanels::kBytes + static_cast<int>(sizeof(HeadSums)); }

// What a thread moves of every 64 rows: one piece of every kStep-th.
template <int kThreads>
struct PieceMover {
  static constexpr int kStep = kThreads / 8;
  const PairTable& table;

  // Rows 64 unit to 64 unit + 63, zeros in columns past X and where there is no token.
  __device__ void copy(const Bf16* x, std::int64_t stride, int X, char* panel, int unit) const {
    const int thread = thread_here(), c = thread % 8;
    const std::uint32_t to = shared_address(panel) + panel_offset(unit * 64 + thread / 8, c);
#pragma unroll
    for (int i = 0; i < 64; i += kStep) {
      const int token = table.tokens[unit * 64 + i + thread / 8];
      const bool there = token >= 0 && c * 8 < X;
      copy16(to + i * kPanelRowBytes, x + (there ? token * stride + c * 8 : 0), there);
    }
  }
  // phi of what this thread copied itself, in place.
  __device__ void map(FeatureMap map, int X, char* panel, int units) const {
    const int thread = thread_here(), c = thread % 8;
    if (map == FeatureMap::kIdentity || c * 8 >= X) return;
#pragma unroll 4
    for (int row = thread / 8; row < units * 64; row += kStep) {
      auto* at = reinterpret_cast<uint4*>(panel + panel_offset(row, c));
      uint4 y = *at;
      y.x = feature_pair(map, y.x), y.y = feature_pair(map, y.y);
      y.z = feature_pair(map, y.z), y.w = feature_pair(map, y.w);
      if (table.tokens[row] >= 0) *at = y;
    }
  }
};

// The 16 rows of a warp on their way to the tokens of its tile: lane l has piece l % 8 of every fourth row.
struct WarpRows {
  static constexpr int kCount = 4;
  const PairTable& table;
  int tile, lane = thread_here() % 32, c = lane % 8;

  __device__ int row(int i) const { return i * 4 + lane / 8; }
  // Raw q or k, where the slope of the map is taken. They come from the second-level cache.
  __device__ void load(uint4 (&x)[kCount], FeatureMap map, const Bf16* from, std::int64_t stride, int X) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int token = table.tokens[tile * 16 + row(i)];
      const bool there = map != FeatureMap::kIdentity && token >= 0 && c * 8 < X;
      x[i] = there ? *reinterpret_cast<const uint4*>(from + token * stride + c * 8) : uint4{};
    }
  }
  // Through 16 rows of a panel that are this warp's own, so that lines are written whole. Rows times `factors`.
  template <bool kGradient>
  __device__ void write(const Accumulator& acc, const float (&factors)[2], char* own, Bf16* to, std::int64_t stride,
                        int X, FeatureMap map, const uint4 (&x)[kCount]) const {
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      std::uint32_t y[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&sums)[4] = acc[j + i / 2];
        y[i] = pack_bf16(sums[i % 2 * 2] * factors[i % 2], sums[i % 2 * 2 + 1] * factors[i % 2]);
      }
      store_matrices(shared_address(own + panel_offset(lane % 16, j + lane / 16)), y[0], y[1], y[2], y[3]);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int token = table.tokens[tile * 16 + row(i)];
      if (token < 0 || c * 8 >= X) continue;
      uint4 y = *reinterpret_cast<const uint4*>(own + panel_offset(row(i), c));
      if constexpr (kGradient) {
        y.x = through_slope(map, x[i].x, y.x), y.y = through_slope(map, x[i].y, y.y);
        y.z = through_slope(map, x[i].z, y.z), y.w = through_slope(map, x[i].w, y.w);
      }
      *reinterpret_cast<uint4*>(to + token * stride + c * 8) = y;
    }
    __syncwarp();
  }
};

// The 64 queries of a warpgroup: w and c to the table, dq to memory.
template <class S, bool kEarly>
__device__ inline void head_queries(const Arguments& p, const Gradients& g, const PairHead& work,
                                    const HeadPanels& panels, HeadSums& sums, int square) {
  PairTable& table = sums.table;
  const int tiles = work.shape.tiles, own = square * 4 + thread_here() / 32 % 4;
  const int lane = thread_here() % 32, D = S::D(p);
  const WarpRows out{table, own};
  uint4 x[WarpRows::kCount];
  if (kEarly && g.dq.data != nullptr) out.load(x, S::map(p), p.q.at(work.batch, work.head), p.q.token, D);
  Accumulator acc = {};
  sum_queries(panels, sums, square, tiles, acc);
  const TileRows mine(table, own, tiles);
  const float* z = sums.mixed[own] + lane % 4 * 2;
  float w[2], c[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float den = 0, dot = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 zz = *reinterpret_cast<const float2*>(z + j * 8);
      const float2 q = unpack_bf16(*reinterpret_cast<const std::uint32_t*>(
          panels.q + panel_offset(own * 16 + lane / 4 + half * 8, j) + lane % 4 * 4));
      den = fmaf(q.x, zz.x, fmaf(q.y, zz.y, den));
      dot = fmaf(q.x, acc[j][2 * half], fmaf(q.y, acc[j][2 * half + 1], dot));
    }
    const float total = p.eps + quad_sum(den), sum = quad_sum(dot);
    w[half] = !mine.valid[half] ? 0.0f : p.normalized ? p.scale / total : p.scale;
    c[half] = mine.valid[half] && p.normalized ? -sum / total : 0.0f;
    if (lane % 4 == 0) table.weights[own * 16 + lane / 4 + half * 8] = {w[half], c[half]};
  }
  if (g.dq.data == nullptr) return;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float2 zz = *reinterpret_cast<const float2*>(z + j * 8);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      acc[j][2 * half] = fmaf(c[half], zz.x, acc[j][2 * half]);
      acc[j][2 * half + 1] = fmaf(c[half], zz.y, acc[j][2 * half + 1]);
    }
  }
  if (!kEarly) out.load(x, S::map(p), p.q.at(work.batch, work.head), p.q.token, D);
  out.write<true>(acc, w, panels.next_dout + own * 16 * kPanelRowBytes, g.dq.at(work.batch, work.head), g.dq.token, D,
                  S::map(p), x);
}

// dq, dk, dv and parts of dmix [B H][tiles][tiles], where p.group is 1.
template <class S, int kGroups>
__global__ void __launch_bounds__(kGroups * 128, 1)
    head_gradient_kernel(Arguments p, Gradients g, PairShape shape, int heads) {
  // Four groups: each has one square, and no registers for raw q and k to arrive early. Other warps hide that latency.
  constexpr bool kAtOnce = kGroups == kMaxSquares, kEarly = !kAtOnce;
  after_previous();
  extern __shared__ char unaligned[];
  char* shared = aligned_panels(unaligned);
  auto& sums = *reinterpret_cast<HeadSums*>(shared + 6 * ShortPanels::kBytes);
  PairHead work(p, shape, reinterpret_cast<char*>(&sums.table));
  const PairTable& table = sums.table;
  const int D = S::D(p), E = S::E(p), squares = panel_rows(shape.tiles) / 64, group = warpgroup_index();
  const std::uint32_t done = shared_address(sums.done);
  if (threadIdx.x == 0) {
    for (int j = 0; j < kMaxSquares; ++j) barrier_init(done + j * 8, kGroups * 128);
  }
  work.fill_tokens();
  const PieceMover<kGroups * 128> mover{table};
  work.enter(static_cast<int>(blockIdx.x));
  if (!p.mix_head) work.fill_mix(0);
  {
    const HeadPanels panels(shared, 0);
#pragma unroll 1
    for (int unit = 0; unit < squares; ++unit) {
      mover.copy(g.dout.at(work.batch, work.head), g.dout.token, E, panels.dout, unit);
      mover.copy(p.v.at(work.batch, work.head), p.v.token, E, panels.v, unit);
      mover.copy(p.k.at(work.batch, work.head), p.k.token, D, panels.k, unit);
      mover.copy(p.q.at(work.batch, work.head), p.q.token, D, panels.q, unit);
    }
    copy_commit();
  }
  int n = 0;
  for (int row = blockIdx.x; row < heads; row += gridDim.x, ++n) {
    const HeadPanels panels(shared, n);
    work.enter(row);
    if (p.mix_head) work.fill_mix(work.head);
    copy_wait<0>();
    mover.map(S::map(p), D, panels.k, squares);
    mover.map(S::map(p), D, panels.q, squares);
    publish_shared();
    __syncthreads();  // all of this head is there, and nobody is at the one before
    sum_keys(panels.k, shape.tiles, sums);
    __syncthreads();  // z is there
    for (int square = group; square < squares; square += kGroups) {
      head_queries<S, kEarly>(p, g, work, panels, sums, square);
      if (kAtOnce) break;
    }
    __syncthreads();  // w and c are there

    const int next = row + static_cast<int>(gridDim.x);
    if (next < heads) {
      work.enter(next);
#pragma unroll 1
      for (int unit = 0; unit < squares; ++unit) {
        mover.copy(g.dout.at(work.batch, work.head), g.dout.token, E, panels.next_dout, unit);
        mover.copy(p.v.at(work.batch, work.head), p.v.token, E, panels.next_v, unit);
      }
    }
    const auto fetch = [&](int unit) {  // when all are done with these rows of q and dout
      barrier_wait(done + unit * 8, n % 2);
      if (next >= heads) return;
      work.enter(anew(next));
      mover.copy(p.k.at(work.batch, work.head), p.k.token, D, panels.q, unit);
      mover.copy(p.q.at(work.batch, work.head), p.q.token, D, panels.dout, unit);
    };
    const auto release = [&](int unit) {  // others may be a square behind before anyone waits
      barrier_arrive(done + unit * 8);
      if (unit > 0) fetch(unit - 1);
    };
    float* maybe_parts =
        g.dmix == nullptr ? nullptr : g.parts + static_cast<std::int64_t>(row) * shape.tiles * shape.tiles;
    for (int square = group; square < squares; square += kGroups) {
      const bool last = kAtOnce || square + kGroups >= squares;
      Accumulator dk = {}, dv = {};
      const auto release_last = [&](int unit) {
        if (last) release(unit);
      };
      if constexpr (kAtOnce) {
        sum_half_squares(table, panels, square, shape.tiles, maybe_parts, dk, dv, release_last);
      } else {
        sum_squares(table, panels, square, shape.tiles, maybe_parts, dk, dv, release_last);
      }
      const WarpRows out{table, square * 4 + thread_here() / 32 % 4};
      const int own = out.tile * 16 * kPanelRowBytes;
      const float one[2] = {1.0f, 1.0f};
      uint4 x[WarpRows::kCount];
      if (kEarly && g.dk.data != nullptr) {
        work.enter(anew(row));
        out.load(x, S::map(p), p.k.at(work.batch, work.head), p.k.token, D);
      }
      if (last) fetch(squares - 1);
      work.enter(anew(row));
      warpgroup_barrier(group);  // nobody reads these keys and values any more
      if (g.dv.data != nullptr) {
        out.write<false>(dv, one, panels.v + own, g.dv.at(work.batch, work.head), g.dv.token, E, S::map(p), x);
      }
      if (g.dk.data != nullptr) {
        if (!kEarly) out.load(x, S::map(p), p.k.at(work.batch, work.head), p.k.token, D);
        out.write<true>(dk, one, panels.k + own, g.dk.at(work.batch, work.head), g.dk.token, D, S::map(p), x);
      }
      if (kAtOnce) break;
    }
    if (group >= squares) {  // has no keys
#pragma unroll 1
      for (int unit = 0; unit < squares; ++unit) release(unit);
      fetch(squares - 1);
    }
    copy_commit();
  }
  copy_wait<0>();
}

}  // namespace mhla::sm90
