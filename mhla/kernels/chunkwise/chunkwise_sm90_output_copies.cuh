// The warps of the output kernel that bring tiles: one lane asks for k, one for v, one for q and P; and a warp maps k
// in place and looks whether v is finite.
#pragma once

#include "mhla/kernels/chunkwise/chunkwise_sm90_outputs.cuh"

namespace mhla::sm90 {

// f(chunk, pair of tiles, place of a key's tile in the chunk) for all tiles of k, or of v, in the order of their
// copies.
template <class F>
__device__ inline void each_load(const Arguments& p, const F& f) {
  const int items = output_items(p);
  for (int i = blockIdx.x; i < items; i += gridDim.x) {
    const OutputItem item(p, i);
#pragma unroll 1
    for (int pair = 0; pair < output_pairs(item.tiles); ++pair) {
#pragma unroll 1
      for (int j = 0; j < output_loads(pair, item.tiles); ++j) f(item, pair, j);
    }
  }
}

template <class T>
__device__ inline void copy_output_keys(const OutputArguments& a, const OutputShared<T>& s) {  // one lane
  RingPlace<T::kKeyStages> at;
  each_load(a.p, [&](const OutputItem& item, int /*pair*/, int j) {
    const std::uint32_t copied = s.barrier(T::kKeyCopied, at.stage);
    barrier_wait(s.barrier(T::kKeyFree, at.stage), at.parity ^ 1);
    barrier_expect(copied, T::kTile);
#pragma unroll
    for (int panel = 0; panel < T::kPanels; ++panel) {
      copy_box(s.keys(at.stage) + panel * T::kPanel, a.k, copied, panel * 64, item.u.head,
               static_cast<int>(item.block.origin) + j * kOutputTokens, item.u.batch);
    }
    at.next();
  });
}

template <class T>
__device__ inline void copy_output_values(const OutputArguments& a, const OutputShared<T>& s) {  // one lane
  RingPlace<T::kValueStages> at;
  each_load(a.p, [&](const OutputItem& item, int /*pair*/, int j) {
    const std::uint32_t copied = s.barrier(T::kValueCopied, at.stage);
    barrier_wait(s.barrier(T::kValueFree, at.stage), at.parity ^ 1);
    barrier_expect(copied, T::kValues);
#pragma unroll
    for (int panel = 0; panel < T::kValuePanels; ++panel) {
      copy_box(s.values(at.stage) + panel * T::kPanel, a.v, copied,
               panel / T::kPanels * a.p.E + panel % T::kPanels * 64, item.u.head,
               static_cast<int>(item.block.origin) + j * kOutputTokens, item.u.batch);
    }
    at.next();
  });
}

// q of both warpgroups, and P of every chunk. One lane.
template <class T>
__device__ inline void copy_output_queries(const OutputArguments& a, const OutputShared<T>& s) {
  const Arguments& p = a.p;
  const int items = output_items(p);
  RingPlace<1> query_at[kOutputGroups], prefix_at;
  const auto bring_queries = [&](const OutputItem& item, int pair, int turn) {
#pragma unroll
    for (int group = 0; group < kOutputGroups; ++group) {
      const int tile = output_tile(pair, group, turn);
      if (tile >= item.tiles) continue;
      const std::uint32_t copied = s.barrier(T::kQueryCopied, group);
      barrier_wait(s.barrier(T::kQueryFree, group), query_at[group].parity ^ 1);
      query_at[group].next();
      barrier_expect(copied, T::kTile);
#pragma unroll
      for (int panel = 0; panel < T::kPanels; ++panel) {
        copy_box(s.queries(group) + panel * T::kPanel, a.q, copied, panel * 64, item.head,
                 static_cast<int>(item.block.origin) + tile * kOutputTokens, item.u.batch);
      }
    }
  };
  const auto bring_prefix = [&](const OutputItem& item) {
    if (item.index == 0 || item.tiles == 0) return;
    const std::uint32_t copied = s.barrier(T::kPrefixCopied);
    barrier_wait(s.barrier(T::kPrefixFree), prefix_at.parity ^ 1);
    prefix_at.next();
    const int z_bytes = p.normalized ? p.D * 2 : 0;
    barrier_expect(copied, T::kPrefix + z_bytes);
#pragma unroll
    for (int panel = 0; panel < T::kValuePanels; ++panel) {
      copy_summary_box(s.base + T::kPrefixAt + panel * T::kPrefixPanel, a.prefix, copied, panel % T::kPanels * 64,
                       (item.row * T::kParts + panel / T::kPanels) * p.M + item.index);
    }
    if (z_bytes > 0) {  // every part has it
      const std::int64_t summary = std::int64_t{item.row} * T::kParts * p.M + item.index;
      copy_bytes(s.base + T::kZAt, p.mixed + summary * (p.D * p.E + p.D) + p.D * p.E, z_bytes, copied);
    }
  };
  bool waited = false;
  int turn = 0;
  for (int i = blockIdx.x; i < items; i += gridDim.x) {
    const OutputItem item(p, i);
    const bool first = !waited;
    if (!first) bring_prefix(item);  // free long before the queries
#pragma unroll 1
    for (int pair = 0; pair < output_pairs(item.tiles); ++pair, ++turn) {
      bring_queries(item, pair, turn);
      if (!waited) {  // queries, keys and values come from before the kernels of this pass
        after_previous(), allow_next(), waited = true;
        bring_prefix(item);
      }
    }
  }
  if (!waited) after_previous(), allow_next();
}

// Maps k in place: warp `half` of two, half of every tile.
template <class T>
__device__ inline void map_output_keys(const OutputArguments& a, const OutputShared<T>& s, int half) {
  constexpr int kAtOnce = 4, kStep = 32 * 16, kHalf = T::kTile / 2;
  with_map(a.p.map, [&](auto map) {
    RingPlace<T::kKeyStages> at;
    each_load(a.p, [&](const OutputItem& /*item*/, int /*pair*/, int /*j*/) {
      barrier_wait(s.barrier(T::kKeyCopied, at.stage), at.parity);
      const std::uint32_t keys = s.keys(at.stage) + half * kHalf + threadIdx.x % 32 * 16;
#pragma unroll 1
      for (int piece = 0; piece < kHalf; piece += kStep * kAtOnce) {
        uint4 x[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) x[i] = shared_words(keys + piece + i * kStep);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) set_words(keys + piece + i * kStep, feature_words(map, x[i]));
      }
      publish_shared();
      warp_done(s.barrier(T::kKeyReady, at.stage));
      at.next();
    });
  });
}

