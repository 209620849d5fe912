// Backward over all pairs of tokens, as bidirectional_backward_sm90_short.cuh, where every query head has its own keys.
// A block of threads takes heads one after the other and fetches the next one while it works. Each head is computed
// by one block, so the bits do not depend on how many there are. Shared memory holds six panels of 256 rows. For the
// n-th head of a block:
//   slot of the ring of four   n: q    n + 1: dout    n + 2: the next dout    n + 3: k
//   slot of the ring of two    n: v    n + 1: the next v
// The next head arrives while the keys are summed, 64 rows at a time: k and q take the slots of q and dout as soon as
// all warpgroups are done with these rows, so that only the last 64 rows arrive after the sums.
#pragma once

#include "mhla/kernels/bidirectional/bidirectional_backward_sm90_head_sums.cuh"

namespace mhla::sm90 {

// One warpgroup for every 64 tokens there may be, with 128 registers a thread.
inline constexpr int kHeadThreads = kMaxSquares * 128;

constexpr int head_shared_bytes() { return kPanelAlign + 6 * ShortPanels::kBytes + static_cast<int>(sizeof(HeadSums)); }

// Of 8 values, those where relu is flat, as bits: the first of pair i is bit i, the second is bit 4 + i.
__device__ inline std::uint32_t flat_bits(const uint4& x) {
  const auto flat = [](std::uint32_t pair) {
    return __hle2_mask(*reinterpret_cast<__nv_bfloat162*>(&pair), __float2bfloat162_rn(0.0f));
  };
  const std::uint32_t bits = flat(x.x) & 0x10001u | flat(x.y) & 0x20002u | flat(x.z) & 0x40004u | flat(x.w) & 0x80008u;
  return bits | bits >> 12;
}
// Zeros there.
__device__ inline void clear_flat(uint4& y, std::uint32_t bits) {
  const std::uint32_t pairs = bits | bits << 12;
  const auto cleared = [&](std::uint32_t pair, int i) { return pair & ~((pairs >> i & 0x10001u) * 0xffffu); };
  y = {cleared(y.x, 0), cleared(y.y, 1), cleared(y.z, 2), cleared(y.w, 3)};
}

// What a thread moves of every 64 rows: one piece.
struct PieceMover {
  static_assert(kHeadThreads == 64 * 8);
  const PairTable& table;

  // Rows 64 unit to 64 unit + 63, zeros in columns past X and where there is no token.
  __device__ void copy(const Bf16* x, std::int64_t stride, int X, char* panel, int unit) const {
    const int thread = thread_here(), row = unit * 64 + thread / 8, c = thread % 8;
    const int token = table.tokens[row];
    const bool there = token >= 0 && c * 8 < X;
    copy16(shared_address(panel) + panel_offset(row, c), x + (there ? token * stride + c * 8 : 0), there);
  }
  // phi of what this thread copied itself, in place. The slope of relu is kept as bits.
  __device__ void map(FeatureMap map, int X, char* panel, int units, FlatBits& flat) const {
    const int thread = thread_here(), c = thread % 8;
    if (map == FeatureMap::kIdentity || c * 8 >= X) return;
#pragma unroll
    for (int unit = 0; unit < kMaxSquares; ++unit) {
      if (unit >= units) break;
      const int row = unit * 64 + thread / 8;
      auto* at = reinterpret_cast<uint4*>(panel + panel_offset(row, c));
      uint4 y = *at;
      if (map != FeatureMap::kElu1) flat[row][c] = static_cast<std::uint8_t>(flat_bits(y));
      y.x = feature_pair(map, y.x), y.y = feature_pair(map, y.y);
      y.z = feature_pair(map, y.z), y.w = feature_pair(map, y.w);
      if (table.tokens[row] >= 0) *at = y;
    }
  }
};

// What the gradient of q or k goes through: bits where they tell all, otherwise the raw values [token][D].
struct Slopes {
  FeatureMap map;
  const FlatBits& flat;
  const Bf16* raw;
  std::int64_t stride;

