// The first phase: S_b = sum_t a_t b_t^T and z_b = sum_t factor_t x_t over the tokens of a block. With k and v the
// summaries of forward, with q and dout those of the gradients. One block of threads per 64 x 64 tile of S, one for z.
#include "mhla/kernels/common/cuda/summaries.cuh"

namespace mhla::cuda {
namespace {

template <class T, class A>
__global__ void __launch_bounds__(kThreads) summary_kernel(const __grid_constant__ SummaryJob job) {
  __shared__ TileMemory<A, kSummaryRows> memory;
  const Wave& wave = job.wave;
  const int head = blockIdx.y, tiles_across = ceil_div(wave.E, kColumns);
  const Place place = find_place(wave, blockIdx.x);
  float* const out = job.out + wave_offset(wave, head, blockIdx.x, wave.summary_stride);
  if (blockIdx.z == ceil_div(wave.D, kSummaryRows) * tiles_across) {
    TokenSource source;
    source.tensor = job.maybe_x, source.mapped = true;
    const TokenRows<T> rows(wave, place, blockIdx.x, source, head, job.of_queries);
    const float* const factor =
        job.maybe_factor ? job.maybe_factor + wave_offset(wave, head, blockIdx.x, wave.C) : nullptr;
    sum_vectors(memory.staged, rows, place.size(), factor, wave.D, out + wave.D * wave.E);
    return;
  }
  const int d = blockIdx.z / tiles_across * kSummaryRows, e = blockIdx.z % tiles_across * kColumns;
  const TokenRows<T> a_rows(wave, place, blockIdx.x, job.a, head, job.of_queries);
  const TokenRows<T> b_rows(wave, place, blockIdx.x, job.b, head, job.of_queries);
  summary_tile(memory, a_rows, b_rows, place.size(), d, e, wave.D, wave.E, out);
}

}  // namespace

void block_summaries(DType dtype, const SummaryJob& job, void* stream) {
  const Wave& wave = job.wave;
  const int heads = wave.kv_heads * (job.of_queries ? wave.group : 1);
  const int tiles = ceil_div(wave.D, kSummaryRows) * ceil_div(wave.E, kColumns) + (job.maybe_x.given() ? 1 : 0);
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    auto kernel = summary_kernel<T, Arithmetic<T>>;
    // A gradient over its denominator is no f16, and its roundings would be all that is left in dmix, a difference.
    if constexpr (std::is_same_v<T, f16>) {
      if (job.b.scaled) kernel = summary_kernel<T, SplitTf32>;
    }
    launch(kernel, grid_of(wave.blocks, heads, tiles), job, stream, "summary_kernel");
  });
}

}  // namespace mhla::cuda
