// Launches of the fused forward kernel of Hopper (bidirectional_sm90_fused.cuh).
#include "mhla/kernels/bidirectional/bidirectional_sm90.cuh"
#include "mhla/kernels/bidirectional/bidirectional_sm90_fused.cuh"

namespace mhla::sm90 {

void launch_box_fused(const Problem& p, const Arguments& arguments, const BoxPlan& plan, cudaStream_t stream) {
  const BlockBoxes boxes = block_boxes(p.layout, p.N);
  const int pitch = pitch_of(tiles_of(p.D, p.E));
  const auto map = [&](const auto& x) { return grid_boxes(x, boxes.width, pitch, boxes.across, boxes.down); };
  const BoxArguments a{map(p.q), map(p.k), map(p.v), map(p.out), arguments, plan, box_grid(p, boxes)};
  with_spec<false>(arguments, [&](auto spec) {
    using S = decltype(spec);
    if constexpr (S::kRows < 8) {
      using T = BoxTiles<S, box_warps(S::kTiles), 1>;
      const auto kernel = box_fused_kernel<S, T>;
      launch_next("sm90 box_fused_kernel", kernel, blocks_for(kernel, T::kThreads, plan.shared_bytes, arguments.units),
                  T::kThreads, plan.shared_bytes, stream, a);
    }
  });
}

}  // namespace mhla::sm90
