// Phase 3: out = scale (q~ S~) / (eps + q~ z~) of blocks. On warpgroups, for heads whose tiles fill panels, the first
// one copies queries and S~, two others take tiles of 64 tokens in turn. readout_kernel takes other heads and short
// blocks.
#pragma once

#include "mhla/kernels/common/cuda/sm90_ring.cuh"

namespace mhla::sm80 {

template <class S>
struct ReadoutTiles {
  static constexpr int kPanels = S::kRows / 4, kStages = 6, kReaders = 2, kThreads = (1 + kReaders) * kGroupThreads;
  static constexpr int kTile = kPanels * kPanelBytes, kSummary = kSummaryPanelBytes<kPanels>;
  static constexpr int kSummariesAt = kStages * kTile, kRingAt = kSummariesAt + 2 * kSummary,
                       kSummaryRingAt = kRingAt + Ring<kStages>::kBytes;
  static constexpr int kBytes = kPanelAlign + kSummaryRingAt + Ring<2>::kBytes;
  static constexpr int kBlocks = kPanels == 1 ? 2 : 1;  // of threads on a multiprocessor
  static_assert(kStages % kReaders == 0);               // a stage is always read by the same warpgroup
  static_assert(kSummary % kPanelAlign == 0 && kBytes <= kMaxSharedBytes &&
                kBlocks * (kBytes + 1024) <= kAllSharedBytes);
};

template <class S, bool kDen = false>
__global__ void __launch_bounds__(ReadoutTiles<S>::kThreads, ReadoutTiles<S>::kBlocks)
    panel_readout_kernel(Arguments p) {
  using T = ReadoutTiles<S>;
  extern __shared__ char unaligned[];  // [kStages] q; [2] S~, z~; rings
  const std::uint32_t tiles = shared_address(aligned_panels(unaligned)), summaries = tiles + T::kSummariesAt;
  const Ring<T::kStages> ring{tiles + T::kRingAt};
  const Ring<2> summary_ring{tiles + T::kSummaryRingAt};
  const int items = p.units * p.group * p.M, group = warpgroup_index(), D = S::D(p), E = S::E(p);
  if (threadIdx.x == 0) ring.init(4), summary_ring.init(T::kReaders * 4);
  publish_shared();
  __syncthreads();
  RingPlace<T::kStages> at;
  RingPlace<2> summary_at;
  if (group == 0) {
    TileMover mover;
    bool waited = false;
    const auto bring_summary = [&](int i) {
      if (!waited) after_previous(), allow_next(), waited = true;
      const std::int64_t block = std::int64_t{i / p.M / p.group} * p.M + i % p.M;
      summary_ring.wait_empty(summary_at);
      copy_summary_and_z<T::kPanels>(p.mixed + block * (D * E + D), D, E, summaries + summary_at.stage * T::kSummary);
      summary_ring.copied(summary_at);
      summary_at.next();
    };
    for (int i = blockIdx.x; i < items; i += gridDim.x) {
      const Unit u(p, p.first_unit + i / p.M / p.group);
      const Bf16* q = p.q.at(u.batch, u.head * p.group + i / p.M % p.group);
      const BlockTokens block = p.block(i % p.M);
      const int size = static_cast<int>(block.size);
      if (waited) bring_summary(i);
      for (int first = 0; first < size; first += 64, at.next()) {
        mover.find(block, first);
        ring.wait_empty(at);
        mover.copy<T::kPanels>(q, p.q.token, D, tiles + at.stage * T::kTile);
        ring.copied(at);
        // Queries come from before the kernels of this pass: the first ones travel while those still run.
        if (!waited && (at.stage + 1 == T::kStages || first + 64 >= size)) bring_summary(i);
      }
    }
    copy_commit();
    copy_wait<0>();
  } else {
    const int lane = threadIdx.x % 32, row = static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4;
    int turn = 1;  // whose tile comes next
    if constexpr (kDen) after_previous();
    for (int i = blockIdx.x; i < items; i += gridDim.x, summary_at.next()) {
      const Unit u(p, p.first_unit + i / p.M / p.group);
      Bf16* const out = u.out(p, u.head * p.group + i / p.M % p.group);
      const BlockTokens block = p.block(i % p.M);
      const int size = static_cast<int>(block.size);
      const std::uint32_t summary = summaries + summary_at.stage * T::kSummary;
      const std::uint64_t rows = panel_descriptor(summary),
                          z = panel_descriptor(summary + T::kPanels * T::kPanels * kPanelBytes);
      summary_ring.wait_full(summary_at);
      publish_shared();  // copies were ordinary writes
      for (int first = 0; first < size; first += 64, at.next(), turn = turn == T::kReaders ? 1 : turn + 1) {
        if (turn != group) continue;
        std::uint32_t a[4 * T::kPanels][4];
        ring.wait_full(at);
        load_panel_rows<T::kPanels>(a, tiles + at.stage * T::kTile);
        ring.release(at);
#pragma unroll
        for (int step = 0; step < 4 * T::kPanels; ++step) feature_fragment(S::map(p), a[step]);
        Accumulator acc[T::kPanels] = {};
        float den[4] = {};
        begin_products(acc, den);
#pragma unroll
        for (int step = 0; step < 4 * T::kPanels; ++step) {
#pragma unroll
          for (int panel = 0; panel < T::kPanels; ++panel) {
            multiply_panel_rows(acc[panel], a[step], rows + panel * T::kPanels * (kPanelBytes / 16) + step * kNextRows);
          }
          add_row_sums(den, a[step], z + step / 4 * (8 * kPanelRowBytes / 16) + step % 4 * kNextColumns);
        }
        finish_products(acc, den);
        const int place = first + row, last = size - 1;
        float factors[2];
        if constexpr (kDen) {
          const float* row_den = p.den_row(u.batch, u.head * p.group + i / p.M % p.group);
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            factors[half] = p.scale / __ldcg(row_den + block.token(min(place + half * 8, last)));
          }
        } else {
          factors[0] = output_factor(p, den[0]), factors[1] = output_factor(p, den[2]);
        }
        Bf16 *upper = out + block.token(min(place, last)) * p.out.token,
             *lower = out + block.token(min(place + 8, last)) * p.out.token;
#pragma unroll
        for (int panel = 0; panel < T::kPanels; ++panel) {
          const int column = panel * 64, X = min(64, E - column);
          write_panel_row<0>(acc[panel], factors[0], place <= last, upper + column, X);
          write_panel_row<1>(acc[panel], factors[1], place + 8 <= last, lower + column, X);
        }
      }
      summary_ring.release(summary_at);
    }
  }
}

