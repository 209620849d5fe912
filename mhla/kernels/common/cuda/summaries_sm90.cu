// The phases that make and mix summaries on Hopper, for both forms.
#include "mhla/kernels/common/cuda/sm90_mix_panels.cuh"
#include "mhla/kernels/common/cuda/sm80_mix_strips.cuh"
#include "mhla/kernels/common/cuda/sm90_summaries.cuh"

namespace mhla::sm80 {
namespace {

template <class S>
void launch_summary(const Arguments& a, cudaStream_t stream) {
  const std::int64_t items = std::int64_t{a.units} * a.M;
  const bool panels = on_panels<S>(a, [&](auto spec) {
    using T = SummaryTiles<decltype(spec)>;
    const auto kernel = panel_summary_kernel<decltype(spec)>;
    launch_next("sm90 panel_summary_kernel", kernel, blocks_for(kernel, T::kThreads, T::kBytes, items), T::kThreads,
                T::kBytes, stream, a);
  });
  if (!panels) {
    const int bytes = (phase_stages(S::kTiles) * kPhaseTokens * 2 + S::kRows * 16) * S::kPitch;
    const unsigned blocks = blocks_for(summary_kernel<S>, S::kRows * 32, bytes, items);
    launch_next("sm90 summary_kernel", summary_kernel<S>, blocks, S::kRows * 32, bytes, stream, a);
  }
}

constexpr int kRangesAtOnce = 224;  // 16 bytes each: 3.5 of the 4 KiB that arguments may take
struct RangesJob {
  TokenRange* to;
  int count;
  TokenRange ranges[kRangesAtOnce];
};

__global__ void write_ranges_kernel(const __grid_constant__ RangesJob job) {
  after_previous();
  for (int i = threadIdx.x; i < job.count; i += 128) job.to[i] = job.ranges[i];
}

}  // namespace

void launch_ranges(std::span<const TokenRange> ranges, TokenRange* to, cudaStream_t stream) {
  for (std::size_t first = 0; first < ranges.size(); first += kRangesAtOnce) {
    RangesJob job{};
    job.to = to + first, job.count = static_cast<int>(std::min<std::size_t>(kRangesAtOnce, ranges.size() - first));
    std::copy_n(ranges.begin() + static_cast<std::ptrdiff_t>(first), job.count, job.ranges);
    launch_next("sm90 write_ranges_kernel", write_ranges_kernel, 1, 128, 0, stream, job);
  }
}

void launch_pack_mix(const Arguments& a, int mix_heads, bool back, cudaStream_t stream) {
  const auto heads = static_cast<unsigned>(mix_heads);
  if (mixed_on_panels(a.mix_rows)) {
    const int rows = 64 * mix_squares(a.mix_rows);
    launch_next("sm90 pack_panels_kernel", pack_panels_kernel, dim3(rows * rows / 8 / 128, heads), 128, 0, stream, a,
                rows, back);
    return;
  }
  const int tiles = (a.M + 15) / 16;
  launch_next("sm90 pack_mix_kernel", pack_mix_kernel, dim3(tiles * tiles, heads), 32, 0, stream, a, tiles, back);
}

void launch_mix(const Arguments& a, bool back, cudaStream_t stream) {
  if (!mixed_on_panels(a.mix_rows)) return launch_mix_strips(a, back, stream);
  mix_squares(a.mix_rows) == 2 ? launch_mix_panels<2>(a, back, stream) : launch_mix_panels<4>(a, back, stream);
}

void launch_block_summaries(const Arguments& a, cudaStream_t stream) {
  with_spec<true>(a, [&](auto spec) { launch_summary<decltype(spec)>(a, stream); });
}

void launch_summaries(const Arguments& a, cudaStream_t stream) {
  launch_block_summaries(a, stream);
  launch_mix(a, false, stream);
}

}  // namespace mhla::sm80
