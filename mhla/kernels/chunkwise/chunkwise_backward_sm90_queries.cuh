// dq of the causal form on warpgroups, with a normaliser and without (chunkwise_backward_sm80.cuh has the equations,
// chunkwise_backward_sm90_plan.h the plan). A block of threads takes neighbouring tiles of queries, one or two at a
// time.
#pragma once

#include "mhla/kernels/chunkwise/chunkwise_backward_sm90_tiles.cuh"

namespace mhla::sm90 {

template <class S, int kParts, int kReaders_>
struct GradientTiles {
  static constexpr int kReaders = kReaders_;
  static constexpr QueryGradientPlan kPlan = {S::kRows / 4, kParts, kReaders};
  static constexpr int kPanels = kPlan.panels, kColumns = kPlan.columns(), kSlots = kPlan.slots();
  static_assert(kPlan.bytes() <= kMaxSharedBytes && kPlan.blocks() * (kPlan.bytes() + 1024) <= kAllSharedBytes);
};

template <class S, int kParts, int kReaders>
__device__ inline void copy_query_tiles(const Arguments& p, const Gradients& g, const ChunkWalk<true>& all,
                                        std::uint32_t base) {
  using T = GradientTiles<S, kParts, kReaders>;
  constexpr QueryGradientPlan kPlan = T::kPlan;
  const Ring<T::kSlots> ring{base + kPlan.rings_at()};
  const Ring<1> own_ring{ring.barriers + Ring<T::kSlots>::kBytes};
  RingPlace<T::kSlots> at;
  RingPlace<1> own_at;
  const int D = S::D(p), E = S::E(p);
  const bool mapped = S::map(p) != FeatureMap::kIdentity;
  LineMover mover;
  all.each(p, [&](const Unit& u, const Chunk& chunk, int row, int index, int item, bool, bool) {
    const int size = chunk.size, first = item * kReaders * 64, local = row / p.group,
              head = u.head * p.group + row % p.group;
    if (first >= size) return;
    const Bf16* dout = g.dout.at(u.batch, head);
    own_ring.wait_empty(own_at);
#pragma unroll
    for (int reader = 0; reader < kReaders; ++reader) {
      mover.find(chunk, first + reader * 64);
      mover.copy_parts<T::kPanels, kParts>(dout, g.dout.token, E, base + kPlan.own_at() + reader * kPlan.own_bytes());
    }
    own_ring.copied(own_at);
    own_at.next();
    if (index > 0) {
      const std::int64_t X = static_cast<std::int64_t>(D) * E + D;
      const Bf16* prefix = p.query_sums + (static_cast<std::int64_t>(local) * kParts * p.M + index) * X;
      for (int panel = 0; panel < T::kColumns; ++panel, at.next()) {
        const int part = panel / T::kPanels, column = panel % T::kPanels * 64;
        ring.wait_empty(at);
        copy_summary_columns<T::kPanels>(prefix + part * p.M * X, D, E, column, base + at.stage * kPlan.slot_bytes());
        ring.copied(at);
      }
    }
    const int end = min(size, first + kReaders * 64);
    for (int from = 0; from < end; from += 64) {  // k comes first: it goes through the map while v is on its way
      const auto key_at = at;
      const std::uint32_t keys = base + key_at.stage * kPlan.slot_bytes();
      mover.find(chunk, from);
      ring.wait_empty(at);
      mover.copy<T::kPanels>(u.k(p), p.k.token, D, keys);
      if (mapped)
        copy_commit();
      else
        ring.copied(at);
      at.next();
#pragma unroll
      for (int part = 0; part < kParts; ++part, at.next()) {
        ring.wait_empty(at);
        mover.copy<T::kPanels>(u.v(p) + part * E, p.v.token, E, base + at.stage * kPlan.slot_bytes());
        ring.copied(at);
      }
      if (!mapped) continue;
      copy_commit();
      copy_wait<1>();
      mover.map<T::kPanels>(S::map(p), D, keys);
      ring.written(key_at);
    }
  });
  copy_commit();
  copy_wait<0>();
}

// dq = w (a + c b) of the two rows of this lane, in `acc`, from a and sum_{s <= t} k~_s in `sums`; w and c.
template <class S, int kHalf, int kPanels>
__device__ inline float2 normalized_row(const Arguments& p, Accumulator (&acc)[kPanels],
                                        const Accumulator (&sums)[kPanels], float m, const Bf16* q,
                                        const Bf16* maybe_z) {
  float den = 0, dot = 0;
  const auto b = [&](int panel, int j) {  // two of its columns
    const int d = panel * 64 + j * 8;
    const float2 z = maybe_z == nullptr ? float2{0.0f, 0.0f}
                                        : unpack_bf16(__ldcg(reinterpret_cast<const std::uint32_t*>(maybe_z + d)));
    const float* sum = sums[panel][j] + 2 * kHalf;
    return float2{fmaf(m, sum[0], z.x), fmaf(m, sum[1], z.y)};
  };
#pragma unroll
  for (int panel = 0; panel < kPanels; ++panel) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (panel * 64 + j * 8 >= S::D(p)) break;
      const auto raw = *reinterpret_cast<const std::uint32_t*>(q + panel * 64 + j * 8);
      const float2 x = unpack_bf16(feature_pair(S::map(p), raw)), y = b(panel, j);
      const float* a = acc[panel][j] + 2 * kHalf;
      den = fmaf(x.x, y.x, fmaf(x.y, y.y, den));
      dot = fmaf(x.x, a[0], fmaf(x.y, a[1], dot));
    }
  }
  const float total = p.eps + quad_sum(den), c = -quad_sum(dot) / total;
