// The third phase: rows of tokens times summaries. Forward, dq, dk and dv are all of this kind (jobs.h, ReadOutJob).
#include "mhla/kernels/common/cuda/read_out.cuh"

namespace mhla::cuda {
namespace {

// slope(x) * (scale * sum / den + factor * z), one row of output after the other.
template <class T, int kRows>
__device__ void write_rows(const ReadOutJob& job, const Place& place, std::int64_t block, int head, int row, int column,
                           const float* staged) {
  const Wave& wave = job.wave;
  const std::int64_t values = wave_offset(wave, head, block, wave.C);
  const int z_head = job.z_of_keys && job.of_queries ? head / wave.group : head;
  const float* const z = job.maybe_z ? job.maybe_z + wave_offset(wave, z_head, block, wave.summary_stride) : nullptr;
  const int tensor_head = job.of_queries ? query_head(wave, head) : wave.first_kv_head + head;
  for_staged<T, kRows>(staged, [&](int r, int c, auto& x) {
    constexpr int kSize = Piece<T>::kSize;
    const int w = row + r;
    c += column;
    if (w >= place.size() || c >= job.out.columns) return;
    const float den = job.maybe_den ? job.maybe_den[values + w] : 1.0f;
    const float factor = job.maybe_factor ? job.maybe_factor[values + w] : 1.0f;
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      x[j] = job.scale * x[j];
      if (job.maybe_den) x[j] /= den;
      if (z && c + j < job.out.columns) x[j] = fmaf(factor, z[c + j], x[j]);
    }
    if (job.maybe_slope_of.given()) {
      const DeviceTensor& of = job.maybe_slope_of;
      const Piece<T> at = load_piece(token_row<const T>(of, place, tensor_head, w), c, of.columns, of.vector);
#pragma unroll
      for (int j = 0; j < kSize; ++j) x[j] = through_slope(wave.feature_map, widen(at.x[j]), x[j]);
    }
    store_piece(token_row<T>(job.out, place, tensor_head, w), c, job.out.columns, job.out.vector, x);
  });
}

template <class T, int kRows, bool kTransposed, bool kCausal>
__global__ void __launch_bounds__(kThreads) read_out_kernel(const __grid_constant__ ReadOutJob job) {
  using A = Arithmetic<T>;
  __shared__ ReadOutMemory<A, kRows, kCausal> memory;
  const Wave& wave = job.wave;
  const int tiles = ceil_div(wave.C, kRows), head = blockIdx.y, column = blockIdx.z * kColumns;
  const std::int64_t block = blockIdx.x / tiles;
  const int row = blockIdx.x % tiles * kRows;
  const Place place = find_place(wave, block);
  if (row >= place.size()) return;
  const TokenRows<T, kCausal> rows(wave, place, block, job.a, head, job.of_queries);
  const MatrixRows summary{job.summaries + wave_offset(wave, head, block, wave.summary_stride), wave.E, wave.D, wave.E,
                           wave.E % 4 == 0};
  typename A::template Sums<kRows> sums;
  add_summary<kTransposed>(sums, memory, rows, row, summary, column);
  if constexpr (kCausal) {
    for (int g = 0; g < (job.of_queries ? 1 : wave.group); ++g) {
      const int query = job.of_queries ? head : head * wave.group + g;
      const int other = job.of_queries ? head / wave.group : query;
      const TokenRows<T, kCausal> y(wave, place, block, job.y, other, !job.of_queries);
      const TokenRows<T, kCausal> w(wave, place, block, job.w, other, !job.of_queries);
      const float coefficient = job.mix.at(query_head(wave, query), place.block, place.block);
      const float* const bias = job.maybe_bias ? job.maybe_bias + wave_offset(wave, query, block, wave.C) : nullptr;
      add_inside(sums, memory, rows, row, y, w, column, Inside{job.after, coefficient, bias});
    }
  }
  float* const staged = memory.tile.staged;
  stage(sums, staged);
  __syncthreads();
  write_rows<T, kRows>(job, place, block, head, row, column, staged);
}

template <class T, int kRows>
void launch_read_out(const ReadOutJob& job, void* stream) {
  const Wave& wave = job.wave;
  const bool causal = job.y.tensor.given();
  const auto kernel =
      causal ? (job.transposed ? read_out_kernel<T, kRows, true, true> : read_out_kernel<T, kRows, false, true>)
             : (job.transposed ? read_out_kernel<T, kRows, true, false> : read_out_kernel<T, kRows, false, false>);
  const std::int64_t tiles = ceil_div(wave.C, kRows);
  launch(kernel,
         grid_of(wave.blocks * tiles, wave.kv_heads * (job.of_queries ? wave.group : 1),
                 ceil_div(job.out.columns, kColumns)),
         job, stream, "read_out_kernel");
}

}  // namespace

void read_out(DType dtype, const ReadOutJob& job, void* stream) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    job.wave.low_tiles ? launch_read_out<T, 16>(job, stream) : launch_read_out<T, 64>(job, stream);
  });
}

}  // namespace mhla::cuda
