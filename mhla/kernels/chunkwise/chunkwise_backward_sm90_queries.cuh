// dq of the causal form without a normaliser on warpgroups (chunkwise_backward_sm80.cuh has the equations,
// chunkwise_backward_sm90_plan.h the plan). A block of threads takes neighbouring tiles of queries, one or two at a
// time.
#pragma once

#include "mhla/kernels/chunkwise/chunkwise_backward_sm90_tiles.cuh"
#include "mhla/kernels/chunkwise/chunkwise_sm90_panels.cuh"

namespace mhla::sm90 {

template <class S, int kParts, int kReaders_>
struct FreeQueryTiles {
  static constexpr int kReaders = kReaders_;
  static constexpr QueryGradientPlan kPlan = {S::kRows / 4, kParts, kReaders};
  static constexpr int kPanels = kPlan.panels, kColumns = kPlan.columns(), kSlots = kPlan.slots();
  static_assert(kPlan.bytes() <= kMaxSharedBytes && kPlan.blocks() * (kPlan.bytes() + 1024) <= kAllSharedBytes);
};

// What the roles of a block of threads walk over alike: items [begin, end), kReaders tiles of queries of a chunk each.
template <int kReaders>
struct QueryTiles {
  int items, begin, end;  // items: of a chunk
  __device__ QueryTiles(const Arguments& p, int tiles) : items((tiles + kReaders - 1) / kReaders) {
    const std::int64_t all = std::int64_t{p.units / p.parts} * p.group * p.M * items;
    begin = static_cast<int>(all * blockIdx.x / gridDim.x), end = static_cast<int>(all * (blockIdx.x + 1) / gridDim.x);
  }
  // f(unit, query head, block, row of P, chunk, first token of the first tile) where there are tokens.
  template <class F>
  __device__ void each(const Arguments& p, const F& f) const {
    for (int i = begin; i < end; ++i) {
      const int chunk = i / items, row = chunk / p.M, index = chunk - row * p.M, local = row / p.group;
      const Unit u(p, p.first_unit + local * p.parts);
      const BlockTokens block = u.block(p, index);
      const int first = (i - chunk * items) * kReaders * 64;
      if (first < static_cast<int>(block.size)) f(u, u.head * p.group + row % p.group, block, local, index, first);
    }
  }
};

template <class S, int kParts, int kReaders>
__device__ inline void copy_query_tiles(const Arguments& p, const Gradients& g, const QueryTiles<kReaders>& all,
                                        std::uint32_t base) {
  using T = FreeQueryTiles<S, kParts, kReaders>;
  constexpr QueryGradientPlan kPlan = T::kPlan;
  const Ring<T::kSlots> ring{base + kPlan.rings_at()};
  const Ring<1> own_ring{ring.barriers + Ring<T::kSlots>::kBytes};
  RingPlace<T::kSlots> at;
  RingPlace<1> own_at;
  const int D = S::D(p), E = S::E(p);
  LineMover mover;
  all.each(p, [&](const Unit& u, int head, const BlockTokens& block, int local, int index, int first) {
    const int size = static_cast<int>(block.size);
    const Bf16* dout = g.dout.at(u.batch, head);
    own_ring.wait_empty(own_at);
#pragma unroll
    for (int reader = 0; reader < kReaders; ++reader) {
      mover.find(block, first + reader * 64);
      mover.copy_parts<T::kPanels, kParts>(dout, g.dout.token, E, base + kPlan.own_at() + reader * kPlan.own_bytes());
    }
    own_ring.copied(own_at);
    own_at.next();
    if (index > 0) {
      const std::int64_t X = static_cast<std::int64_t>(D) * E + D;
      const Bf16* prefix = p.mixed + (static_cast<std::int64_t>(local) * kParts * p.M + index) * X;
      for (int panel = 0; panel < T::kColumns; ++panel, at.next()) {
        const int part = panel / T::kPanels, column = panel % T::kPanels * 64;
        ring.wait_empty(at);
        copy_summary_columns<T::kPanels>(prefix + part * p.M * X, D, E, column, base + at.stage * kPlan.slot_bytes());
        ring.copied(at);
      }
    }
    const int end = min(size, first + kReaders * 64);
    for (int from = 0; from < end; from += 64) {
      mover.find(block, from);
#pragma unroll
      for (int part = 0; part < kParts; ++part, at.next()) {
        ring.wait_empty(at);
        mover.copy<T::kPanels>(u.v(p) + part * E, p.v.token, E, base + at.stage * kPlan.slot_bytes());
        ring.copied(at);
      }
      ring.wait_empty(at);
      mover.copy<T::kPanels>(u.k(p), p.k.token, D, base + at.stage * kPlan.slot_bytes());
      ring.copied(at);
      at.next();
    }
  });
  copy_commit();
  copy_wait<0>();
}

template <class S, int kParts, int kReaders>
__global__ void __launch_bounds__((1 + kReaders) * kGroupThreads, kReaders == 1 ? 2 : 1)
    panel_free_query_gradient_kernel(Arguments p, Gradients g, int tiles) {
  using T = FreeQueryTiles<S, kParts, kReaders>;
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
  const QueryTiles<kReaders> all(p, tiles);
  if (group == 0) {
    keep_registers<QueryGradientPlan::kCopyRegisters>();
    return copy_query_tiles<S, kParts, kReaders>(p, g, all, base);
  }
  take_registers<kPlan.reader_registers()>();
  RingPlace<T::kSlots> at;
  RingPlace<1> own_at;
  const int lane = threadIdx.x % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4, own = warp * 16 + lane / 4;
  const bool mapped = S::map(p) != FeatureMap::kIdentity;
  const auto slot = [&] { return panel_descriptor(base + at.stage * kPlan.slot_bytes()); };
  const auto release = [&] {
    ring.release(at);
    at.next();
  };
  all.each(p, [&](const Unit& u, int head, const BlockTokens& block, int, int index, int first_of_all) {
    const int size = static_cast<int>(block.size), first = first_of_all + (group - 1) * 64;
    const int end = min(size, first_of_all + kReaders * 64);
    const bool here = first < size;  // the last tiles of a chunk may be fewer than readers
    const float m = p.diagonal(head, index);
    std::uint32_t dout[4 * kColumns][4];
    own_ring.wait_full(own_at);
    load_panel_rows<kColumns>(dout, base + kPlan.own_at() + (group - 1) * kPlan.own_bytes());
    own_ring.release(own_at);
    own_at.next();
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
            multiply_panel_columns(acc[panel], dout[column * 4 + step], prefix + panel * kPanel16 + step * kNextColumns,
                                   true);
          }
        }
        finish_products(acc);
        release();
      }
    }
    for (int from = 0; from < end; from += 64) {
      const bool used = here && from <= first, on_diagonal = from == first;
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
            multiply_panel_columns(x[0], dout[part * 4 * kPanels + step],
                                   v + step / 4 * kPanel16 + step % 4 * kNextColumns, part + step > 0);
          }
          finish_products(x);
        }
        release();
      }
      char* const keys = shared + at.stage * kPlan.slot_bytes();
      const std::uint64_t k = slot();
      ring.wait_full(at);
      if (mapped) map_panels<kPanels, kReaders>(D, S::map(p), keys);
      publish_shared();
      if (mapped) readers_barrier<kReaders>();
      std::uint32_t a[4][4];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const bool seen = !on_diagonal || j * 8 + lane % 4 * 2 + c % 2 <= own + c / 2 * 8;
          x[0][j][c] = seen ? m * x[0][j][c] : 0.0f;
        }
      }
      square_fragments(x[0], a);
      const auto multiply = [&] {
        begin_products(acc);
#pragma unroll
        for (int step = 0; step < 4; ++step) {
#pragma unroll
          for (int panel = 0; panel < kPanels; ++panel) {
            multiply_panel_rows(acc[panel], a[step], k + panel * kPanel16 + step * kNextRows);
          }
        }
        finish_products(acc);
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
        if (on_diagonal && used) add_unusual<kPanels>(acc, a, keys, warp * 16);
        readers_barrier<kReaders>();
        if (on_diagonal && used) {
          make_finite<kPlan.slot_bytes()>(keys);
          publish_shared();
          warpgroup_barrier(group);
          multiply();
        }
      }
      release();
    }
    const bool valid[2] = {first + own < size, first + own + 8 < size};
    const std::int64_t token = block.origin + first + own;
    if (lane % 4 == 0) {
      float2* const weights = g.weights + (static_cast<std::int64_t>(u.batch) * p.Hkv * p.group + head) * p.N + token;
      if (valid[0]) weights[0] = {p.scale, 0.0f};
      if (valid[1]) weights[8] = {p.scale, 0.0f};
    }
    if (g.dq.data == nullptr || !here) return;
    Bf16* const dq = g.dq.at(u.batch, head) + token * g.dq.token;
    const Bf16* const q = p.q.at(u.batch, head) + token * p.q.token;
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      const int column = panel * 64, X = min(64, D - column);
      write_slope_row<0>(acc[panel], p.scale, valid[0], dq + column, X, S::map(p), q + column);
      write_slope_row<1>(acc[panel], p.scale, valid[1], dq + 8 * g.dq.token + column, X, S::map(p),
                         q + 8 * p.q.token + column);
    }
  });
}

template <class S, int kParts, int kReaders>
void launch_free_query_tiles(const Arguments& a, const Gradients& g, std::int64_t heads, int tiles,
                             cudaStream_t stream) {
  constexpr QueryGradientPlan kPlan = FreeQueryTiles<S, kParts, kReaders>::kPlan;
  const auto kernel = panel_free_query_gradient_kernel<S, kParts, kReaders>;
  const unsigned blocks =
      blocks_for(kernel, kPlan.threads(), kPlan.bytes(), heads * a.group * a.M * ((tiles + kReaders - 1) / kReaders));
  launch_next("sm90 panel_free_query_gradient_kernel", kernel, blocks, kPlan.threads(), kPlan.bytes(), stream, a, g,
              tiles);
}

}  // namespace mhla::sm90