#pragma unroll
  for (int panel = 0; panel < kPanels; ++panel) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (panel * 64 + j * 8 >= S::D(p)) break;
      const float2 y = b(panel, j);
      float* a = acc[panel][j] + 2 * kHalf;
      a[0] = fmaf(c, y.x, a[0]), a[1] = fmaf(c, y.y, a[1]);
    }
  }
  return {p.scale / total, c};
}

template <class S, int kParts, int kReaders, bool kNormalized>
__global__ void __launch_bounds__((1 + kReaders) * kGroupThreads, kReaders == 1 ? 2 : 1)
    panel_query_gradient_kernel(Arguments p, Gradients g, int tiles) {
  using T = GradientTiles<S, kParts, kReaders>;
  constexpr QueryGradientPlan kPlan = T::kPlan;
  constexpr int kPanels = T::kPanels, kColumns = T::kColumns, kPanel16 = kPanelBytes / 16;
  extern __shared__ __align__(1024) char memory[];  // [kSlots] P, v, k; [kReaders] dout; rings
  char* const shared = memory;
  const std::uint32_t base = shared_address(shared);
  const Ring<T::kSlots> ring{base + kPlan.rings_at()};
  const Ring<1> own_ring{ring.barriers + Ring<T::kSlots>::kBytes};
  const int group = warpgroup_index(), D = S::D(p);
  if (threadIdx.x == 0) ring.init(kReaders * 4), own_ring.init(kReaders * 4);
  publish_shared();
  __syncthreads();
  after_previous();
  allow_next();
  const ChunkWalk<true> all(p, (tiles + kReaders - 1) / kReaders);
  if (group == 0) {
    keep_registers<QueryGradientPlan::kCopyRegisters>();
    return copy_query_tiles<S, kParts, kReaders>(p, g, all, base);
  }
  take_registers<kPlan.reader_registers()>();
  RingPlace<T::kSlots> at;
  RingPlace<1> own_at;
  const int lane = threadIdx.x % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4, own = warp * 16 + lane / 4;
  const auto slot = [&] { return panel_descriptor(base + at.stage * kPlan.slot_bytes()); };
  const auto release = [&] {
    ring.release(at);
    at.next();
  };
  all.each(p, [&](const Unit& u, const Chunk& chunk, int row, int index, int item, bool, bool) {
    const int size = chunk.size, first_of_all = item * kReaders * 64, first = first_of_all + (group - 1) * 64,
              head = u.head * p.group + row % p.group;
    if (first_of_all >= size) return;
    const int end = min(size, first_of_all + kReaders * 64);
    const bool here = first < size;  // the last tiles of a chunk may be fewer than readers
    const float m = p.diagonal(head, index);
    std::uint32_t dout[kNormalized ? 1 : 4 * kColumns][4];
    const std::uint32_t own_tile = base + kPlan.own_at() + (group - 1) * kPlan.own_bytes();
    own_ring.wait_full(own_at);
    if constexpr (!kNormalized) {
      load_panel_rows<kColumns>(dout, own_tile);
      own_ring.release(own_at);
      own_at.next();
    }
    const auto times_dout = [&](Accumulator& sums, int step, std::uint64_t right, bool add) {  // over 16 columns
      if constexpr (kNormalized) {
        multiply_panels(sums, panel_descriptor(own_tile) + step / 4 * kPanel16 + step % 4 * kNextColumns, right, add);
      } else {
        multiply_panel_columns(sums, dout[step], right, add);
      }
    };
    Accumulator keys_before[kNormalized ? kPanels : 1] = {};  // sum_{s <= t} k~_s
    Accumulator acc[kPanels] = {};
    if (index > 0) {
#pragma unroll
      for (int column = 0; column < kColumns; ++column) {
        ring.wait_full(at);
        publish_shared();  // copies were ordinary writes
        const std::uint64_t prefix = slot();
        begin_products(acc);
#pragma unroll
        for (int step = 0; step < 4; ++step) {
#pragma unroll
          for (int panel = 0; panel < kPanels; ++panel) {
            times_dout(acc[panel], column * 4 + step, prefix + panel * kPanel16 + step * kNextColumns, true);
          }
        }
        finish_products(acc);
        release();
      }
    }
    for (int from = 0; from < end; from += 64) {
      const bool used = here && from <= first, on_diagonal = from == first;
      const auto key_at = at;
      char* const keys = shared + at.stage * kPlan.slot_bytes();
      const std::uint64_t k = slot();
      at.next();
      Accumulator x[1] = {};
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        ring.wait_full(at);
        if (used) {
          publish_shared();
          const std::uint64_t v = slot();
          begin_products(x);
#pragma unroll
          for (int step = 0; step < 4 * kPanels; ++step) {
            times_dout(x[0], part * 4 * kPanels + step, v + step / 4 * kPanel16 + step % 4 * kNextColumns,
                       part + step > 0);
          }
          finish_products(x);
        }
        release();
      }
      ring.wait_full(key_at);
      publish_shared();
      std::uint32_t a[4][4];
      const int last = on_diagonal ? own - lane % 4 * 2 : 64;  // key that the upper query of this lane sees
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int c = 0; c < 4; ++c) x[0][j][c] = j * 8 + c % 2 - c / 2 * 8 <= last ? m * x[0][j][c] : 0.0f;
      }
      square_fragments(x[0], a);
      std::uint32_t seen[kNormalized ? 4 : 1][4];  // 1 where a query sees a key
      if constexpr (kNormalized) {
#pragma unroll
        for (int step = 0; step < 4; ++step) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int query = own + i % 2 * 8, key = step * 16 + i / 2 * 8 + lane % 4 * 2;
            seen[step][i] =
                (!on_diagonal || key <= query ? 0x3f80u : 0u) | (!on_diagonal || key + 1 <= query ? 0x3f800000u : 0u);
          }
        }
      }
      const auto multiply = [&] {
        begin_products(acc);
        if constexpr (kNormalized) begin_products(keys_before);
#pragma unroll
        for (int step = 0; step < 4; ++step) {
#pragma unroll
          for (int panel = 0; panel < kPanels; ++panel) {
            const std::uint64_t rows = k + panel * kPanel16 + step * kNextRows;
            multiply_panel_rows(acc[panel], a[step], rows);
            if constexpr (kNormalized) multiply_panel_rows(keys_before[panel], seen[step], rows);
          }
        }
        finish_products(acc);
        if constexpr (kNormalized) finish_products(keys_before);
      };
      // Zero times NaN is NaN, and no query may see a later token. A tile may be that of the diagonal of one reader
      // while another one needs all of it: that one goes first.
      bool usual = true;
      if (from + 64 > first_of_all) {
        bool finite = true;
        if (used && on_diagonal)
          each_panel_word<kPlan.slot_bytes()>(keys, [&](const uint4& y) { finite = finite && finite_words(y); });
        usual = all_hold(kReadersBarrier, kReaders * kGroupThreads, finite);
      }
      if (used && (usual || !on_diagonal)) multiply();
      if (!usual) {
        if (on_diagonal && used) {
          add_unusual<kPanels, false>(acc, a, keys, warp * 16);
          if constexpr (kNormalized) add_unusual<kPanels, false>(keys_before, seen, keys, warp * 16);
        }
        readers_barrier<kReaders>();
        if (on_diagonal && used) {
          make_finite<kPlan.slot_bytes()>(keys);
          publish_shared();
          warpgroup_barrier(group);
          multiply();
        }
      }
      ring.release(key_at);
    }
    if constexpr (kNormalized) {
      own_ring.release(own_at);
      own_at.next();
    }
    if (!here) return;
    const bool valid[2] = {first + own < size, first + own + 8 < size};
    const std::int64_t token = chunk.origin + first + own;
    const Bf16* const q = p.q.at(u.batch, head) + token * p.q.token;
    float2 wc[2] = {{p.scale, 0.0f}, {p.scale, 0.0f}};
    if constexpr (kNormalized) {
      const std::int64_t X = static_cast<std::int64_t>(D) * S::E(p) + D;
      const Bf16* const maybe_z =
          index == 0 ? nullptr
                     : p.query_sums + (static_cast<std::int64_t>(row / p.group) * kParts * p.M + index + 1) * X - D +
                           lane % 4 * 2;
      const Bf16* const mine = q + lane % 4 * 2;  // rows past the end: whatever row is there
      wc[0] = normalized_row<S, 0>(p, acc, keys_before, m, valid[0] ? mine : mine - own * p.q.token, maybe_z);
      wc[1] = normalized_row<S, 1>(p, acc, keys_before, m, valid[1] ? mine + 8 * p.q.token : mine - own * p.q.token,
                                   maybe_z);
    }
    if (lane % 4 == 0) {
      float2* const weights = g.weights + (static_cast<std::int64_t>(u.batch) * p.Hkv * p.group + head) * p.N + token;
      if (valid[0]) weights[0] = wc[0];
      if (valid[1]) weights[8] = wc[1];
    }
    if (g.dq.data == nullptr) return;
    Bf16* const dq = g.dq.at(u.batch, head) + token * g.dq.token;
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      const int column = panel * 64, X = min(64, D - column);
      write_slope_row<0>(acc[panel], wc[0].x, valid[0], dq + column, X, S::map(p), q + column);
      write_slope_row<1>(acc[panel], wc[1].x, valid[1], dq + 8 * g.dq.token + column, X, S::map(p),
                         q + 8 * p.q.token + column);
    }
  });
}

