// dmix[i,b] = <dS~_i, S_b>, per sequence and query head as slices of a long product, then summed over slices,
// sequences and the heads that share a matrix. Every sum has a fixed order.
#include "mhla/kernels/common/cuda/tokens.cuh"

namespace mhla::cuda {
namespace {

template <class A, int kRows>
__global__ void __launch_bounds__(kThreads) mix_product_kernel(const __grid_constant__ MixProductJob job) {
  __shared__ TileMemory<A, kRows> memory;
  auto *const a = memory.operands.a, *const b = memory.operands.b;
  const Wave& wave = job.wave;
  const int tiles_down = ceil_div(wave.M, kRows), tiles_across = ceil_div(wave.M, kColumns);
  const int slices = ceil_div(job.columns, kSlice);
  const int row = blockIdx.x % tiles_down * kRows, column = blockIdx.x / tiles_down % tiles_across * kColumns;
  const int slice = blockIdx.x / tiles_down / tiles_across % slices;
  const SequenceBlocks blocks = blocks_of(wave, blockIdx.x / tiles_down / tiles_across / slices);
  const int head = blockIdx.y, count = blocks.count;
  if (row >= count || column >= count || (job.causal && column >= row + kRows)) return;
  const int columns = job.of_tokens ? find_place(wave, blocks.first).size() : job.columns;
  const MatrixRows a_rows{job.a + wave_offset(wave, head, blocks.first, job.a_stride), job.a_stride, count, columns,
                          job.a_stride % 4 == 0};
  const MatrixRows b_rows{
      job.b + wave_offset(wave, job.b_of_queries ? head : head / wave.group, blocks.first, job.b_stride), job.b_stride,
      count, columns, job.b_stride % 4 == 0};
  typename A::template Sums<kRows> sums;
  for (int k = slice * kSlice; k < min(columns, (slice + 1) * kSlice); k += kDepth) {
    fill_by_columns<A, kRows>(a, a_rows, row, k);
    fill_by_columns<A, kColumns>(b, b_rows, column, k);
    __syncthreads();
    sums.template add<Filled::kByColumns, Filled::kByColumns>(a, b, min(kDepth, columns - k));
    __syncthreads();
  }
  float* const out = job.parts + wave_offset(wave, slice * wave.kv_heads * wave.group + head, blocks.first, wave.M);
  sums.visit([&](int r, int c, float& sum) {
    if (row + r < count && column + c < count) out[static_cast<std::int64_t>(row + r) * wave.M + column + c] = sum;
  });
}

// What (i, b) of one sequence and head gives.
__device__ double mix_term(const MixReduceJob& job, int head, const SequenceBlocks& blocks, int i, int b) {
  const Wave& wave = job.wave;
  if (job.maybe_diagonal && i == b) return job.maybe_diagonal[wave_offset(wave, head, blocks.first + i, 1)];
  double sum = 0;
  for (int slice = 0; slice < job.slices; ++slice)
    sum += job.parts[wave_offset(wave, slice * wave.kv_heads * wave.group + head, blocks.first + i, wave.M) + b];
  return sum;
}

// A block of threads owns kEntries entries of a matrix; lane l of an entry takes terms l, l + kLanes, ...
constexpr int kEntries = 8, kLanes = kThreads / kEntries;

__global__ void __launch_bounds__(kThreads) mix_reduce_kernel(const __grid_constant__ MixReduceJob job) {
  __shared__ double lanes[kLanes][kEntries];
  const Wave& wave = job.wave;
  const int L = job.L, lane = threadIdx.x / kEntries;
  const std::int64_t entry = static_cast<std::int64_t>(blockIdx.x) * kEntries + threadIdx.x % kEntries;
  const int row = static_cast<int>(entry / L), column = static_cast<int>(entry % L);
  const int first_head = job.per_head ? blockIdx.y : 0, heads = job.per_head ? 1 : wave.kv_heads * wave.group;
  const bool used = row < L && row < wave.M && column < wave.M && (!job.causal || column <= row);
  double sum = 0;  // few additions, of parts that may cancel
  for (std::int64_t term = lane; used && term < static_cast<std::int64_t>(heads) * wave.sequence_count;
       term += kLanes) {
    const int head = first_head + static_cast<int>(term / wave.sequence_count);
    const SequenceBlocks blocks = blocks_of(wave, term % wave.sequence_count);
    if (row < blocks.count && column < blocks.count) sum += mix_term(job, head, blocks, row, column);
    // Rows beyond the matrix reuse its last one by distance, and its first column for all that is further away.
    for (int i = L; row == L - 1 && i < blocks.count; ++i) {
      const int b = i - (L - 1 - column);
      for (int far = column == 0 ? 0 : b; far <= b; ++far) sum += mix_term(job, head, blocks, i, far);
    }
  }
  lanes[lane][threadIdx.x % kEntries] = sum;
  __syncthreads();
  if (lane != 0 || !used) return;
  for (int other = 1; other < kLanes; ++other) sum += lanes[other][threadIdx.x];
  const std::int64_t matrix = job.per_head ? query_head(wave, blockIdx.y) : 0;
  job.dmix[matrix * job.head_stride + row * job.row_stride + column * job.column_stride] += static_cast<float>(sum);
}

__global__ void __launch_bounds__(kThreads) mix_clear_kernel(const __grid_constant__ MixReduceJob job) {
  const std::int64_t entry = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t row = entry / job.L, column = entry % job.L;
  if (row < job.L) job.dmix[blockIdx.y * job.head_stride + row * job.row_stride + column * job.column_stride] = 0;
}

template <class A>
void mix_products(const MixProductJob& job, void* stream) {
  const Wave& wave = job.wave;
  const bool low = wave.M <= 16;
  const std::int64_t tiles = static_cast<std::int64_t>(ceil_div(wave.M, low ? 16 : 64)) * ceil_div(wave.M, kColumns);
  launch(low ? mix_product_kernel<A, 16> : mix_product_kernel<A, 64>,
         grid_of(wave.sequence_count * tiles * ceil_div(job.columns, kSlice), wave.kv_heads * wave.group), job, stream,
         "mix_product_kernel");
}

}  // namespace

void mix_products(DType arithmetic, const MixProductJob& job, void* stream) {
  if (arithmetic == DType::kF32) return mix_products<FullF32>(job, stream);
  mix_products<SplitTf32>(job, stream);  // dmix is f32, and a difference of large terms with a normaliser
}

void clear_mix_gradient(const MixReduceJob& job, std::int64_t matrices, void* stream) {
  const std::int64_t entries = static_cast<std::int64_t>(job.L) * job.L;
  launch(mix_clear_kernel, grid_of((entries + kThreads - 1) / kThreads, matrices), job, stream, "mix_clear_kernel");
}

void reduce_mix_gradient(const MixReduceJob& job, void* stream) {
  const std::int64_t entries = static_cast<std::int64_t>(job.L) * job.L;
  launch(mix_reduce_kernel,
         grid_of((entries + kEntries - 1) / kEntries, job.per_head ? job.wave.kv_heads * job.wave.group : 1), job,
         stream, "mix_reduce_kernel");
}

}  // namespace mhla::cuda
