// Hopper's own kernels of the causal forward pass (chunkwise_sm90.cuh).
#include "mhla/kernels/chunkwise/chunkwise_sm90.cuh"
#include "mhla/kernels/chunkwise/chunkwise_sm90_output_copies.cuh"
#include "mhla/kernels/chunkwise/chunkwise_sm90_output_products.cuh"
#include "mhla/kernels/chunkwise/chunkwise_sm90_summaries.cuh"

namespace mhla::sm90 {
namespace {

template <class T>
__global__ void __launch_bounds__(kOutputThreads, T::kBlocks)
    causal_output_kernel(const __grid_constant__ OutputArguments a) {
  extern __shared__ __align__(1024) char memory[];
  const OutputShared<T> s{shared_address(memory)};
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0), group = warp / 4;
  if (threadIdx.x == 0) {
    if (s.base % 1024 != 0) __trap();
    s.init();
  }
  __syncthreads();
  if (group == 0) {
    keep_registers<T::kCopyRegisters>();
    if (threadIdx.x % 32 == 0) {
      if (warp == 0) copy_output_keys<T>(a, s);
      if (warp == 1) copy_output_values<T>(a, s);
      if (warp == 2) copy_output_queries<T>(a, s);
    }
  } else if (group == 1) {
    keep_registers<T::kCopyRegisters>();
    warp < 6 ? map_output_keys<T>(a, s, warp - 4) : check_output_values<T>(a, s, warp - 6);
  } else {
    take_registers<T::kOutputRegisters>();
    output_role<T>(a, s, group - 2);
  }
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1) chunk_summary_kernel(const __grid_constant__ SummaryArguments a) {
  extern __shared__ __align__(1024) char memory[];  // [kStages] k, v; ones; barriers
  const SummaryShared<T> s{shared_address(memory)};
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0), group = warp / 4;
  if (threadIdx.x == 0) {
    if (s.base % 1024 != 0) __trap();
    for (int stage = 0; stage < T::kStages; ++stage) {
      barrier_init(s.barrier(T::kCopied, stage), 1);
      barrier_init(s.barrier(T::kReady, stage), 1);
      barrier_init(s.barrier(T::kFree, stage), T::kWarps + 1);
    }
    barriers_ready();
  }
  if (threadIdx.x < 64)
    set_words(s.base + T::kOnesAt + threadIdx.x * 16, {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u});
  publish_shared();
  __syncthreads();
  // Otherwise k and v, or q and dout, come from before the kernels of this pass, whose first one has waited.
  if (a.p.first_of_pass) after_previous();
  if (group == 0) {
    keep_registers<T::kCopyRegisters>();
    if (warp == 0 && threadIdx.x == 0) copy_summary_tiles<T>(a, s);
    if (warp == 1) clear_summary_tiles<T>(a, s);
    if (warp == 2) after_previous(), allow_next();  // what the next one reads of those before comes from behind this
  } else {
    take_registers<T::kSumRegisters>();
    summary_rows<T>(a, s, group - 1);
  }
}

template <class T>
void launch(const char* name, void (*kernel)(T), int threads, int bytes, std::int64_t items, const T& arguments,
            cudaStream_t stream) {
  launch_next(name, kernel, blocks_for(kernel, threads, bytes, items), threads, bytes, stream, arguments);
}

// [units][M][D E + D] to `to`, of `heads` heads of k and v for every kv head.
void launch_ring_summaries(const Arguments& a, const ConstView& k, const ConstView& v, Bf16* to, int heads,
                           float factor, bool with_z, cudaStream_t stream) {
  SummaryArguments all{};
  all.k = token_boxes(k, 64, 64), all.v = token_boxes(v, 64, 64), all.p = a;
  all.to = to, all.heads = heads, all.factor = factor, all.with_z = with_z;
  const std::int64_t items = std::int64_t{a.units / a.parts} * a.M;
  const auto launch_ring = [&](auto ring) {
    using T = decltype(ring);
    launch("sm90 chunk_summary_kernel", chunk_summary_kernel<T>, T::kThreads, T::kBytes, items, all, stream);
  };
  a.parts == 1 ? launch_ring(SummaryRing<1>{}) : launch_ring(SummaryRing<2>{});
}

}  // namespace

void launch_chunk_summaries(const Arguments& a, const Problem& problem, cudaStream_t stream) {
  launch_ring_summaries(a, problem.k, problem.v, a.summaries, 1, 1.0f, true, stream);
}

void launch_chunk_prefix_gradients(const Arguments& a, const Problem& problem, cudaStream_t stream) {
  launch_ring_summaries(a, problem.q, problem.dout, a.mixed, a.group, a.scale, false, stream);
}

void launch_causal_outputs(const Arguments& a, const Problem& problem, cudaStream_t stream) {
  OutputArguments all{};
  all.q = token_boxes(problem.q, 64, kOutputTokens), all.k = token_boxes(problem.k, 64, kOutputTokens);
  all.v = token_boxes(problem.v, 64, kOutputTokens), all.p = a;
  const int panels = tiles_of(a.D, a.E).rows / 4;
  all.prefix = summary_boxes(a.mixed, std::int64_t{a.units} * a.M, a.D * a.E + a.D, a.D, a.E, 64 * panels);
  const std::int64_t items = std::int64_t{a.units / a.parts} * a.group * a.M;
  const auto launch_tiles = [&](auto tiles) {
    using T = decltype(tiles);
    launch("sm90 causal_output_kernel", causal_output_kernel<T>, kOutputThreads, T::kBytes, items, all, stream);
  };
  if (panels == 1) return launch_tiles(OutputTiles<1, 1>{});
  a.parts == 1 ? launch_tiles(OutputTiles<2, 1>{}) : launch_tiles(OutputTiles<2, 2>{});
}

}  // namespace mhla::sm90
