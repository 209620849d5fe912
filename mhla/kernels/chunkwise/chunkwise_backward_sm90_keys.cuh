// dk and dv of the causal form on warpgroups, and the diagonal of dmix (chunkwise_backward_sm80.cuh has the equations,
// chunkwise_backward_sm90_plan.h the plan). A block of threads takes neighbouring tiles of keys; dS of a chunk stays in
// shared memory for all of its tiles.
#pragma once

#include "mhla/kernels/chunkwise/chunkwise_backward_sm90_tiles.cuh"

namespace mhla::sm90 {

template <class S, int kParts>
struct KeyGradientTiles {
  static constexpr KeyGradientPlan kPlan = {S::kRows / 4, kParts};
  static constexpr int kPanels = kPlan.panels, kColumns = kPlan.columns();
  static_assert(kPlan.bytes() <= kMaxSharedBytes);
  static_assert(kPlan.kCopyRegisters + kPlan.kKeyRegisters + kPlan.kValueRegisters <= 504);
  using Stages = Ring<KeyGradientPlan::kStages>;
  using KeyStages = Ring<KeyGradientPlan::kKeyStages>;
  using SummaryStages = Ring<kPlan.columns()>;  // 64 columns of dS each
};

// Keys see queries from themselves on: x[s][t] = f(x, w and c of t) where they do, 0 elsewhere. `limit`: queries that
// exist from this tile's first one on.
template <class F>
__device__ inline void weigh_pairs(const Arguments& p, Accumulator& x, int own, bool on_diagonal, int limit,
                                   const char* weights, const F& f) {
  const int lane = threadIdx.x % 32, place = lane % 4 * 2, end = limit - place, begin = on_diagonal ? own - place : -64;
  const bool all = !on_diagonal && limit >= 64;
  const auto weigh = [&](auto weights_of) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float4 wc = weights_of(j * 8);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int t = j * 8 + c % 2;
        const float y = f(x[j][c], c % 2 ? wc.z : wc.x, c % 2 ? wc.w : wc.y);
        x[j][c] = all || (t - c / 2 * 8 >= begin && t < end) ? y : 0.0f;
      }
    }
  };
  if (p.normalized) {  // of a query and the next
    weigh([&](int t) { return *reinterpret_cast<const float4*>(weights + (t + place) * 8); });
  } else {
    weigh([&](int) { return float4{p.scale, 0.0f, p.scale, 0.0f}; });
  }
}

