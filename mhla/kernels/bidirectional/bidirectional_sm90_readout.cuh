// Phase 3: out = scale (q~ S~) / (eps + q~ z~) of blocks. On warpgroups, for heads whose tiles fill panels, the first
// one copies queries and S~, two others take tiles of 64 tokens in turn. readout_kernel takes other heads and short
// blocks (bidirectional_sm80_readout.cuh).
#pragma once

#include "mhla/kernels/common/cuda/sm90_ring.cuh"

namespace mhla::sm90 {

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

template <class S, bool kDen = false>
void launch_panel_readout(const Arguments& a, cudaStream_t stream) {
  using T = ReadoutTiles<S>;
  const auto kernel = panel_readout_kernel<S, kDen>;
  const std::int64_t items = std::int64_t{a.units} * a.group * a.M;
  launch_next("sm90 panel_readout_kernel", kernel, blocks_for(kernel, T::kThreads, T::kBytes, items), T::kThreads,
              T::kBytes, stream, a);
}

}  // namespace mhla::sm90
