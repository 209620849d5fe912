// Outputs of chunks of more than 64 tokens: out = scale (q~ P_i + sum_j (m_ii (q~ k~_j^T) below the diagonal) v_j) /
// den of 64 queries, all columns. Scores of the next tile of keys are made while the product with the values of this
// one runs, and scores of the first tile before that with the prefix.
#pragma once

#include "mhla/kernels/chunkwise/chunkwise_sm90_outputs.cuh"
#include "mhla/kernels/common/cuda/sm90_meeting.cuh"
#include "mhla/kernels/common/cuda/warpgroup_wide.cuh"

namespace mhla::sm90 {

// acc += a v for the values of a diagonal tile that are infinite or NaN, where a query sees them. `query`: the place of
// this warp's first query in the tile.
template <int kPanels>
__device__ inline void add_unusual(WideSums<64 * kPanels>& acc, const std::uint32_t (&a)[4][4], std::uint32_t v,
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
          for (int j = 0; j < 8 * kPanels; ++j) {
            const float2 y = unpack_bf16(shared_word(v + j / 8 * kPanelBytes + panel_offset(s, j % 8) + lane % 4 * 4));
            float(&c)[4] = acc[j];
            if (!isfinite(y.x)) c[i % 2 * 2] = fmaf(x, y.x, c[i % 2 * 2]);
            if (!isfinite(y.y)) c[i % 2 * 2 + 1] = fmaf(x, y.y, c[i % 2 * 2 + 1]);
          }
        }
      }
    }
  }
}

// scores *= m_ii, 0 for keys after a query where the diagonal is. den: this lane's share of those of its two rows.
template <bool kOnDiagonal>
__device__ inline void mask_scores(Accumulator& scores, float diagonal, bool normalized, float (&den)[2]) {
  const int lane = threadIdx.x % 32, own = static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4;
#pragma unroll
  for (int tile = 0; tile < 8; ++tile) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const bool seen = !kOnDiagonal || tile * 8 + lane % 4 * 2 + c % 2 <= own + c / 2 * 8;
      scores[tile][c] = seen ? scores[tile][c] * diagonal : 0.0f;
    }
  }
  if (!normalized) return;
#pragma unroll
  for (int tile = 0; tile < 8; ++tile) {
#pragma unroll
    for (int c = 0; c < 4; ++c) den[c / 2] += scores[tile][c];
  }
}

// den += q~ p: a lane takes every fourth piece of 8 of its two rows.
template <class T>
__device__ inline void add_prefix_den(const OutputShared<T>& s, int group, int D, float (&den)[2]) {
  const int lane = threadIdx.x % 32, own = static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4;
#pragma unroll 1
  for (int c = lane % 4; c * 8 < D; c += 4) {
    const uint4 z = shared_words(s.base + T::kZAt + c * 16);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 q = shared_words(s.queries(group) + c / 8 * T::kPanel + panel_offset(own + half * 8, c % 8));
      const std::uint32_t x[4] = {q.x, q.y, q.z, q.w}, y[4] = {z.x, z.y, z.z, z.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 left = unpack_bf16(x[i]), right = unpack_bf16(y[i]);
        den[half] = fmaf(left.x, right.x, fmaf(left.y, right.y, den[half]));
      }
    }
  }
}

// phi of a tile of q in place, by a warpgroup. Empty columns become 0: not every map is 0 at 0, and the keys go through
// it with their empty columns, too.
template <class T>
__device__ inline void map_queries(std::uint32_t queries, int D, FeatureMap map) {
  constexpr int kAtOnce = 4, kStep = kGroupThreads * 16;
#pragma unroll 1
  for (int first = static_cast<int>(threadIdx.x) % kGroupThreads * 16; first < T::kTile; first += kAtOnce * kStep) {
    uint4 x[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) x[i] = shared_words(queries + first + i * kStep);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = first + i * kStep, row = at % T::kPanel / kPanelRowBytes,
                column = at / T::kPanel * 64 + (at / 16 % 8 ^ row % 8) * 8;
      set_words(queries + at, column < D ? feature_words(map, x[i]) : uint4{});
    }
  }
}

// A tile of v with 0 instead of infinity and NaN, by a warpgroup.
template <class T>
__device__ inline void make_values_finite(std::uint32_t values) {
#pragma unroll 1
  for (int at = static_cast<int>(threadIdx.x) % kGroupThreads * 16; at < T::kValues; at += kGroupThreads * 16) {
    const uint4 x = shared_words(values + at);
    set_words(values + at, {finite_pair(x.x), finite_pair(x.y), finite_pair(x.z), finite_pair(x.w)});
  }
}

