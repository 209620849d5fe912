// The warps of the slice kernel that bring tiles: one lane asks for k and v, one for q, and two warps map k in place
// and look whether v is finite everywhere.
#pragma once

#include "mhla/kernels/chunkwise/chunkwise_sm90_slices.cuh"

namespace mhla::sm90 {

// k and v of every tile. One lane.
__device__ inline void copy_keys_role(const SliceArguments& p, const SliceShared& s) {
  using At = SliceMemory;
  RingPlace<kSliceStages> place;
  SliceTurn turn;
  for (int index = blockIdx.x; index < p.items; index += gridDim.x) {
    const SliceItem item(p, index);
    const int head = item.head / p.group;
#pragma unroll 1
    for (int i = 0; i < item.chunks; ++i, place.next(), turn.advance(1)) {
      const std::uint32_t to = s.stage(place.stage), copied = s.barrier(SliceBarriers::kCopied, turn.slot);
      const int token = item.first + i * kSliceChunk;
      barrier_wait(s.barrier(SliceBarriers::kFree, place.stage), place.parity ^ 1);
      barrier_expect(copied, At::kStage);
      copy_box(to, p.k, copied, 0, head, token, item.batch);
      copy_box(to + At::kPanel, p.k, copied, 64, head, token, item.batch);
      copy_box(to + 2 * At::kPanel, p.v, copied, item.column, head, token, item.batch);
    }
  }
}

// q of every tile, and the matrix of the next item where every head has its own. A warp.
__device__ inline void copy_queries_role(const SliceArguments& p, const SliceShared& s) {
  using At = SliceMemory;
  const int lane = threadIdx.x % 32;
  RingPlace<kSliceOutputGroups> place;
  if (p.mix_head != 0 && lane == 0) barrier_arrive(s.barrier(SliceBarriers::kMix, 0));  // the first item's is there
  for (int index = blockIdx.x, k = 0; index < p.items; index += gridDim.x, ++k) {
    const SliceItem item(p, index);
#pragma unroll 1
    for (int i = 0; i < item.chunks; ++i, place.next()) {
      if (lane == 0) {
        const std::uint32_t to = s.base + At::kQueriesAt + place.stage * 2 * At::kPanel,
                            copied = s.barrier(SliceBarriers::kQueries, place.stage);
        const int token = item.first + i * kSliceChunk;
        barrier_wait(s.barrier(SliceBarriers::kQueriesFree, place.stage), place.parity ^ 1);
        barrier_expect(copied, 2 * At::kPanel);
        copy_box(to, p.q, copied, 0, item.head, token, item.batch);
        copy_box(to + At::kPanel, p.q, copied, 64, item.head, token, item.batch);
      }
      __syncwarp();
      const int next = index + static_cast<int>(gridDim.x);
      if (i == 0 && p.mix_head != 0 && next < p.items) {
        const int to = (k + 1) & 1;
        barrier_wait(s.barrier(SliceBarriers::kMixFree, to), mix_parity(k + 1) ^ 1);
        load_slice_mix(p, next / p.slices % p.H, s.mix(to), lane, 32);
        __syncwarp();
        if (lane == 0) barrier_arrive(s.barrier(SliceBarriers::kMix, to));
      }
    }
  }
}

// Two warps, half of every tile each.
template <Known kKnown>
__device__ inline void prepare_role(const SliceArguments& p, const SliceShared& s, int half) {
  using At = SliceMemory;
  const int lane = threadIdx.x % 32;
  const FeatureMap map = slice_map<kKnown>(p);
  SliceTurn turn;
  for (int index = blockIdx.x; index < p.items; index += gridDim.x) {
    const SliceItem item(p, index);
#pragma unroll 1
    for (int i = 0; i < item.chunks; ++i, turn.advance(1)) {
      const std::uint32_t stage = s.stage(turn.stage());
      barrier_wait(s.barrier(SliceBarriers::kCopied, turn.slot), turn.parity);
      if constexpr (kKnown != Known::kIdentity) {
        const std::uint32_t keys = stage + half * At::kPanel + lane * 16;
        constexpr int kAtOnce = 4;
#pragma unroll 1
        for (int at = 0; at < At::kPanel; at += 512 * kAtOnce) {
          uint4 x[kAtOnce];
#pragma unroll
          for (int j = 0; j < kAtOnce; ++j) x[j] = shared_words(keys + at + j * 512);
#pragma unroll
          for (int j = 0; j < kAtOnce; ++j) {
            set_shared_words(keys + at + j * 512, feature_pair(map, x[j].x), feature_pair(map, x[j].y),
                             feature_pair(map, x[j].z), feature_pair(map, x[j].w));
          }
        }
        publish_shared();
      }
      const std::uint32_t values = stage + 2 * At::kPanel + half * At::kValues / 2 + lane * 16;
      bool finite = true;
#pragma unroll
      for (int j = 0; j < At::kValues / 2 / 512; ++j) finite = finite && finite_words(shared_words(values + j * 512));
      finite = __all_sync(0xffffffffu, finite);
      __syncwarp();
      if (lane == 0) {
        set_shared_word(s.unusual(turn.slot) + half * 4, finite ? 0u : 1u);
        barrier_arrive(s.barrier(SliceBarriers::kReady, turn.slot));
      }
    }
  }
}

}  // namespace mhla::sm90
