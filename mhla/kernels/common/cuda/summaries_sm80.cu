// The phases that make and mix summaries, for both forms.
#include "mhla/kernels/common/cuda/sm80_mix_strips.cuh"
#include "mhla/kernels/common/cuda/sm80_summaries.cuh"
#include "mhla/kernels/common/cuda/sm90_launches.cuh"

namespace mhla::sm80 {
namespace {

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
    launch_next("write_ranges_kernel", write_ranges_kernel, 1, 128, 0, stream, job);
  }
}

void launch_pack_mix(const Arguments& a, int mix_heads, bool back, cudaStream_t stream) {
  if (mixed_on_panels(a.mix_rows)) return sm90::launch_pack_panels(a, mix_heads, back, stream);
  const int tiles = (a.M + 15) / 16;
  launch_next("pack_mix_kernel", pack_mix_kernel, dim3(tiles * tiles, static_cast<unsigned>(mix_heads)), 32, 0, stream,
              a, tiles, back);
}

void launch_mix(const Arguments& a, bool back, cudaStream_t stream) {
  mixed_on_panels(a.mix_rows) ? sm90::launch_panel_mix(a, back, stream) : launch_mix_strips(a, back, stream);
}

void launch_block_summaries(const Arguments& a, cudaStream_t stream) {
  if (on_panels(a)) return sm90::launch_panel_summaries(a, stream);
  with_spec<true>(a, [&](auto spec) {
    using S = decltype(spec);
    const int bytes = summary_stage_bytes(S::kTiles);
    const unsigned blocks = blocks_for(summary_kernel<S>, S::kRows * 32, bytes, std::int64_t{a.units} * a.M);
    launch_next("summary_kernel", summary_kernel<S>, blocks, S::kRows * 32, bytes, stream, a);
  });
}

void launch_summaries(const Arguments& a, cudaStream_t stream) {
  launch_block_summaries(a, stream);
  launch_mix(a, false, stream);
}

}  // namespace mhla::sm80
