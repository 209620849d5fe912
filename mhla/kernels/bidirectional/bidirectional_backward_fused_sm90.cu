// Launches of the fused backward kernel of Hopper (bidirectional_backward_sm90_fused.cuh).
#include "mhla/kernels/bidirectional/bidirectional_backward_sm90_fused.cuh"
#include "mhla/kernels/bidirectional/bidirectional_sm90.cuh"

namespace mhla::sm90 {
namespace {

// f(kernel, threads) for the tiles of a problem.
template <class F>
void with_gradient_kernel(const Arguments& a, const F& f) {
  with_spec<false>(a, [&](auto spec) {
    using S = decltype(spec);
    if constexpr (S::kRows < 8) {
      using T = BoxTiles<S, box_gradient_warps(S::kTiles), 2>;
      f(box_gradient_kernel<S, T>, T::kThreads);
    }
  });
}

}  // namespace

int box_gradient_blocks(const Arguments& a, const BoxPlan& plan) {
  int blocks = 0;
  with_gradient_kernel(a, [&](auto kernel, int threads) {
    blocks = static_cast<int>(blocks_for(kernel, threads, plan.shared_bytes, a.units));
  });
  return blocks;
}

void launch_box_gradients(const Problem& p, const Arguments& arguments, float* maybe_parts, const BoxPlan& plan,
                          cudaStream_t stream) {
  const BlockBoxes boxes = block_boxes(p.layout, p.N);
  const int pitch = pitch_of(tiles_of(p.D, p.E));
  const auto map = [&](const auto& x) { return grid_boxes(x, boxes.width, pitch, boxes.across, boxes.down); };
  const int blocks = box_gradient_blocks(arguments, plan);
  BoxGradientArguments a{map(p.q), map(p.k), map(p.v), map(p.dout), map(p.dq), map(p.dk), map(p.dv)};
  if (maybe_parts != nullptr) a.kept = kept_summaries(arguments, plan, blocks, 2 * pitch - 16);
  a.maybe_parts = maybe_parts, a.p = arguments, a.plan = plan, a.grid = box_grid(p, boxes);
  with_gradient_kernel(arguments, [&](auto kernel, int threads) {
    launch_next("sm90 box_gradient_kernel", kernel, static_cast<unsigned>(blocks), threads, plan.shared_bytes, stream,
                a);
  });
}

}  // namespace mhla::sm90
