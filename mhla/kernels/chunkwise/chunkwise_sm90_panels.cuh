// The output of the causal form on warpgroups, for heads whose tiles fill panels. A block of threads takes chunks: one
// warpgroup copies the prefix of a chunk once, then for every tile of 64 queries the keys and values up to it; the
// other one multiplies. Two blocks share a multiprocessor, so that one computes while the other waits.
#pragma once

#include "mhla/kernels/common/cuda/sm90_ring.cuh"

namespace mhla::sm90 {

template <class S>
struct CausalTiles {
  static constexpr int kPanels = S::kRows / 4, kStages = 2, kThreads = 2 * kGroupThreads, kBlocks = 2;
  static constexpr int kTile = kPanels * kPanelBytes, kStage = 2 * kTile;  // of k or v; of both
  static constexpr int kZ = kPanels * kPanels * kPanelBytes;
  static constexpr int kQueriesAt = kStages * kStage, kPrefixAt = kQueriesAt + kTile,
                       kRingAt = kPrefixAt + kZ + kPanels * kPanelRowBytes,
                       kQueryRingAt = kRingAt + Ring<kStages>::kBytes, kPrefixRingAt = kQueryRingAt + Ring<1>::kBytes;
  static constexpr int kBytes = kPrefixRingAt + Ring<1>::kBytes;
  static constexpr bool kMoveRegisters = kPanels == 2;
  static_assert(kBytes <= kMaxSharedBytes && kBlocks * (kBytes + 1024) <= kAllSharedBytes);
};

// acc += a v for the values of a diagonal tile that are infinite or NaN, where a query sees them. `query`: the place of
// this warp's first query in the tile.
template <int kPanels>
__device__ inline void add_unusual(Accumulator (&acc)[kPanels], const std::uint32_t (&a)[4][4], const char* v,
                                   int query) {
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int pair = 0; pair < 4; ++pair) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // row lane / 4 + i % 2 * 8, keys i / 2 * 8 + 2 pair and the next
        const float2 weight = unpack_bf16(__shfl_sync(0xffffffffu, a[step][i], (lane & ~3) + pair));
#pragma unroll 1
        for (int next = 0; next < 2; ++next) {
          const int t = query + lane / 4 + i % 2 * 8, s = step * 16 + i / 2 * 8 + pair * 2 + next;
          if (s > t) continue;
          const float x = next ? weight.y : weight.x;
#pragma unroll
          for (int panel = 0; panel < kPanels; ++panel) {
#pragma unroll
            for (int j = 0; j < 8; ++j) {
              const float2 y = unpack_bf16(
                  *reinterpret_cast<const std::uint32_t*>(v + panel * kPanelBytes + panel_offset(s, j) + lane % 4 * 4));
              float(&c)[4] = acc[panel][j];
              if (!isfinite(y.x)) c[i % 2 * 2] = fmaf(x, y.x, c[i % 2 * 2]);
              if (!isfinite(y.y)) c[i % 2 * 2 + 1] = fmaf(x, y.y, c[i % 2 * 2 + 1]);
            }
          }
        }
      }
    }
  }
}

