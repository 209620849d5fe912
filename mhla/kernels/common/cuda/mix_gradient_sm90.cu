// dmix of the passes in phases on Hopper (sm90_launches.cuh).
#include "mhla/kernels/common/cuda/sm90_launches.cuh"
#include "mhla/kernels/common/cuda/sm90_mix_product.cuh"

namespace mhla::sm90 {

void launch_mix_product(const Arguments& a, const Gradients& g, const uint4* maybe_back_mix, std::int64_t splits,
                        std::int64_t matrices, cudaStream_t stream) {
  const MixProduct which = maybe_back_mix != nullptr ? kMixSquaresBack : mix_product(a.M, a.causal);
  const MixProductPlan& plan = kMixProductPlans[which];
  const auto launch = [&](auto kernel) {
    const dim3 grid(static_cast<unsigned>(splits), static_cast<unsigned>(matrices), static_cast<unsigned>(plan.kinds));
    launch_next("sm90 panel_mix_product_kernel", kernel, grid, plan.threads(), plan.bytes(), stream, a, g,
                maybe_back_mix, a.D * a.E + a.D);
  };
  switch (which) {
    case kMixSquares: return launch(panel_mix_product_kernel<kMixSquares>);
    case kMixHalves: return launch(panel_mix_product_kernel<kMixHalves>);
    case kMixTriangle: return launch(panel_mix_product_kernel<kMixTriangle>);
    default: return launch(panel_mix_product_kernel<kMixSquaresBack>);
  }
}

}  // namespace mhla::sm90
