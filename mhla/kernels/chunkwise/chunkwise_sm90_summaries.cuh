// Summaries of chunks of more than 64 tokens: S_i = k~_i^T v_i and z_i = k~_i^T 1, all columns of v at once, so that k
// is read once. Both sides of the product come straight from shared memory (chunkwise_sm90_summaries_plan.h). Without a
// normaliser dP_i = scale sum q~_i^T dout_i, over the query heads of a kv head, is one of them, too.
#pragma once

#include "mhla/kernels/chunkwise/chunkwise_sm90_outputs.cuh"
#include "mhla/kernels/chunkwise/chunkwise_sm90_summaries_plan.h"
#include "mhla/kernels/common/cuda/warpgroup_wide.cuh"

namespace mhla::sm90 {

struct SummaryArguments {
  TokenBoxes k, v;  // 64 columns of 64 tokens
  Arguments p;      // units: of whole heads, all parts
  Bf16* to;         // [units][M][D E + D]
  int heads;        // of k and v, whose sum is the summary of a kv head
  float factor;     // of S
  bool with_z;      // else z is 0
};

// Chunk `index` of a kv head.
struct SummaryItem {
  int index, row;
  Unit u;  // of the first part
  BlockTokens block;
  __device__ SummaryItem(const Arguments& p, int item)
      : index(item % p.M), row(item / p.M), u(p, p.first_unit + row * p.parts), block(u.block(p, index)) {}
};

template <class T>
struct SummaryShared {
  std::uint32_t base;
  [[nodiscard]] __device__ std::uint32_t barrier(int kind, int stage) const {
    return base + T::kBarriersAt + (kind + stage) * 8;
  }
  [[nodiscard]] __device__ std::uint32_t keys(int stage) const { return base + stage * T::kStage; }
  [[nodiscard]] __device__ std::uint32_t values(int stage) const { return keys(stage) + T::kValuesAt; }
};

// f(chunk, head of k and v, first place of a tile) for all tiles.
template <class F>
__device__ inline void each_summary_tile(const SummaryArguments& a, const F& f) {
  const Arguments& p = a.p;
  const int items = p.units / p.parts * p.M;
  for (int i = blockIdx.x; i < items; i += gridDim.x) {
    const SummaryItem item(p, i);
#pragma unroll 1
    for (int h = 0; h < a.heads; ++h) {
#pragma unroll 1
      for (int first = 0; first < static_cast<int>(item.block.size); first += 64)
        f(item, item.u.head * a.heads + h, first);
    }
  }
}

template <class T>
__device__ inline void copy_summary_tiles(const SummaryArguments& a, const SummaryShared<T>& s) {  // one lane
  RingPlace<T::kStages> at;
  each_summary_tile(a, [&](const SummaryItem& item, int head, int first) {
    const std::uint32_t copied = s.barrier(T::kCopied, at.stage);
    const int token = static_cast<int>(item.block.origin) + first;
    barrier_wait(s.barrier(T::kFree, at.stage), at.parity ^ 1);
    barrier_expect(copied, T::kStage);
#pragma unroll
    for (int panel = 0; panel < T::kPanels; ++panel) {
      copy_box(s.keys(at.stage) + panel * T::kPanel, a.k, copied, panel * 64, head, token, item.u.batch);
    }
#pragma unroll
    for (int panel = 0; panel < T::kValuePanels; ++panel) {
      copy_box(s.values(at.stage) + panel * T::kPanel, a.v, copied,
               panel / T::kPanels * a.p.E + panel % T::kPanels * 64, head, token, item.u.batch);
    }
    at.next();
  });
}

// Clears k and v behind the end of a chunk, where the tokens of others lie. A warp.
template <class T>
__device__ inline void clear_summary_tiles(const SummaryArguments& a, const SummaryShared<T>& s) {
  RingPlace<T::kStages> at;
  each_summary_tile(a, [&](const SummaryItem& item, int /*head*/, int first) {
    const int rows = static_cast<int>(item.block.size) - first;
    barrier_wait(s.barrier(T::kCopied, at.stage), at.parity);
    if (rows < 64) {
#pragma unroll 1
      for (int panel = 0; panel < T::kPanels + T::kValuePanels; ++panel) {
#pragma unroll 1
        for (int piece = rows * kPanelRowBytes + threadIdx.x % 32 * 16; piece < T::kPanel; piece += 32 * 16) {
          set_words(s.keys(at.stage) + panel * T::kPanel + piece, uint4{});
        }
      }
      publish_shared();
    }
    warp_done(s.barrier(T::kReady, at.stage));
    warp_done(s.barrier(T::kFree, at.stage));
    at.next();
  });
}

// 64 rows of every summary: those of panel `group` of k. A warpgroup.
template <class T>
__device__ inline void summary_rows(const SummaryArguments& arguments, const SummaryShared<T>& s, int group) {
  const Arguments& p = arguments.p;
  const int lane = threadIdx.x % 32, d = group * 64 + static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4;
  const int items = p.units / p.parts * p.M;
  const std::uint64_t ones = panel_descriptor(s.base + T::kOnesAt);
  RingPlace<T::kStages> at, done;
  bool waited = false;
#pragma unroll 1
  for (int i = blockIdx.x; i < items; i += gridDim.x) {
    const SummaryItem item(p, i);
    const int size = static_cast<int>(item.block.size);
    WideSums<T::kColumns> acc = {};
    float z[4] = {};
    settle_sums(acc);
    settle_sums(z);
    const int tiles = (size + 63) / 64, all = tiles * arguments.heads;
#pragma unroll 1
    for (int tile = 0, in_head = 0; tile < all; ++tile, in_head = in_head + 1 == tiles ? 0 : in_head + 1, at.next()) {
      const int first = in_head * 64;
      barrier_wait(s.barrier(size - first < 64 ? T::kReady : T::kCopied, at.stage), at.parity);
      const std::uint32_t keys = s.keys(at.stage) + group * T::kPanel;
      const std::uint64_t v = wide_descriptor(s.values(at.stage), T::kPanel);
      if (p.map == FeatureMap::kIdentity) {
        const std::uint64_t k = panel_descriptor(keys);
        warpgroup_begin();
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          multiply_transposed_by_rows(acc, k + step * kNextRows, v + step * kNextRows, true);
          add_column_sums(z, k + step * kNextRows, ones);
        }
        warpgroup_commit();
        if (tile > 0) {
          warpgroup_wait<1>();
          warp_done(s.barrier(T::kFree, done.stage)), done.next();
        }
      } else {
        if (tile > 0) {  // the product reads its fragments until it ends
          warpgroup_wait<0>();
          warp_done(s.barrier(T::kFree, done.stage)), done.next();
        }
        std::uint32_t a[4][4];
        load_panel_columns(a, keys);
        with_map(p.map, [&](auto map) {
#pragma unroll
          for (int step = 0; step < 4; ++step) feature_fragment(map, a[step]);
        });
        if (size - first < 64) cut_rows(a, size - first);
        warpgroup_begin();
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          multiply_fragments_by_rows(acc, a[step], v + step * kNextRows, true);
          add_row_sums(z, a[step], ones);
        }
        warpgroup_commit();
      }
    }
    warpgroup_wait<0>();
    settle_sums(acc);
    settle_sums(z);
    if (size > 0) warp_done(s.barrier(T::kFree, done.stage)), done.next();
    if (!waited) after_previous(), waited = true;  // it may still read what this one overwrites
#pragma unroll
    for (int panel = 0; panel < T::kValuePanels; ++panel) {
      const std::int64_t unit = item.row * T::kParts + panel / T::kPanels;
      Bf16* const to = arguments.to + (unit * p.M + item.index) * (p.D * p.E + p.D);
      const int column = panel % T::kPanels * 64, X = min(64, p.E - column);
      const Accumulator& sums = *reinterpret_cast<const Accumulator*>(&acc[panel * 8]);
      write_panel_row<0>(sums, arguments.factor, d < p.D, to + d * p.E + column, X);
      write_panel_row<1>(sums, arguments.factor, d + 8 < p.D, to + (d + 8) * p.E + column, X);
      if (panel % T::kPanels == 0 && lane % 4 == 0) {
        if (d < p.D) to[p.D * p.E + d] = __float2bfloat16_rn(arguments.with_z ? z[0] : 0.0f);
        if (d + 8 < p.D) to[p.D * p.E + d + 8] = __float2bfloat16_rn(arguments.with_z ? z[2] : 0.0f);
      }
    }
  }
}

}  // namespace mhla::sm90
