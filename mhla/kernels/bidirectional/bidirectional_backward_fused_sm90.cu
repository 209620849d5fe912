// Launches of the fused backward kernel of Hopper (bidirectional_backward_sm90_fused.cuh).
#include "mhla/kernels/bidirectional/bidirectional_backward_sm90_fused.cuh"
#include "mhla/kernels/bidirectional/bidirectional_sm90.cuh"

namespace mhla::sm90 {

void launch_box_gradients(const Problem& p, const Arguments& arguments, const BoxPlan& plan, cudaStream_t stream) {
  const BlockBoxes boxes = block_boxes(p.layout, p.N);
  const int pitch = pitch_of(tiles_of(p.D, p.E));
  const auto map = [&](const auto& x) { return grid_boxes(x, boxes.width, pitch, boxes.across, boxes.down); };
  const BoxGradientArguments a{map(p.q),  map(p.k),  map(p.v),  map(p.dout), map(p.dq),
                               map(p.dk), map(p.dv), arguments, plan,        box_grid(p, boxes)};
  with_spec<false>(arguments, [&](auto spec) {
    using S = decltype(spec);
    if constexpr (S::kRows < 8) {
      using T = BoxTiles<S, box_gradient_warps(S::kTiles)>;
      const auto kernel = box_gradient_kernel<S, T>;
      launch_next("sm90 box_gradient_kernel", kernel,
                  blocks_for(kernel, T::kThreads, plan.shared_bytes, arguments.units), T::kThreads, plan.shared_bytes,
                  stream, a);
    }
  });
}

}  // namespace mhla::sm90