struct Place {
  BlockTokens block;
  const Bf16* q;
  Bf16* out;
  const float* den;  // with kDen
};

// Phase 3: out of a block for one query head after the other. S~ in shared memory, that of the next block on its way;
// warps take 16 tokens at a time. kDen: denominators are p.maybe_den.
template <class S, bool kDen = false>
__global__ void __launch_bounds__(128, S::kRows >= 8 ? 3 : 5) readout_kernel(Arguments p, int summary_bytes) {
  after_previous();
  extern __shared__ __align__(16) char shared[];  // [2]: S~, z~; places
  const int items = p.units * p.group * p.M, warp = threadIdx.x / 32, D = S::D(p), E = S::E(p);
  const auto unit_of = [&](int at) { return at / p.M / p.group; };
  const auto fetch = [&](int at, int buffer) {
    if (at < items) {
      const Bf16* from = p.summaries + (static_cast<std::int64_t>(unit_of(at)) * p.M + at % p.M) * (D * E + D);
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

// The launch of either for the units of `a`.
template <class S, bool kDen = false>
void launch_readout(const Arguments& a, cudaStream_t stream) {
  const std::int64_t items = std::int64_t{a.units} * a.group * a.M;
  const bool panels = on_panels<S>(a, [&](auto spec) {
    using T = ReadoutTiles<decltype(spec)>;
    const auto kernel = panel_readout_kernel<decltype(spec), kDen>;
    launch_next("sm90 panel_readout_kernel", kernel, blocks_for(kernel, T::kThreads, T::kBytes, items), T::kThreads,
                T::kBytes, stream, a);
  });
  if (!panels) {
    const auto kernel = readout_kernel<S, kDen>;
    const int summary = summary_bytes(a.D, S::kTiles), bytes = 2 * summary + 3 * static_cast<int>(sizeof(Place));
    launch_next("sm90 readout_kernel", kernel, blocks_for(kernel, 128, bytes, items), 128, bytes, stream, a, summary);
  }
}

}  // namespace mhla::sm80