  __device__ void apply(uint4& y, int row, int token, int c, bool there) const {
    if (map == FeatureMap::kIdentity) return;
    if (map != FeatureMap::kElu1) return clear_flat(y, flat[row][c]);
    if (!there) return;
    const uint4 x = *reinterpret_cast<const uint4*>(raw + token * stride + c * 8);
    y = {through_slope(map, x.x, y.x), through_slope(map, x.y, y.y), through_slope(map, x.z, y.z),
         through_slope(map, x.w, y.w)};
  }
};

// The 16 rows of a warp, X values each, times `factors`, to the tokens of its tile: through 16 rows of a panel that are
// this warp's own, so that lines are written whole.
__device__ inline void write_warp_rows(const Accumulator& acc, const float (&factors)[2], const PairTable& table,
                                       int tile, char* panel, Bf16* to, std::int64_t stride, int X,
                                       const Slopes* slopes) {
  const int lane = thread_here() % 32, c = lane % 8;
#pragma unroll
  for (int j = 0; j < 8; j += 2) {
    std::uint32_t y[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float(&sums)[4] = acc[j + i / 2];
      y[i] = pack_bf16(sums[i % 2 * 2] * factors[i % 2], sums[i % 2 * 2 + 1] * factors[i % 2]);
    }
    store_matrices(shared_address(panel + panel_offset(tile * 16 + lane % 16, j + lane / 16)), y[0], y[1], y[2], y[3]);
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = tile * 16 + i * 4 + lane / 8, token = table.tokens[row];
    const bool there = token >= 0 && c * 8 < X;
    uint4 y = *reinterpret_cast<const uint4*>(panel + panel_offset(row, c));
    if (slopes != nullptr) slopes->apply(y, row, token, c, there);
    store16_where(there, to + token * stride + c * 8, y);
  }
  __syncwarp();
}

// The 64 queries of a warpgroup: w and c to the table, dq to memory.
template <class S>
__device__ inline void head_queries(const Arguments& p, const Gradients& g, const PairHead& work,
                                    const HeadPanels& panels, HeadSums& sums, int square, int parity) {
  PairTable& table = sums.table;
  const int tiles = work.shape.tiles, own = square * 4 + thread_here() / 32 % 4, lane = thread_here() % 32;
  Accumulator acc = {};
  sum_queries(panels, sums, square, tiles, parity, acc);
  const TileRows mine(table, own, tiles);
  const float* z = sums.mixed[own] + lane % 4 * 2;
  float w[2], c[2];
  float den[2] = {}, dot[2] = {};
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float2 zz = *reinterpret_cast<const float2*>(z + j * 8);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 q = unpack_bf16(*reinterpret_cast<const std::uint32_t*>(
          panels.q + panel_offset(own * 16 + lane / 4 + half * 8, j) + lane % 4 * 4));
      den[half] = fmaf(q.x, zz.x, fmaf(q.y, zz.y, den[half]));
      dot[half] = fmaf(q.x, acc[j][2 * half], fmaf(q.y, acc[j][2 * half + 1], dot[half]));
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float total = p.eps + quad_sum(den[half]), sum = quad_sum(dot[half]);
    w[half] = !mine.valid[half] ? 0.0f : p.normalized ? p.scale / total : p.scale;
    c[half] = mine.valid[half] && p.normalized ? -sum / total : 0.0f;
    if (lane % 4 == 0) table.weights[own * 16 + lane / 4 + half * 8] = {w[half], c[half]};
  }
  warp_arrive(shared_address(&sums.weighed));
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
  const Slopes slopes{S::map(p), sums.q_flat, p.q.at(work.batch, work.head), p.q.token};
  write_warp_rows(acc, w, table, own, panels.next_dout, g.dq.at(work.batch, work.head), g.dq.token, S::D(p), &slopes);
}

