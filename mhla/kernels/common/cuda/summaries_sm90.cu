// The phases that make and mix summaries on warpgroups (sm90_launches.cuh).
#include "mhla/kernels/common/cuda/sm90_launches.cuh"
#include "mhla/kernels/common/cuda/sm90_mix_panels.cuh"
#include "mhla/kernels/common/cuda/sm90_summaries.cuh"

namespace mhla::sm90 {

void launch_panel_summaries(const Arguments& a, cudaStream_t stream) {
  with_panel_spec<true>(a, [&](auto spec) {
    using T = SummaryTiles<decltype(spec)>;
    const auto kernel = panel_summary_kernel<decltype(spec)>;
    const unsigned blocks = blocks_for(kernel, T::kThreads, T::kBytes, std::int64_t{a.units} * a.M);
    launch_next("sm90 panel_summary_kernel", kernel, blocks, T::kThreads, T::kBytes, stream, a);
  });
}

void launch_pack_panels(const Arguments& a, int mix_heads, bool back, cudaStream_t stream) {
  const int rows = 64 * mix_squares(a.mix_rows);
  launch_next("sm90 pack_panels_kernel", pack_panels_kernel,
              dim3(rows * rows / 8 / 128, static_cast<unsigned>(mix_heads)), 128, 0, stream, a, rows, back);
}

void launch_panel_mix(const Arguments& a, bool back, cudaStream_t stream) {
  mix_squares(a.mix_rows) == 2 ? launch_mix_panels<2>(a, back, stream) : launch_mix_panels<4>(a, back, stream);
}

}  // namespace mhla::sm90