template <class T>
__device__ inline void output_role(const OutputArguments& arguments, const OutputShared<T>& s, int group) {
  const Arguments& p = arguments.p;
  const int lane = threadIdx.x % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4, own = warp * 16 + lane / 4;
  const int items = output_items(p);
  const bool mapped = p.map != FeatureMap::kIdentity;
  const int key_there = mapped ? T::kKeyReady : T::kKeyCopied;
  const std::uint64_t queries = panel_descriptor(s.queries(group)),
                      prefix = wide_descriptor(s.base + T::kPrefixAt, T::kPrefixPanel);
  RingPlace<T::kKeyStages> key_at;
  RingPlace<T::kValueStages> value_at;
  RingPlace<1> query_at, prefix_at;
  Meeting meeting{s.barrier(T::kUnusualMeeting)};
  int turn = 0;

  const auto free_key = [&] { warp_done(s.barrier(T::kKeyFree, key_at.stage)), key_at.next(); };
  const auto free_value = [&] { warp_done(s.barrier(T::kValueFree, value_at.stage)), value_at.next(); };
  const auto pass_over = [&](int tiles) {  // of keys and values that the other warpgroup needs
#pragma unroll 1
    for (int j = 0; j < tiles; ++j) {
      barrier_wait(s.barrier(key_there, key_at.stage), key_at.parity);
      free_key();
      barrier_wait(s.barrier(T::kValueCopied, value_at.stage), value_at.parity);
      free_value();
    }
  };
  const auto unusual = [&](int stage) {  // known to be the same in a warp
    const uint2 found = shared_pair(s.unusual(stage));
    return __any_sync(0xffffffffu, (found.x | found.y) != 0);
  };

#pragma unroll 1
  for (int i = blockIdx.x; i < items; i += gridDim.x) {
    const OutputItem item(p, i);
    const float diagonal = p.diagonal(item.head, item.index);
    const bool prefixed = item.index > 0;
    const int pairs = output_pairs(item.tiles);
#pragma unroll 1
    for (int pair = 0; pair < pairs; ++pair, ++turn) {
      const int tile = output_tile(pair, group, turn), loads = output_loads(pair, item.tiles);
      const bool last_pair = pair + 1 == pairs;
      if (prefixed && pair == 0 && tile >= item.tiles) barrier_wait(s.barrier(T::kPrefixCopied), prefix_at.parity);
      if (tile >= item.tiles) {
        if (prefixed) warp_done(s.barrier(T::kPrefixFree)), prefix_at.next();
        pass_over(loads);
        continue;
      }
      barrier_wait(s.barrier(T::kQueryCopied, group), query_at.parity);
      query_at.next();
      if (mapped) {
        with_map(p.map, [&](auto map) { map_queries<T>(s.queries(group), p.D, map); });
        publish_shared();
        warpgroup_barrier(2 + group);
      }
      Accumulator scores;
      WideSums<T::kPartColumns> acc[T::kParts] = {};
      float den[2] = {};
      const auto multiply_keys = [&] {
        barrier_wait(s.barrier(key_there, key_at.stage), key_at.parity);
        const std::uint64_t keys = panel_descriptor(s.keys(key_at.stage));
        warpgroup_begin();
#pragma unroll
        for (int step = 0; step < 4 * T::kPanels; ++step) {
          const std::uint64_t at = step / 4 * (kPanelBytes / 16) + step % 4 * kNextColumns;
          multiply_panels(scores, queries + at, keys + at, step > 0);
        }
        warpgroup_commit();
      };
      const auto free_scored = [&](int j) {  // the tile of keys, and q behind the last one: the first may need it still
        free_key();
        if (j > 0 && j == tile) warp_done(s.barrier(T::kQueryFree, group));
      };
      const auto settle = [&] {
#pragma unroll
        for (int part = 0; part < T::kParts; ++part) settle_sums(acc[part]);
      };
      const auto multiply_values = [&](const std::uint32_t(&a)[4][4]) {
        const std::uint64_t values = wide_descriptor(s.values(value_at.stage), T::kPanel);
        warpgroup_begin();
#pragma unroll
        for (int step = 0; step < 4; ++step) {
#pragma unroll
          for (int part = 0; part < T::kParts; ++part) {
            multiply_fragments_by_rows(acc[part], a[step],
                                       values + part * T::kPanels * (T::kPanel / 16) + step * kNextRows, true);
          }
        }
        warpgroup_commit();
      };
      const auto finish_before = [&](int j) {  // the product before values j: with the prefix, or with other values
        warpgroup_wait<0>();
        settle();
        if (tile == 0) warp_done(s.barrier(T::kQueryFree, group));
        if (j > 0) {
          // The other tile has its diagonal there, and waits before it changes what is unusual.
          if (j - 1 == 2 * pair) {
            barrier_wait(s.barrier(T::kValueChecked, value_at.stage), value_at.parity);
            if (unusual(value_at.stage)) meeting.meet();
          }
          free_value();
        } else if (prefixed && last_pair) {
          warp_done(s.barrier(T::kPrefixFree)), prefix_at.next();
        }
      };
      settle();
      multiply_keys();
      if (prefixed) {
        if (pair == 0) barrier_wait(s.barrier(T::kPrefixCopied), prefix_at.parity);
        warpgroup_begin();
#pragma unroll
        for (int step = 0; step < 4 * T::kPanels; ++step) {
          const std::uint64_t q = queries + step / 4 * (kPanelBytes / 16) + step % 4 * kNextColumns;
#pragma unroll
          for (int part = 0; part < T::kParts; ++part) {
            multiply_panel_by_rows(acc[part], q, prefix + part * T::kPanels * (T::kPrefixPanel / 16) + step * kNextRows,
                                   true);
          }
        }
        warpgroup_commit();
        if (p.normalized) add_prefix_den<T>(s, group, p.D, den);
        warpgroup_wait<1>();
      } else {
        warpgroup_wait<0>();
      }
      settle_sums(scores);
      free_scored(0);
#pragma unroll 1
      for (int j = 0; j < tile; ++j) {
        mask_scores<false>(scores, diagonal, p.normalized, den);
        finish_before(j);
        std::uint32_t a[4][4];
        square_fragments(scores, a);
        multiply_keys();  // of the next tile
        barrier_wait(s.barrier(T::kValueCopied, value_at.stage), value_at.parity);
        multiply_values(a);
        warpgroup_wait<1>();
        settle_sums(scores);
        free_scored(j + 1);
      }
      mask_scores<true>(scores, diagonal, p.normalized, den);
      finish_before(tile);
      std::uint32_t a[4][4];
      square_fragments(scores, a);
      barrier_wait(s.barrier(T::kValueCopied, value_at.stage), value_at.parity);
      barrier_wait(s.barrier(T::kValueChecked, value_at.stage), value_at.parity);
      if (unusual(value_at.stage)) {  // zero times NaN is NaN, and no query may see a later token
        if (loads > tile + 1) meeting.meet();
#pragma unroll
        for (int part = 0; part < T::kParts; ++part) {
          add_unusual<T::kPanels>(acc[part], a, s.values(value_at.stage) + part * T::kPanels * T::kPanel, warp * 16);
        }
        warpgroup_barrier(2 + group);
        make_values_finite<T>(s.values(value_at.stage));
        publish_shared();
        warpgroup_barrier(2 + group);
      }
      multiply_values(a);
      warpgroup_wait<0>();
      settle();
      free_value();
      pass_over(loads - tile - 1);
      const int place = tile * kOutputTokens + own, last = static_cast<int>(item.block.size) - 1;
      const float factors[2] = {output_factor(p, quad_sum(den[0])), output_factor(p, quad_sum(den[1]))};
      Bf16* const out = item.u.out(p, item.head) + (item.block.origin + place) * p.out.token;
#pragma unroll
      for (int panel = 0; panel < T::kValuePanels; ++panel) {
        const int in_part = panel % T::kPanels * 64, column = panel / T::kPanels * p.E + in_part,
                  X = min(64, p.E - in_part);
        const Accumulator& sums =
            *reinterpret_cast<const Accumulator*>(&acc[panel / T::kPanels][panel % T::kPanels * 8]);
        write_panel_row<0>(sums, factors[0], place <= last, out + column, X);
        write_panel_row<1>(sums, factors[1], place + 8 <= last, out + 8 * p.out.token + column, X);
      }
    }
  }
}

}  // namespace mhla::sm90
