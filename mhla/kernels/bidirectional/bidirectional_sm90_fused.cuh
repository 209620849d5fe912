// Forward of the bidirectional form on Hopper where a head's summaries fit shared memory and blocks come in boxes
// (bidirectional_sm90_boxes.cuh). Outputs leave as boxes from the slots their queries came in.
#pragma once

#include "mhla/kernels/bidirectional/bidirectional_sm90_boxes.cuh"

namespace mhla::sm90 {

struct BoxArguments {
  GridBoxes q, k, v, out;
  Arguments p;
  BoxPlan plan;
  BoxGrid grid;
};

// The warp that copies: one lane. A slot takes k and v of a box, or q of two boxes.
template <class T>
__device__ inline void copy_boxes(const BoxArguments& a, const BoxRing<T>& ring, const std::uint32_t* places) {
  const Arguments& p = a.p;
  typename BoxRing<T>::Place at;
  const int boxes = a.grid.boxes();
  for (int unit = blockIdx.x; unit < p.units; unit += gridDim.x) {
    const Unit u(p, unit);
    bring_keys(ring, at, a.grid, places, a.k, a.v, u.head, u.batch);
    for (int h = 0; h < p.group; ++h) {
      for (int box = 0; box < boxes; box += 2, at.step(1)) {
        const int count = min(2, boxes - box);
        ring.begin(at, count);
        for (int i = 0; i < count; ++i) {
          const BoxPlace place(places[box + i]);
          copy_grid_box(ring.at(at) + i * T::kBox, a.q, ring.full(at), place.x, place.y, u.head * p.group + h, u.batch);
        }
      }
    }
  }
}

template <class S, class T>
__global__ void __launch_bounds__(T::kThreads, T::kW.blocks) box_fused_kernel(const __grid_constant__ BoxArguments a) {
  after_previous();
  extern __shared__ __align__(128) char shared[];
  const Arguments& p = a.p;
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0), lane = threadIdx.x % 32;
  const BoxRing<T> ring{shared_address(shared), shared_address(shared + a.plan.barriers_at)};
  char* const summaries = shared + a.plan.summaries_at;
  auto* mix = reinterpret_cast<uint4*>(shared + a.plan.mix_at);
  auto* places = reinterpret_cast<std::uint32_t*>(shared + a.plan.places_at);
  if (threadIdx.x == 0) ring.init();
  fill_places(a.grid, places);
  publish_shared();
  // Blocks that do not exist are multiplied with zeros: they must be finite.
  for (int at = p.M * a.plan.block_bytes / 16 + static_cast<int>(threadIdx.x);
       at < (p.M + 15) / 16 * a.plan.block_bytes; at += T::kThreads) {
    reinterpret_cast<uint4*>(summaries)[at] = uint4{};
  }
  __syncthreads();
  if (warp == T::kWarps) {
    if (lane == 0) copy_boxes(a, ring, places);
    return;
  }
  const int pair = warp / 2, boxes = a.grid.boxes(), slots = (boxes + 1) / 2;  // of a query head
  typename BoxRing<T>::Place phase;
  for (int unit = blockIdx.x; unit < p.units; unit += gridDim.x) {
    const Unit u(p, unit);
    if (unit == blockIdx.x || p.mix_head) fill_mix<T>(p, u.head, mix, false);
    if (unit != blockIdx.x) meet<T>();  // all are done with the head before
    summarise_boxes<S, T>(p, a.grid, ring, phase, summaries, a.plan.block_bytes, shared + a.plan.trash_at, [](int) {});
    meet<T>();
    mix_all<S, T>(p, summaries, a.plan.block_bytes, mix);
    meet<T>();
    auto at = phase;
    at.step(pair);
    for (int i = pair; i < p.group * slots; i += T::kPairs, at.step(T::kPairs)) {
      const int h = p.group == 1 ? 0 : i / slots, box = 2 * (i - h * slots) + warp % 2;
      ring.wait(at);
      if (box < boxes) {
        const std::uint32_t tile = ring.at(at) + warp % 2 * T::kBox;
        const BoxPlace place(places[box]);
        float acc[S::kColumns][4] = {}, den[4] = {};
        read_out_box<S, true>(p, acc, den, tile, summaries + place.block * a.plan.block_bytes);
        float factors[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) factors[half] = p.normalized ? p.scale / (p.eps + den[2 * half]) : p.scale;
#pragma unroll
        for (int j = 0; j < S::kColumns; ++j) {
#pragma unroll
          for (int k = 0; k < 4; ++k) acc[j][k] *= factors[k / 2];
        }
        __syncwarp();
        store_tile<S::kColumns>(acc, tile + lane % 16 * S::kPitch);
        publish_shared();
        __syncwarp();
        if (lane == 0) {
          store_grid_box(a.out, tile, place.x, place.y, u.head * p.group + h, u.batch);
          commit_boxes();
          wait_boxes_read_but<0>();
        }
      }
      if (lane == 0) ring.release(at, T::kW.in_group);
    }
    phase.move(p.group * slots);
  }
}

}  // namespace mhla::sm90
