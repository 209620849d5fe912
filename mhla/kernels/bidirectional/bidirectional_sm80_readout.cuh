// Phase 3: out = scale (q~ S~) / (eps + q~ z~) of blocks.
#pragma once

#include "mhla/kernels/common/cuda/sm80_phases.cuh"

namespace mhla::sm80 {

struct Place {
  BlockTokens block;
  const Bf16* q;
  Bf16* out;
  const float* den;  // with kDen
};

// Out of a block for one query head after the other. S~ in shared memory, that of the next block on its way;
// warps take 16 tokens at a time. kDen: denominators are p.maybe_den.
template <class S, bool kDen = false>
__global__ void __launch_bounds__(128, S::kRows >= 8 ? 3 : 5) readout_kernel(Arguments p, int summary_bytes) {
  after_previous();
  extern __shared__ __align__(16) char shared[];  // [2]: S~, z~; places
  const int items = p.units * p.group * p.M, warp = threadIdx.x / 32, D = S::D(p), E = S::E(p);
  const auto unit_of = [&](int at) { return at / p.M / p.group; };
  const auto fetch = [&](int at, int buffer) {
    if (at < items) {
      const Bf16* from = p.mixed + (static_cast<std::int64_t>(unit_of(at)) * p.M + at % p.M) * (D * E + D);
      const std::uint32_t to = shared_address(shared + buffer * summary_bytes);
      for (int i = threadIdx.x; i < D * (E / 8); i += 128) {
        copy16(to + summary_row(i / (E / 8), S::kPitch) + i % (E / 8) * 16, from + i * 8, true);
      }
      for (int i = threadIdx.x; i < D / 8; i += 128) {
        copy16(to + summary_row(D, S::kPitch) + i * 16, from + D * E + i * 8, true);
      }
    }
    copy_commit();
  };
  auto* places = reinterpret_cast<Place*>(shared + 2 * summary_bytes);  // [3]: where the next blocks lie
  const auto place = [&](int at, int slot) {
    if (threadIdx.x == 0 && at < items) {
      const Unit u(p, p.first_unit + unit_of(at));
      const int head = u.head * p.group + at / p.M % p.group;
      places[slot] = Place{p.block(at % p.M), p.q.at(u.batch, head), u.out(p, head)};
      if constexpr (kDen) places[slot].den = p.den_row(u.batch, head);
    }
  };
  const int step = static_cast<int>(gridDim.x);
  int at = blockIdx.x, buffer = 0, slot = 0;
  fetch(at, 0);
  place(at, 0), place(at + step, 1);
  __syncthreads();
  Queries<S> queries;
  if (at < items) queries.load(p, places[0].q, places[0].block, warp * 16);
  for (; at < items; at += step, buffer ^= 1) {
    copy_wait<0>();
    __syncthreads();  // S~ is there, and all are done with the one before
    const int following = slot == 2 ? 0 : slot + 1;
    fetch(at + step, buffer ^ 1);
    place(at + 2 * step, following == 2 ? 0 : following + 1);
    const Place &here = places[slot], &there = places[following];
    const int size = static_cast<int>(here.block.size);
    bool loaded = false;  // the first tile of the next block
    for (int first = warp * 16; first < size; first += 64) {
      Queries<S> now = queries;
      if (first + 64 < size) {
        queries.load(p, here.q, here.block, first + 64);
      } else if (at + step < items) {
        queries.load(p, there.q, there.block, warp * 16);
        loaded = true;
      }
      const Readout<S> x(p, now, shared + buffer * summary_bytes);
      if constexpr (kDen) {
        write_outputs<S, true>(p, x, here.out, here.block, first, here.den);
      } else {
        write_outputs<S>(p, x, here.out, here.block, first);
      }
    }
    if (!loaded && at + step < items) queries.load(p, there.q, there.block, warp * 16);
    slot = following;
  }
}

template <class S, bool kDen = false>
void launch_readout(const Arguments& a, cudaStream_t stream) {
  const auto kernel = readout_kernel<S, kDen>;
  const int summary = summary_bytes(a.D, S::kTiles), bytes = 2 * summary + 3 * static_cast<int>(sizeof(Place));
  const unsigned blocks = blocks_for(kernel, 128, bytes, std::int64_t{a.units} * a.group * a.M);
  launch_next("readout_kernel", kernel, blocks, 128, bytes, stream, a, summary);
}

}  // namespace mhla::sm80
