// Hopper's own kernels of the bidirectional forward pass (bidirectional_sm90.cuh).
#include "mhla/kernels/bidirectional/bidirectional_sm90.cuh"
#include "mhla/kernels/bidirectional/bidirectional_sm90_heads.cuh"
#include "mhla/kernels/bidirectional/bidirectional_sm90_readout.cuh"
#include "mhla/kernels/bidirectional/bidirectional_sm90_short.cuh"

namespace mhla::sm90 {

void launch_short(const Problem& p, const Arguments& a, cudaStream_t stream) {
  with_spec<false>(a, [&](auto spec) {
    using S = decltype(spec);
    if constexpr (S::kRows == 4) {  // as on_warpgroups() says
      const PairShape shape = pair_shape(p, p.H);
      const int groups = short_groups(panel_rows(shape.tiles)), threads = groups * 128,
                bytes = short_shared_bytes(groups);
      const auto kernel = groups == 1 ? short_kernel<S, 1> : groups == 2 ? short_kernel<S, 2> : short_kernel<S, 4>;
      const std::int64_t heads = p.B * p.H;
      launch_next("sm90 short_kernel", kernel, blocks_for(kernel, threads, bytes, heads), threads, bytes, stream, a,
                  shape, static_cast<int>(heads));
    }
  });
}

void launch_short_boxes(const Problem& p, const Arguments& a, cudaStream_t stream) {
  with_spec<false>(a, [&](auto spec) {
    using S = decltype(spec);
    if constexpr (S::kRows == 4) {
      constexpr int bytes = HeadMemory::kBytes, threads = kForwardThreads;
      const auto kernel = head_box_kernel<S>;
      const std::int64_t heads = p.B * p.H;
      launch_next("sm90 head_box_kernel", kernel, blocks_for(kernel, threads, bytes, heads), threads, bytes, stream, a,
                  head_boxes(p), pair_shape(p, p.H), static_cast<int>(heads));
    }
  });
}

void launch_panel_readout(const Arguments& a, cudaStream_t stream) {
  with_panel_spec<false>(a, [&](auto spec) { launch_panel_readout<decltype(spec)>(a, stream); });
}

}  // namespace mhla::sm90