template <class S, int kParts>
__device__ inline void copy_key_tiles(const Arguments& p, const Gradients& g, const ChunkWalk<false>& all,
                                      std::uint32_t base) {
  using T = KeyGradientTiles<S, kParts>;
  constexpr KeyGradientPlan kPlan = T::kPlan;
  const typename T::Stages ring{base + kPlan.rings_at()};
  const typename T::KeyStages key_ring{ring.barriers + T::Stages::kBytes};
  const Ring<1> value_ring{key_ring.barriers + T::KeyStages::kBytes};
  const typename T::SummaryStages summary_ring{value_ring.barriers + Ring<1>::kBytes};
  RingPlace<KeyGradientPlan::kStages> at;
  RingPlace<KeyGradientPlan::kKeyStages> key_at;
  RingPlace<1> value_at;
  RingPlace<T::kColumns> summary_at;
  const int D = S::D(p), E = S::E(p), t = static_cast<int>(threadIdx.x);
  const bool mapped = S::map(p) != FeatureMap::kIdentity;
  LineMover mover;
  all.each(p, [&](const Unit& u, const Chunk& chunk, int row, int index, int tile, bool begin, bool) {
    const int size = chunk.size, first = tile * 64;
    const bool fresh = tile == 0 || begin;
    if (first >= size) return;
    mover.find(chunk, first);
    key_ring.wait_empty(key_at);
    mover.copy<T::kPanels>(u.k(p), p.k.token, D, base + kPlan.keys_at() + key_at.stage * kPlan.key_bytes());
    key_ring.copied(key_at);
    key_at.next();
    value_ring.wait_empty(value_at);
    mover.copy_parts<T::kPanels, kParts>(u.v(p), p.v.token, E, base + kPlan.values_at());
    value_ring.copied(value_at);
    value_at.next();
    for (int h = 0; h < p.group; ++h) {
      const int head = u.head * p.group + h;
      const Bf16 *q = p.q.at(u.batch, head), *dout = g.dout.at(u.batch, head);
      const float2* weights =
          g.weights + (static_cast<std::int64_t>(u.batch) * p.Hkv * p.group + head) * p.N + chunk.origin;
      for (int from = first; from < size; from += 64, at.next()) {
        mover.find(chunk, from);
        ring.wait_empty(at);
        const std::uint32_t stage = base + at.stage * kPlan.stage_bytes();
        mover.copy<T::kPanels>(q, p.q.token, D, stage);
        if (mapped) copy_commit();
        mover.copy_parts<T::kPanels, kParts>(dout, g.dout.token, E, stage + kPlan.key_bytes());
        if (p.normalized && t < 64) {
          const bool valid = from + t < size;
          copy8(base + kPlan.weights_at() + (at.stage * 64 + t) * 8, valid ? weights + from + t : weights, valid);
        }
        if (mapped) {  // the other stage is in use, so there is nothing to ask for meanwhile
          copy_commit();
          copy_wait<1>();
          mover.map<T::kPanels>(S::map(p), D, stage);
          copy_wait<0>();
          ring.written(at);
        } else {
          ring.copied(at);
        }
        if (fresh && h == 0 && from == first) {  // needed after all pairs: the first of them go before it
          const std::int64_t X = static_cast<std::int64_t>(D) * E + D;
          const Bf16* summary = p.mixed + (static_cast<std::int64_t>(row) * kParts * p.M + index) * X;
          for (int column = 0; column < T::kColumns; ++column, summary_at.next()) {
            const int part = column / T::kPanels;
            summary_ring.wait_empty(summary_at);
            copy_summary_columns<T::kPanels>(summary + part * p.M * X, D, E, column % T::kPanels * 64,
                                             base + kPlan.summary_at() + column * kPlan.key_bytes());
            if (p.normalized && column == 0) copy_z_rows<T::kPanels, 1>(summary, D, E, base + kPlan.z_at());
            summary_ring.copied(summary_at);
          }
        }
      }
    }
  });
  copy_commit();
  copy_wait<0>();
}

// Products with dS, 64 columns at a time as they arrive: multiply(column). Columns are given back as they are done
// where this is the last tile of its chunk; the other tiles find them there.
template <int kColumns, int kCount, class F>
__device__ inline void take_summary(const Ring<kColumns>& ring, RingPlace<kColumns>& at, bool fresh, bool last,
                                    Accumulator (&acc)[kCount], const F& multiply) {
  begin_products(acc);
#pragma unroll
  for (int column = 0; column < kColumns; ++column) {
    if (fresh) ring.wait_full({column, at.parity});
    publish_shared();
    warpgroup_begin();
    multiply(column);
    warpgroup_commit();
    if (column > 0) {
      warpgroup_wait<1>();
      if (last) ring.release({column - 1, at.parity});
    }
  }
  finish_products(acc);
  if (last) ring.release({kColumns - 1, at.parity}), at.parity ^= 1;
}