template <class S, int kParts, int kReaders, bool kNormalized>
void launch_query_tiles(const Arguments& a, const Gradients& g, std::int64_t heads, int tiles, cudaStream_t stream) {
  constexpr QueryGradientPlan kPlan = GradientTiles<S, kParts, kReaders>::kPlan;
  const auto kernel = panel_query_gradient_kernel<S, kParts, kReaders, kNormalized>;
  const unsigned blocks =
      blocks_for(kernel, kPlan.threads(), kPlan.bytes(), heads * a.group * a.M * ((tiles + kReaders - 1) / kReaders));
  launch_next("sm90 panel_query_gradient_kernel", kernel, blocks, kPlan.threads(), kPlan.bytes(), stream, a, g, tiles);
}

template <bool kNormalized>
void launch_queries_on_panels(const Arguments& a, const Gradients& g, std::int64_t heads, int tiles,
                              cudaStream_t stream) {
  const auto launch = [&](auto spec, auto parts) {
    using S = decltype(spec);
    constexpr int kParts = parts;
    tiles > 1 ? launch_query_tiles<S, kParts, 2, kNormalized>(a, g, heads, tiles, stream)
              : launch_query_tiles<S, kParts, 1, kNormalized>(a, g, heads, tiles, stream);
  };
  with_panel_spec<!kNormalized>(a, [&](auto spec) {  // the identity known to the compiler only without a normaliser
    if constexpr (decltype(spec)::kRows == 8) {
      if (a.parts == 2) return launch(spec, std::integral_constant<int, 2>{});
    }
    launch(spec, std::integral_constant<int, 1>{});
  });
}

}  // namespace mhla::sm90
