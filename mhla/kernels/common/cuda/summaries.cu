// The first phase: S_b = sum_t a_t b_t^T and z_b = sum_t factor_t x_t over the tokens of a block. With k and v the
// summaries of forward, with q and dout those of the gradients. One block of threads per 64 x 64 tile of S, one for z.
#include "mhla/kernels/common/cuda/tokens.cuh"

namespace mhla::cuda {
namespace {

constexpr int kRows = 64;

// z, in partial sums of 16 tokens.
template <class T>
__device__ void sum_vectors(const SummaryJob& job, const Place& place, int head, float* memory, float* out) {
  const Wave& wave = job.wave;
  const int half = threadIdx.x / kColumns, column = threadIdx.x % kColumns;
  TokenSource source;
  source.tensor = job.maybe_x, source.mapped = true;
  const TokenRows<T> rows(wave, place, blockIdx.x, source, head, job.of_queries);
  const float* const factor =
      job.maybe_factor ? job.maybe_factor + wave_offset(wave, head, blockIdx.x, wave.C) : nullptr;
  for (int first = 0; first < wave.D; first += kColumns) {
    float total = 0;
    for (int t = 0; t < place.size(); t += kDepth) {
      fill_by_rows<FullF32, kColumns>(memory, rows, t, first);
      __syncthreads();
      float part = 0;
      for (int k = half * 16; k < half * 16 + 16 && t + k < place.size(); ++k) {
        const float x = memory[k * pitch(kColumns) + column];
        part = factor ? fmaf(factor[t + k], x, part) : part + x;
      }
      total += part;
      __syncthreads();
    }
    if (half == 1) memory[column] = total;
    __syncthreads();
    if (half == 0 && first + column < wave.D) out[first + column] = total + memory[column];
    __syncthreads();
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) summary_kernel(const __grid_constant__ SummaryJob job) {
  using A = Arithmetic<T>;
  __shared__ TileMemory<A, kRows> memory;
  const Wave& wave = job.wave;
  const int head = blockIdx.y, tiles_across = ceil_div(wave.E, kColumns);
  const Place place = find_place(wave, blockIdx.x);
  float* const out = job.out + wave_offset(wave, head, blockIdx.x, wave.summary_stride);
  if (blockIdx.z == ceil_div(wave.D, kRows) * tiles_across) {
    sum_vectors<T>(job, place, head, memory.staged, out + wave.D * wave.E);
    return;
  }
  const int d = blockIdx.z / tiles_across * kRows, e = blockIdx.z % tiles_across * kColumns;
  auto *const a = memory.operands.a, *const b = memory.operands.b;
  const TokenRows<T> a_rows(wave, place, blockIdx.x, job.a, head, job.of_queries);
  const TokenRows<T> b_rows(wave, place, blockIdx.x, job.b, head, job.of_queries);
  typename A::template Sums<kRows> sums;
  for (int t = 0; t < place.size(); t += kDepth) {
    fill_by_rows<A, kRows>(a, a_rows, t, d);
    fill_by_rows<A, kColumns>(b, b_rows, t, e);
    __syncthreads();
    sums.template add<Filled::kByRows, Filled::kByRows>(a, b, min(kDepth, place.size() - t));
    __syncthreads();
  }
  stage(sums, memory.staged);
  __syncthreads();
  for_staged<float, kRows>(memory.staged, [&](int row, int column, const float(&x)[4]) {
    if (d + row < wave.D) store_piece(out + (d + row) * wave.E, e + column, wave.E, wave.E % 4 == 0, x);
  });
}

}  // namespace

void block_summaries(DType dtype, const SummaryJob& job, void* stream) {
  const Wave& wave = job.wave;
  const int heads = wave.kv_heads * (job.of_queries ? wave.group : 1);
  const int tiles = ceil_div(wave.D, kRows) * ceil_div(wave.E, kColumns) + (job.maybe_x.given() ? 1 : 0);
  with_type(dtype, [&](auto type) {
    launch(summary_kernel<decltype(type)>, grid_of(wave.blocks, heads, tiles), job, stream, "summary_kernel");
  });
}

}  // namespace mhla::cuda
