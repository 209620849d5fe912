// The phases that make and mix summaries on Hopper, for both forms.
#include "mhla/kernels/common/cuda/sm90_mix_panels.cuh"
#include "mhla/kernels/common/cuda/sm90_mix_strips.cuh"
#include "mhla/kernels/common/cuda/sm90_summaries.cuh"

namespace mhla::sm90 {
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

}  // namespace

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

void launch_summaries(const Arguments& a, cudaStream_t stream) {
  with_spec<true>(a, [&](auto spec) { launch_summary<decltype(spec)>(a, stream); });
  launch_mix(a, false, stream);
}

}  // namespace mhla::sm90
