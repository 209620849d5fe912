// What the roles of the output kernel share (chunkwise_sm90_outputs_plan.h): arguments, items, rings.
#pragma once

#include "mhla/kernels/chunkwise/chunkwise_sm90_outputs_plan.h"
#include "mhla/kernels/common/cuda/sm90_boxes.cuh"
#include "mhla/kernels/common/cuda/sm90_ring.cuh"

namespace mhla::sm90 {

struct OutputArguments {
  TokenBoxes q, k, v;   // 64 columns of 64 tokens
  SummaryBoxes prefix;  // 64 columns of a summary, all rows
  Arguments p;          // units: of whole heads, all parts
};

// Chunk `index` of a query head: what a block of threads takes in turn.
struct OutputItem {
  int index, row, head;  // row: kv head of this launch; head: query head
  Unit u;                // of the first part
  BlockTokens block;
  int tiles;
  __device__ OutputItem(const Arguments& p, int item)
      : index(item % p.M),
        row(item / p.M / p.group),
        u(p, p.first_unit + row * p.parts),
        block(u.block(p, index)),
        tiles(output_tiles(static_cast<int>(block.size))) {
    head = u.head * p.group + (p.group == 1 ? 0 : item / p.M % p.group);
  }
};
__device__ inline int output_items(const Arguments& p) { return p.units / p.parts * p.group * p.M; }

// Shared memory of a block of threads.
template <class T>
struct OutputShared {
  std::uint32_t base;
  [[nodiscard]] __device__ std::uint32_t barrier(int kind, int i = 0) const {
    return base + T::kBarriersAt + (kind + i) * 8;
  }
  [[nodiscard]] __device__ std::uint32_t keys(int stage) const { return base + stage * T::kTile; }
  [[nodiscard]] __device__ std::uint32_t values(int stage) const { return base + T::kValuesAt + stage * T::kValues; }
  [[nodiscard]] __device__ std::uint32_t queries(int group) const { return base + T::kQueriesAt + group * T::kTile; }
  // Whether a checked tile of v has infinity or NaN: a word of each warp that looks.
  [[nodiscard]] __device__ std::uint32_t unusual(int stage) const { return base + T::kUnusualAt + stage * 8; }
  __device__ void init() const {  // by one thread, before __syncthreads()
    const auto init = [&](int kind, int count, int arrivals) {
      for (int i = 0; i < count; ++i) barrier_init(barrier(kind, i), arrivals);
    };
    init(T::kKeyCopied, T::kKeyStages, 1);
    init(T::kKeyReady, T::kKeyStages, kPrepareWarps);
    init(T::kKeyFree, T::kKeyStages, kOutputWarps);
    init(T::kValueCopied, T::kValueStages, 1);
    init(T::kValueChecked, T::kValueStages, kPrepareWarps);
    init(T::kValueFree, T::kValueStages, kOutputWarps + kPrepareWarps);
    init(T::kQueryCopied, kOutputGroups, 1);
    init(T::kQueryFree, kOutputGroups, 4);
    init(T::kPrefixCopied, 1, 1);
    init(T::kPrefixFree, 1, kOutputWarps);
    init(T::kUnusualMeeting, 1, kOutputGroups * kGroupThreads);
    barriers_ready();
  }
};

// One arrival for a warp, when all its lanes are done.
__device__ inline void warp_done(std::uint32_t barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
}

__device__ inline void set_words(std::uint32_t at, const uint4& x) { set_shared_words(at, x.x, x.y, x.z, x.w); }

// Whether all values that were added are finite: zero times them is zero.
struct NothingUnusual {
  __nv_bfloat162 sum = __float2bfloat162_rn(0.0f);
  __device__ void add(const uint4& x) {
    for (const std::uint32_t pair : {x.x, x.y, x.z, x.w}) {
      sum = __hfma2(*reinterpret_cast<const __nv_bfloat162*>(&pair), __float2bfloat162_rn(0.0f), sum);
    }
  }
  [[nodiscard]] __device__ bool holds() const { return __hbeq2(sum, __float2bfloat162_rn(0.0f)); }
};

// f(map) with a map that the compiler knows: one branch for a whole tile. Not for the identity.
template <class F>
__device__ inline void with_map(FeatureMap map, const F& f) {
  switch (map) {
    case FeatureMap::kReluEps: return f(std::integral_constant<FeatureMap, FeatureMap::kReluEps>{});
    case FeatureMap::kRelu: return f(std::integral_constant<FeatureMap, FeatureMap::kRelu>{});
    case FeatureMap::kElu1: return f(std::integral_constant<FeatureMap, FeatureMap::kElu1>{});
    case FeatureMap::kIdentity: return;
  }
}

__device__ inline uint4 feature_words(FeatureMap map, const uint4& x) {
  return {feature_pair(map, x.x), feature_pair(map, x.y), feature_pair(map, x.z), feature_pair(map, x.w)};
}

}  // namespace mhla::sm90