// Looks whether v is finite where queries have their diagonal: warp `half` of two, half of every tile.
template <class T>
__device__ inline void check_output_values(const OutputArguments& a, const OutputShared<T>& s, int half) {
  constexpr int kAtOnce = 4, kStep = 32 * 16, kHalf = T::kValues / 2;
  RingPlace<T::kValueStages> at;
  each_load(a.p, [&](const OutputItem& /*item*/, int pair, int j) {
    barrier_wait(s.barrier(T::kValueCopied, at.stage), at.parity);
    if (j >= 2 * pair) {
      const std::uint32_t values = s.values(at.stage) + half * kHalf + threadIdx.x % 32 * 16;
      NothingUnusual check;
#pragma unroll 1
      for (int piece = 0; piece < kHalf; piece += kStep * kAtOnce) {
        uint4 x[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) x[i] = shared_words(values + piece + i * kStep);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) check.add(x[i]);
      }
      const bool finite = __all_sync(0xffffffffu, check.holds());
      if (threadIdx.x % 32 == 0) set_shared_word(s.unusual(at.stage) + half * 4, finite ? 0u : 1u);
    }
    warp_done(s.barrier(T::kValueChecked, at.stage));
    warp_done(s.barrier(T::kValueFree, at.stage));
    at.next();
  });
}

}  // namespace mhla::sm90