template <class S, int kParts>
__global__ void __launch_bounds__(KeyGradientPlan::kThreads, 1)
    panel_key_value_gradient_kernel(Arguments p, Gradients g, int tiles) {
  using T = KeyGradientTiles<S, kParts>;
  constexpr KeyGradientPlan kPlan = T::kPlan;
  constexpr int kPanels = T::kPanels, kColumns = T::kColumns, kPanel16 = kPanelBytes / 16;
  extern __shared__ __align__(1024) char memory[];  // [2] q, dout; [2] k; v; dS, dz; [2] w and c; sums; vote; rings
  char* const shared = memory;
  const std::uint32_t base = shared_address(shared);
  const typename T::Stages ring{base + kPlan.rings_at()};
  const typename T::KeyStages key_ring{ring.barriers + T::Stages::kBytes};
  const Ring<1> value_ring{key_ring.barriers + T::KeyStages::kBytes};
  const typename T::SummaryStages summary_ring{value_ring.barriers + Ring<1>::kBytes};
  const int group = warpgroup_index(), D = S::D(p), E = S::E(p);
  Vote vote{{base + kPlan.vote_at()}};
  static_assert(Vote::kBytes == KeyGradientPlan::kVoteBytes && kPlan.vote_at() % 16 == 0);
  if (threadIdx.x == 0) ring.init(8), key_ring.init(8), value_ring.init(4), summary_ring.init(8), vote.init();
  publish_shared();
  __syncthreads();
  after_previous();
  allow_next();
  const ChunkWalk<false> all(p, tiles);
  if (group == 0) {
    keep_registers<KeyGradientPlan::kCopyRegisters>();
    return copy_key_tiles<S, kParts>(p, g, all, base);
  }
  RingPlace<KeyGradientPlan::kStages> at;
  RingPlace<KeyGradientPlan::kKeyStages> key_at;
  RingPlace<1> value_at;
  RingPlace<T::kColumns> summary_at;
  const int lane = threadIdx.x % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4, own = warp * 16 + lane / 4,
            voter = (group - 1) * 4 + warp;
  const std::uint64_t summary = panel_descriptor(base + kPlan.summary_at());
  const auto arrive = [&] {
    ring.wait_full(at);
    publish_shared();  // copies were ordinary writes
  };
  const auto weights = [&] { return shared + kPlan.weights_at() + at.stage * 64 * 8; };
  if (group == 1) {
    take_registers<KeyGradientPlan::kKeyRegisters>();
    all.each(p, [&](const Unit& u, const Chunk& chunk, int row, int index, int tile, bool begin, bool end) {
      const int size = chunk.size, first = tile * 64;
      const bool fresh = tile == 0 || begin, last = end || first + 64 >= size;
      float* const d_mix_at = g.maybe_diagonal +
                              (static_cast<std::int64_t>(p.first_unit / p.parts + row) * p.M + index) * g.diagonals +
                              tile;
      if (first >= size) {
        if (g.dmix != nullptr && threadIdx.x % kGroupThreads == 0) *d_mix_at = 0;
        return;
      }
      const float m = p.diagonal(u.head * p.group, index);  // the heads of a group share mix
      std::uint32_t v[4 * kColumns][4];
      value_ring.wait_full(value_at);
      load_panel_rows<kColumns>(v, base + kPlan.values_at());
      value_ring.release(value_at);
      value_at.next();
      Accumulator acc[kPanels] = {};
      for (int h = 0; h < p.group; ++h) {
        for (int from = first; from < size; from += 64, at.next()) {
          const char* const stage = shared + at.stage * kPlan.stage_bytes();
          const std::uint64_t q = panel_descriptor(shared_address(stage)),
                              dout = panel_descriptor(shared_address(stage) + kPlan.key_bytes());
          const bool on_diagonal = from == first;
          arrive();
          Accumulator x[1] = {};
          begin_products(x);
#pragma unroll
          for (int step = 0; step < 4 * kColumns; ++step) {
            multiply_panel_columns(x[0], v[step], dout + step / 4 * kPanel16 + step % 4 * kNextColumns, step > 0);
          }
          finish_products(x);
          const bool finite = !on_diagonal || finite_sums(x[0]);
          weigh_pairs(p, x[0], own, on_diagonal, size - from, weights(),
                      [](float y, float w, float c) { return w * (y + c); });
          std::uint32_t a[4][4];
          square_fragments(x[0], a);
          // Zero times NaN is NaN, and no key may see an earlier query.
          if (on_diagonal && !vote.all_hold(voter, finite)) {
            add_unusual<kPanels, true>(acc, a, stage, warp * 16);
            warpgroup_barrier(group);
            make_finite<kPlan.key_bytes()>(shared + at.stage * kPlan.stage_bytes());
            publish_shared();
            warpgroup_barrier(group);
          }
          begin_products(acc);
#pragma unroll
          for (int step = 0; step < 4; ++step) {
#pragma unroll
            for (int panel = 0; panel < kPanels; ++panel) {
              multiply_panel_rows(acc[panel], a[step], q + panel * kPanel16 + step * kNextRows);
            }
          }
          finish_products(acc);
          ring.release(at);
        }
      }
      key_ring.wait_full(key_at);
      const char* const k = shared + kPlan.keys_at() + key_at.stage * kPlan.key_bytes();
      std::uint32_t keys[4 * kPanels][4];
      load_panel_rows<kPanels>(keys, shared_address(k));
      map_rows<kPanels>(keys, S::map(p), D);
      float sums[4] = {};  // of d_mix: places of lanes, halves
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const float2 y = unpack_bf16(keys[panel * 4 + j / 2][j % 2 * 2 + half]);
            float &low = acc[panel][j][2 * half], &high = acc[panel][j][2 * half + 1];
            sums[half * 2] = fmaf(y.x, low, sums[half * 2]), sums[half * 2 + 1] = fmaf(y.y, high, sums[half * 2 + 1]);
            low *= m, high *= m;
          }
        }
      }
      float d_mix = first + own < size ? sums[0] + sums[1] : 0.0f;
      if (first + own + 8 < size) d_mix += sums[2] + sums[3];
      if (p.normalized) {
        if (fresh) summary_ring.wait_full(summary_at);
        const char* const z = shared + kPlan.z_at() + lane % 4 * 4;
#pragma unroll
        for (int panel = 0; panel < kPanels; ++panel) {
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            const float2 y = unpack_bf16(*reinterpret_cast<const std::uint32_t*>(z + panel * kPanelRowBytes + j * 16));
            float(&c)[4] = acc[panel][j];
            c[0] += y.x, c[1] += y.y, c[2] += y.x, c[3] += y.y;
          }
        }
      }
      take_summary<T::kColumns>(summary_ring, summary_at, fresh, last, acc, [&](int column) {
#pragma unroll
        for (int step = 0; step < 4; ++step) {
#pragma unroll
          for (int panel = 0; panel < kPanels; ++panel) {
            multiply_panel_columns(acc[panel], v[column * 4 + step],
                                   summary + (column * kPanels + panel) * kPanel16 + step * kNextColumns, true);
          }
        }
      });
      if (g.dk.data != nullptr) {
        Bf16* const dk = g.dk.at(u.batch, u.head) + (chunk.origin + first + own) * g.dk.token;
#pragma unroll
        for (int panel = 0; panel < kPanels; ++panel) {
          const int column = panel * 64, X = min(64, D - column);
          write_panel_row<0, true>(acc[panel], 1.0f, first + own < size, dk + column, X, S::map(p),
                                   k + panel * kPanelBytes, own);
          write_panel_row<1, true>(acc[panel], 1.0f, first + own + 8 < size, dk + 8 * g.dk.token + column, X, S::map(p),
                                   k + panel * kPanelBytes, own + 8);
        }
      }
      key_ring.release(key_at);
      key_at.next();
      if (g.dmix == nullptr) return;
      for (int away = 16; away > 0; away /= 2) d_mix += __shfl_down_sync(0xffffffffu, d_mix, away);
      auto* const shares = reinterpret_cast<float*>(shared + kPlan.sums_at());
      if (lane == 0) shares[warp] = d_mix;
      warpgroup_barrier(group);
      if (threadIdx.x % kGroupThreads == 0) *d_mix_at = shares[0] + shares[1] + shares[2] + shares[3];
      warpgroup_barrier(group);
    });
    return;
  }
  take_registers<KeyGradientPlan::kValueRegisters>();
  all.each(p, [&](const Unit& u, const Chunk& chunk, int, int index, int tile, bool begin, bool end) {
    const int size = chunk.size, first = tile * 64;
    const bool fresh = tile == 0 || begin, last = end || first + 64 >= size;
    if (first >= size) return;
    const float m = p.diagonal(u.head * p.group, index);
    std::uint32_t k[4 * kPanels][4];
    key_ring.wait_full(key_at);
    load_panel_rows<kPanels>(k, base + kPlan.keys_at() + key_at.stage * kPlan.key_bytes());
    key_ring.release(key_at);
    key_at.next();
    map_rows<kPanels>(k, S::map(p), D);
    Accumulator acc[kColumns] = {};
    for (int h = 0; h < p.group; ++h) {
      for (int from = first; from < size; from += 64, at.next()) {
        const char* const stage = shared + at.stage * kPlan.stage_bytes();
        const std::uint64_t q = panel_descriptor(shared_address(stage)),
                            dout = panel_descriptor(shared_address(stage) + kPlan.key_bytes());
        const bool on_diagonal = from == first;
        arrive();
        Accumulator scores[1] = {};
        begin_products(scores);
#pragma unroll
        for (int step = 0; step < 4 * kPanels; ++step) {
          multiply_panel_columns(scores[0], k[step], q + step / 4 * kPanel16 + step % 4 * kNextColumns, step > 0);
        }
        finish_products(scores);
        const bool finite = !on_diagonal || finite_sums(scores[0]);
        weigh_pairs(p, scores[0], own, on_diagonal, size - from, weights(),
                    [m](float y, float w, float) { return m * w * y; });
        std::uint32_t a[4][4];
        square_fragments(scores[0], a);
        if (on_diagonal && !vote.all_hold(voter, finite)) {
          add_unusual<kColumns, true>(acc, a, stage + kPlan.key_bytes(), warp * 16);
          warpgroup_barrier(group);
          make_finite<kPlan.value_bytes()>(shared + at.stage * kPlan.stage_bytes() + kPlan.key_bytes());
          publish_shared();
          warpgroup_barrier(group);
        }
        begin_products(acc);
#pragma unroll
        for (int step = 0; step < 4; ++step) {
#pragma unroll
          for (int panel = 0; panel < kColumns; ++panel) {
            multiply_panel_rows(acc[panel], a[step], dout + panel * kPanel16 + step * kNextRows);
          }
        }
        finish_products(acc);
        ring.release(at);
      }
    }
    take_summary<T::kColumns>(summary_ring, summary_at, fresh, last, acc, [&](int column) {
#pragma unroll
      for (int step = 0; step < 4 * kPanels; ++step) {
        multiply_panel_rows(acc[column], k[step], summary + column * kPanels * kPanel16 + step * kNextRows);
      }
    });
    if (g.dv.data == nullptr) return;
    Bf16* const dv = g.dv.at(u.batch, u.head) + (chunk.origin + first + own) * g.dv.token;
#pragma unroll
    for (int panel = 0; panel < kColumns; ++panel) {
      const int within = panel % kPanels * 64, X = min(64, E - within), column = panel / kPanels * E + within;
      write_panel_row<0>(acc[panel], 1.0f, first + own < size, dv + column, X);
      write_panel_row<1>(acc[panel], 1.0f, first + own + 8 < size, dv + 8 * g.dv.token + column, X);
    }
  });
}

template <class S, int kParts>
void launch_key_value_tiles(const Arguments& a, const Gradients& g, std::int64_t heads, int tiles,
                            cudaStream_t stream) {
  constexpr KeyGradientPlan kPlan = KeyGradientTiles<S, kParts>::kPlan;
  const auto kernel = panel_key_value_gradient_kernel<S, kParts>;
  const unsigned blocks = blocks_for(kernel, KeyGradientPlan::kThreads, kPlan.bytes(), heads * a.M * tiles);
  launch_next("sm90 panel_key_value_gradient_kernel", kernel, blocks, KeyGradientPlan::kThreads, kPlan.bytes(), stream,
              a, g, tiles);
}

}  // namespace mhla::sm90
