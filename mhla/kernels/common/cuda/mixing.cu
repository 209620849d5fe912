// The second phase: every block gets its own weighted sum of all summaries, one product of mix [M x M] and a matrix
// with one long row per block. The causal form leaves terms out (b < i), and a masked product would let a NaN of a
// later chunk through: tiles on the diagonal look whether there is one.
#include "mhla/kernels/common/cuda/tokens.cuh"

namespace mhla::cuda {
namespace {

// Whether block k is a term of row x.
struct Kept {
  MixTerms terms;
  int L;  // rows beyond it start from a running sum of their oldest blocks; INT_MAX where no row does

  __device__ bool operator()(int k, int x) const {
    if (terms == MixTerms::kBefore) {
      const int near = x < L ? 0 : min(x - L + 2, x);
      return near <= k && k < x;
    }
    return terms == MixTerms::kAll || k > x;
  }
};

// Coefficients of rows [row, row + kRows) and blocks [block, block + kDepth), zero where there is no term. Neighbouring
// threads read along a row of mix.
template <class A, int kRows>
__device__ void fill_coefficients(typename A::Operand* tile, const MixJob& job, const Kept& kept, int head, int row,
                                  int block, int count) {
  const DeviceMix& mix = job.mix;
  const int along = job.back ? kRows : kDepth, lines = kThreads / along;
  const int first = static_cast<int>(threadIdx.x) % along, line = static_cast<int>(threadIdx.x) / along;
#pragma unroll 4
  for (int n = line; n < kRows * kDepth / along; n += lines) {
    const int x = job.back ? first : n, k = job.back ? n : first;
    const int i = job.back ? block + k : row + x, b = job.back ? row + x : block + k;  // entry of mix
    float value = 0;
    if (row + x < count && block + k < count && kept(block + k, row + x)) {
      value = i < mix.L ? mix.data[head * mix.head_stride + i * mix.row_stride + b * mix.column_stride]
                        : mix.at(head, i, b);
    }
    tile[k * pitch(kRows) + x] = A::operand(value);
  }
}

template <class A, int kRows>
__global__ void __launch_bounds__(kThreads) mix_kernel(const __grid_constant__ MixJob job) {
  __shared__ TileMemory<A, kRows> memory;
  auto *const a = memory.operands.a, *const b = memory.operands.b;
  const Wave& wave = job.wave;
  // Tiles of the same columns are neighbours: they read the same part of `in`.
  const int tiles_down = ceil_div(wave.M, kRows), tiles_across = ceil_div(job.columns, kColumns);
  const int row = blockIdx.x % tiles_down * kRows, column = blockIdx.x / tiles_down % tiles_across * kColumns;
  const SequenceBlocks blocks = blocks_of(wave, blockIdx.x / tiles_down / tiles_across);
  const int head = blockIdx.y, count = blocks.count;
  if (row >= count) return;
  const Kept kept{job.terms, job.seeded ? job.mix.L : 0x7fffffff};
  const int begin = job.terms == MixTerms::kAfter ? row / kDepth * kDepth : 0;
  const int end = job.terms == MixTerms::kBefore ? min(count, row + kRows) : count;
  float* const out = job.out + wave_offset(wave, head, blocks.first, job.out_stride);

  typename A::template Sums<kRows> sums;
  if (job.seeded) {
    sums.visit([&](int r, int c, float& sum) {
      if (row + r >= job.mix.L && row + r < count && column + c < job.columns)
        sum = out[(row + r) * job.out_stride + column + c];
    });
  }
  for (int g = 0; g < (job.over_group ? wave.group : 1); ++g) {
    const int query = job.over_group ? head * wave.group + g : head;
    const int in_head = job.over_group || job.in_of_queries ? query : query / wave.group;
    const MatrixRows in{job.in + wave_offset(wave, in_head, blocks.first, job.in_stride), job.in_stride, count,
                        job.columns, job.in_stride % 4 == 0};
    for (int k = begin; k < end; k += kDepth) {
      fill_coefficients<A, kRows>(a, job, kept, query_head(wave, query), row, k, count);
      const bool finite = __syncthreads_and(fill_by_rows<A, kColumns>(b, in, k, column));
      const int depth = min(kDepth, end - k);
      if (!finite && job.terms != MixTerms::kAll)
        add_not_finite<kRows>(sums, a, b, depth, [&](int at, int x) { return kept(k + at, row + x); });
      sums.template add<Filled::kByRows, Filled::kByRows>(a, b, depth);
      __syncthreads();
    }
  }
  stage(sums, memory.staged);
  __syncthreads();
  for_staged<float, kRows>(memory.staged, [&](int r, int c, float(&x)[4]) {
    if (row + r >= count) return;
#pragma unroll
    for (float& sum : x) sum += job.add;
    store_piece(out + (row + r) * job.out_stride, column + c, job.columns, job.out_stride % 4 == 0, x);
  });
}

__global__ void __launch_bounds__(kThreads) seed_kernel(const __grid_constant__ SeedJob job) {
  const Wave& wave = job.wave;
  const int tiles_across = ceil_div(job.columns, kThreads), head = blockIdx.y, L = job.mix.L;
  const int column = blockIdx.x % tiles_across * kThreads + threadIdx.x;
  if (column >= job.columns) return;
  const SequenceBlocks blocks = blocks_of(wave, blockIdx.x / tiles_across);
  const float* const in = job.in + wave_offset(wave, head / wave.group, blocks.first, wave.summary_stride) + column;
  float* const out = job.out + wave_offset(wave, head, blocks.first, wave.summary_stride) + column;
  const float coefficient = job.mix.at(query_head(wave, head), L, 0);
  float old = 0;
  int summed = 0;
  for (int i = L; i < blocks.count; ++i) {
    for (const int near = min(i - L + 2, i); summed < near; ++summed) old += in[summed * wave.summary_stride];
    out[i * wave.summary_stride] = coefficient * old;
  }
}

__global__ void __launch_bounds__(kThreads) sum_heads_kernel(const __grid_constant__ SumHeadsJob job) {
  const Wave& wave = job.wave;
  for (int c = threadIdx.x; c < wave.D; c += kThreads) {
    float sum = 0;
    for (int g = 0; g < wave.group; ++g)
      sum += job.in[wave_offset(wave, blockIdx.y * wave.group + g, blockIdx.x, wave.summary_stride) + c];
    job.out[wave_offset(wave, blockIdx.y, blockIdx.x, wave.summary_stride) + c] = sum;
  }
}

template <class A>
void mix_blocks(const MixJob& job, void* stream) {
  const Wave& wave = job.wave;
  const int heads = wave.kv_heads * (job.over_group ? 1 : wave.group);
  const bool low = job.mix.L <= 16;  // not M, which the longest sequence of a batch decides
  const std::int64_t tiles =
      static_cast<std::int64_t>(ceil_div(wave.M, low ? 16 : 64)) * ceil_div(job.columns, kColumns);
  launch(low ? mix_kernel<A, 16> : mix_kernel<A, 64>, grid_of(wave.sequence_count * tiles, heads), job, stream,
         "mix_kernel");
}

}  // namespace

void mix_blocks(DType arithmetic, const MixJob& job, void* stream) {
  if (arithmetic == DType::kF32) return mix_blocks<FullF32>(job, stream);
  mix_blocks<Tf32>(job, stream);
}

void sum_heads(const SumHeadsJob& job, void* stream) {
  launch(sum_heads_kernel, grid_of(job.wave.blocks, job.wave.kv_heads), job, stream, "sum_heads_kernel");
}

void seed_prefixes(const SeedJob& job, void* stream) {
  const Wave& wave = job.wave;
  if (wave.M <= job.mix.L) return;
  const std::int64_t tiles = ceil_div(job.columns, kThreads);
  launch(seed_kernel, grid_of(wave.sequence_count * tiles, wave.kv_heads * wave.group), job, stream, "seed_kernel");
}

}  // namespace mhla::cuda