template <class S>
__global__ void __launch_bounds__(CausalTiles<S>::kThreads, CausalTiles<S>::kBlocks) panel_causal_kernel(Arguments p) {
  using T = CausalTiles<S>;
  extern __shared__ __align__(1024) char memory[];  // [kStages] k, v; q; P, p; rings
  char* const shared = memory;
  const std::uint32_t base = shared_address(shared);
  const Ring<T::kStages> ring{base + T::kRingAt};
  const Ring<1> query_ring{base + T::kQueryRingAt}, prefix_ring{base + T::kPrefixRingAt};
  const int items = p.units * p.group * p.M, group = warpgroup_index(), D = S::D(p), E = S::E(p);
  if (threadIdx.x == 0) ring.init(4), query_ring.init(4), prefix_ring.init(4);
  publish_shared();
  __syncthreads();
  RingPlace<T::kStages> at;
  RingPlace<1> query_at, prefix_at;
  if (group == 0) {
    if constexpr (T::kMoveRegisters) keep_registers<56>();
    TileMover mover;
    bool waited = false;
    for (int i = blockIdx.x; i < items; i += gridDim.x) {
      const int row = i / p.M, index = i - row * p.M, unit = row / p.group;
      const Unit u(p, p.first_unit + unit);
      const BlockTokens block = u.block(p, index);
      const int size = static_cast<int>(block.size);
      const Bf16 *q = p.q.at(u.batch, u.head * p.group + row % p.group), *k = u.k(p), *v = u.v(p);
      const auto bring_prefix = [&] {
        if (!waited) after_previous(), allow_next(), waited = true;
        if (index == 0) return;
        prefix_ring.wait_empty(prefix_at);
        const Bf16* from = p.mixed + (static_cast<std::int64_t>(unit) * p.M + index) * (D * E + D);
        copy_summary_panels<T::kPanels>(from, D, E, base + T::kPrefixAt);
        copy_z_rows<T::kPanels, 1>(from, D, E, base + T::kPrefixAt + T::kZ);
        prefix_ring.copied(prefix_at);
        prefix_at.next();
      };
      for (int first = 0; first < size; first += 64) {
        mover.find(block, first);
        query_ring.wait_empty(query_at);
        mover.copy<T::kPanels>(q, p.q.token, D, base + T::kQueriesAt);
        query_ring.copied(query_at);
        query_at.next();
        if (first == 0 && waited) bring_prefix();
        for (int j = 0; j <= first; j += 64, at.next()) {
          mover.find(block, j);
          ring.wait_empty(at);
          mover.copy<T::kPanels>(k, p.k.token, D, base + at.stage * T::kStage);
          mover.copy<T::kPanels>(v, p.v.token, E, base + at.stage * T::kStage + T::kTile);
          ring.copied(at);
        }
        // Queries, keys and values come from before the kernels of this pass: the first travel while those still run.
        if (!waited) bring_prefix();
      }
    }
    copy_commit();
    copy_wait<0>();
  } else {
    if constexpr (T::kMoveRegisters) take_registers<200>();
    const int lane = threadIdx.x % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4, own = warp * 16 + lane / 4;
    const std::uint64_t prefix = panel_descriptor(base + T::kPrefixAt);
    const char* const z = shared + T::kPrefixAt + T::kZ;
    for (int i = blockIdx.x; i < items; i += gridDim.x) {
      const int row = i / p.M, index = i - row * p.M;
      const Unit u(p, p.first_unit + row / p.group);
      const int head = u.head * p.group + row % p.group;
      const BlockTokens block = u.block(p, index);
      const int last = static_cast<int>(block.size) - 1;
      const float diagonal = p.diagonal(head, index);
      for (int first = 0; first <= last; first += 64) {
        std::uint32_t q[4 * T::kPanels][4];
        query_ring.wait_full(query_at);
        load_panel_rows<T::kPanels>(q, base + T::kQueriesAt);
        query_ring.release(query_at);
        query_at.next();
#pragma unroll
        for (int step = 0; step < 4 * T::kPanels; ++step) {
          feature_fragment(S::map(p), q[step]);
          // Not every map is 0 at 0, and the keys go through it with their empty columns, too.
          if (step * 16 >= S::D(p)) q[step][0] = q[step][1] = 0;
          if (step * 16 + 8 >= S::D(p)) q[step][2] = q[step][3] = 0;
        }
        Accumulator acc[T::kPanels] = {};
        float den[2] = {};  // this lane's share of those of its two rows
        if (index > 0) {
          if (first == 0) prefix_ring.wait_full(prefix_at), publish_shared();  // copies were ordinary writes
          begin_products(acc);
#pragma unroll
          for (int step = 0; step < 4 * T::kPanels; ++step) {
#pragma unroll
            for (int panel = 0; panel < T::kPanels; ++panel) {
              multiply_panel_rows(acc[panel], q[step],
                                  prefix + panel * T::kPanels * (kPanelBytes / 16) + step * kNextRows);
            }
          }
          finish_products(acc);
          if (p.normalized) {
#pragma unroll
            for (int step = 0; step < 4 * T::kPanels; ++step) {
#pragma unroll
              for (int c = 0; c < 4; ++c) {  // row c % 2 * 8, columns c / 2 * 8 and the next
                const float2 x = unpack_bf16(q[step][c]), y = unpack_bf16(*reinterpret_cast<const std::uint32_t*>(
                                                              z + step * 32 + c / 2 * 16 + lane % 4 * 4));
                den[c % 2] = fmaf(x.x, y.x, fmaf(x.y, y.y, den[c % 2]));
              }
            }
          }
          if (first + 64 > last) prefix_ring.release(prefix_at), prefix_at.next();
        }
        for (int j = 0; j <= first; j += 64, at.next()) {
          char* const keys = shared + at.stage * T::kStage;
          char* const values = keys + T::kTile;
          const std::uint64_t k = panel_descriptor(shared_address(keys)), v = panel_descriptor(shared_address(values));
          const bool mapped = S::map(p) != FeatureMap::kIdentity, on_diagonal = j == first;
          ring.wait_full(at);
          if (mapped) {
            each_panel_word<T::kTile>(keys, [&](uint4& x) {
              x.x = feature_pair(S::map(p), x.x), x.y = feature_pair(S::map(p), x.y);
              x.z = feature_pair(S::map(p), x.z), x.w = feature_pair(S::map(p), x.w);
            });
          }
          publish_shared();
          if (mapped) warpgroup_barrier(1);
          Accumulator scores[1] = {};
          begin_products(scores);
#pragma unroll
          for (int step = 0; step < 4 * T::kPanels; ++step) {
            multiply_panel_columns(scores[0], q[step], k + step / 4 * (kPanelBytes / 16) + step % 4 * kNextColumns,
                                   step > 0);
          }
          finish_products(scores);
#pragma unroll
          for (int tile = 0; tile < 8; ++tile) {
#pragma unroll
            for (int c = 0; c < 4; ++c) {
              const int key = tile * 8 + lane % 4 * 2 + c % 2, query = own + c / 2 * 8;
              float& s = scores[0][tile][c];
              s = !on_diagonal || key <= query ? s * diagonal : 0.0f;
              den[c / 2] += s;
            }
          }
          std::uint32_t a[4][4];
          square_fragments(scores[0], a);
          if (on_diagonal) {  // zero times NaN is NaN, and no query may see a later token
            bool finite = true;
            each_panel_word<T::kTile>(values, [&](const uint4& x) { finite = finite && finite_words(x); });
            if (!all_hold(2, kGroupThreads, finite)) {
              add_unusual<T::kPanels>(acc, a, values, warp * 16);
              warpgroup_barrier(1);
              make_finite<T::kTile>(values);
              publish_shared();
              warpgroup_barrier(1);
            }
          }
          begin_products(acc);
#pragma unroll
          for (int step = 0; step < 4; ++step) {
#pragma unroll
            for (int panel = 0; panel < T::kPanels; ++panel) {
              multiply_panel_rows(acc[panel], a[step], v + panel * (kPanelBytes / 16) + step * kNextRows);
            }
          }
          finish_products(acc);
          ring.release(at);
        }
        const int place = first + own;
        const float factors[2] = {output_factor(p, quad_sum(den[0])), output_factor(p, quad_sum(den[1]))};
        Bf16* const out = u.out(p, head) + block.origin * p.out.token;
#pragma unroll
        for (int panel = 0; panel < T::kPanels; ++panel) {
          const int column = panel * 64, X = min(64, E - column);
          write_panel_row<0>(acc[panel], factors[0], place <= last, out + place * p.out.token + column, X);
          write_panel_row<1>(acc[panel], factors[1], place + 8 <= last, out + (place + 8) * p.out.token + column, X);
        }
      }
    }
  }
}

}  // namespace mhla::sm90