// dq, dk, dv and parts of dmix [B H][tiles][tiles], where p.group is 1.
template <class S>
__global__ void __launch_bounds__(kHeadThreads, 1)
    head_gradient_kernel(Arguments p, Gradients g, PairShape shape, int heads) {
  after_previous();
  extern __shared__ char unaligned[];
  char* shared = aligned_panels(unaligned);
  auto& sums = *reinterpret_cast<HeadSums*>(shared + 6 * ShortPanels::kBytes);
  PairHead work(p, shape, reinterpret_cast<char*>(&sums.table));
  const PairTable& table = sums.table;
  const int D = S::D(p), E = S::E(p), squares = panel_rows(shape.tiles) / 64, square = warpgroup_index();
  __builtin_assume(square >= 0 && square < kMaxSquares);
  const std::uint32_t done = shared_address(sums.done);
  if (threadIdx.x == 0) {
    for (int j = 0; j < kMaxSquares; ++j) barrier_init(done + j * 8, kHeadThreads / 32 * kWarpArrivals);
    barrier_init(shared_address(&sums.summed), squares * 4 * kWarpArrivals);
    barrier_init(shared_address(&sums.weighed), squares * 4 * kWarpArrivals);
  }
  work.fill_tokens();
  if (threadIdx.x == 0) {
    sums.whole = true;
    for (int j = 0; j < squares; ++j) sums.whole = sums.whole && whole_square(table, j);
  }
  const PieceMover mover{table};
  work.enter(static_cast<int>(blockIdx.x));
  if (!p.mix_head) work.fill_mix(0);
  const auto copy_rest = [&](char* dout, char* k, char* q, int unit) {
    mover.copy(g.dout.at(work.batch, work.head), g.dout.token, E, dout, unit);
    mover.copy(p.k.at(work.batch, work.head), p.k.token, D, k, unit);
    mover.copy(p.q.at(work.batch, work.head), p.q.token, D, q, unit);
  };
  {
    const HeadPanels panels(shared, 0);
#pragma unroll 1
    for (int unit = 0; unit < squares; ++unit) {
      mover.copy(p.v.at(work.batch, work.head), p.v.token, E, panels.v, unit);
      copy_rest(panels.dout, panels.k, panels.q, unit);
    }
    copy_commit();
  }
  int n = 0;
  for (int row = blockIdx.x; row < heads; row += gridDim.x, ++n) {
    const HeadPanels panels(shared, n);
    work.enter(row);
    if (p.mix_head) work.fill_mix(work.head);
    copy_wait<0>();
    mover.map(S::map(p), D, panels.k, squares, sums.k_flat[n % 2]);
    mover.map(S::map(p), D, panels.q, squares, sums.q_flat);
    publish_shared();
    __syncthreads();  // all of this head is there, and nobody is at the one before
    const int next = row + static_cast<int>(gridDim.x);
    const auto fetch_values = [&](int unit) {
      if (next >= heads) return;
      work.enter(anew(next));
      mover.copy(p.v.at(work.batch, work.head), p.v.token, E, HeadPanels(shared, anew(n)).next_v, unit);
    };
    const auto fetch_rest = [&](int unit) {  // when all are done with these rows of q and dout
      barrier_wait(done + unit * 8, n % 2);
      if (next >= heads) return;
      work.enter(anew(next));
      const HeadPanels here(shared, anew(n));
      copy_rest(here.next_dout, here.q, here.dout, unit);
    };
    const auto release = [&](int unit) { warp_arrive(done + unit * 8); };
    if (square < squares) {
      head_queries<S>(p, g, work, panels, sums, square, n % 2);
      float* maybe_parts =
          g.dmix == nullptr ? nullptr : g.parts + static_cast<std::int64_t>(row) * shape.tiles * shape.tiles;
      const auto copy = [&](int half) {  // others may be a square behind before anyone waits
        if (half % 2 == 0) {
          fetch_values(half / 2);
        } else if (half > 1) {
          fetch_rest(half / 2 - 1);
        }
      };
      Accumulator dk = {}, dv = {};
      sum_squares(sums, panels, square, shape.tiles, n % 2, maybe_parts, dk, dv, copy, release);
      warpgroup_barrier(square);  // nobody reads these keys and values any more
      const int own = square * 4 + thread_here() / 32 % 4;
      const HeadPanels here(shared, anew(n));
      const float one[2] = {1.0f, 1.0f};
      work.enter(anew(row));
      if (g.dv.data != nullptr) {
        write_warp_rows(dv, one, table, own, here.v, g.dv.at(work.batch, work.head), g.dv.token, E, nullptr);
      }
      fetch_rest(squares - 1);
      work.enter(anew(row));
      if (g.dk.data != nullptr) {
        const Slopes slopes{S::map(p), sums.k_flat[anew(n) % 2], p.k.at(work.batch, work.head), p.k.token};
        write_warp_rows(dk, one, table, own, here.k, g.dk.at(work.batch, work.head), g.dk.token, D, &slopes);
      }
    } else {  // only helps to fetch
#pragma unroll 1
      for (int unit = 0; unit < squares; ++unit) {
        release(unit);
        fetch_values(unit);
        fetch_rest(unit);
      }
    }
    copy_commit();
  }
  copy_wait<0>();
}

}  // namespace mhla::sm90
