// What belongs to the normaliser: denominators, their gradients, and the gradients of q_den and k_den. One f32 per
// token in block order; always in full f32.
#include "mhla/kernels/common/cuda/read_out.cuh"

namespace mhla::cuda {
namespace {

constexpr int kWarps = kThreads / 32;
constexpr int kMaxColumns = 256;  // D
constexpr int kTokens = 32;       // of a block of threads at a time

template <class T>
__global__ void __launch_bounds__(kThreads) denominator_kernel(const __grid_constant__ DenominatorJob job) {
  const Wave& wave = job.wave;
  const int tiles = ceil_div(wave.C, kTokens), head = blockIdx.y;
  const std::int64_t block = blockIdx.x / tiles;
  const int first = blockIdx.x % tiles * kTokens;
  const Place place = find_place(wave, block);
  const float* const z =
      job.z + wave_offset(wave, job.z_of_queries ? head : head / wave.group, block, wave.summary_stride);
  float* const out = job.out + wave_offset(wave, head, block, wave.C);
  for (int w = first + threadIdx.x / 32; w < min(first + kTokens, place.size()); w += kWarps) {
    const float dot = dot_row(wave.feature_map, token_row<const T>(job.q, place, query_head(wave, head), w), z, wave.D);
    if (threadIdx.x % 32 == 0) out[w] = dot + job.add;
  }
}

// The running sum c_t of the chunk stands in shared memory, kTokens rows at a time.
template <class T>
__global__ void __launch_bounds__(kThreads)
    causal_denominator_kernel(const __grid_constant__ CausalDenominatorJob job) {
  __shared__ float running[kTokens][kMaxColumns];
  const Wave& wave = job.wave;
  const int head = blockIdx.y, query = query_head(wave, head);
  const std::int64_t block = blockIdx.x, values = wave_offset(wave, head, block, wave.C);
  const Place place = find_place(wave, block);
  const float* const z = job.z + wave_offset(wave, head, block, wave.summary_stride);
  const float coefficient = job.mix.at(query, place.block, place.block);
  float base[kMaxColumns / kThreads] = {};
  for (int first = 0; first < place.size(); first += kTokens) {
    const int count = min(kTokens, place.size() - first);
    for (int c = threadIdx.x, own = 0; c < wave.D; c += kThreads, ++own) {
      float part = 0;
      for (int w = 0; w < count; ++w) {
        part += feature(wave.feature_map, widen(token_row<const T>(job.k, place, query / wave.group, first + w)[c]));
        running[w][c] = base[own] + part;
      }
      base[own] += part;
    }
    __syncthreads();
    for (int w = threadIdx.x / 32; w < count; w += kWarps) {
      const T* const q = token_row<const T>(job.q, place, query, first + w);
      const float before = dot_row(wave.feature_map, q, z, wave.D);
      const float open = dot_row(wave.feature_map, q, running[w], wave.D);
      if (threadIdx.x % 32 == 0) {
        job.den[values + first + w] = fmaf(coefficient, open, before + job.eps);
        if (job.maybe_open) job.maybe_open[values + first + w] = open;
      }
    }
    __syncthreads();
  }
}

// dots[r] += staged row r . dout row, over columns [column, column + kColumns).
template <class T, int kRows>
__device__ void add_dots(const RowDotJob& job, const Place& place, int query, int row, int column, const float* staged,
                         float* dots) {
  const int lane = threadIdx.x % 32;
  for (int r = threadIdx.x / 32; r < kRows && row + r < place.size(); r += kWarps) {
    const T* const g = token_row<const T>(job.dout.tensor, place, query, row + r);
    float dot = 0;
    for (int c = lane; c < kColumns && column + c < job.wave.E; c += 32)
      dot = fmaf(widen(g[column + c]), staged[r * kStagePitch + c], dot);
    dot = warp_sum(dot);
    if (lane == 0) dots[r] += dot;
  }
}

template <class T, int kRows, bool kCausal>
__global__ void __launch_bounds__(kThreads) row_dot_kernel(const __grid_constant__ RowDotJob job) {
  using A = Arithmetic<T>;
  __shared__ ReadOutMemory<A, kRows, kCausal> memory;
  __shared__ float before[kRows], inside[kRows];
  const Wave& wave = job.wave;
  const int tiles = ceil_div(wave.C, kRows), head = blockIdx.y, query = query_head(wave, head);
  const std::int64_t block = blockIdx.x / tiles;
  const int row = blockIdx.x % tiles * kRows;
  const Place place = find_place(wave, block);
  if (row >= place.size()) return;
  if (threadIdx.x < kRows) before[threadIdx.x] = inside[threadIdx.x] = 0;
  __syncthreads();
  const TokenRows<T, kCausal> rows(wave, place, block, job.q, head, true);
  const MatrixRows summary{job.summaries + wave_offset(wave, head, block, wave.summary_stride), wave.E, wave.D, wave.E,
                           wave.E % 4 == 0};
  float* const staged = memory.tile.staged;
  for (int column = 0; job.maybe_before && column < wave.E; column += kColumns) {
    typename A::template Sums<kRows> sums;
    add_summary<false>(sums, memory, rows, row, summary, column);
    stage(sums, staged);
    __syncthreads();
    add_dots<T, kRows>(job, place, query, row, column, staged, before);
    __syncthreads();
  }
  if constexpr (kCausal) {
    const TokenRows<T, kCausal> g(wave, place, block, job.dout, head, true);
    const TokenRows<T, kCausal> k(wave, place, block, job.k, head / wave.group, false);
    const TokenRows<T, kCausal> v(wave, place, block, job.v, head / wave.group, false);
    for (int other = 0; other < min(place.size(), row + kRows); other += kOthers) {
      typename A::template Sums<kRows> scores, values;
      add_token_products(scores, memory, rows, row, k, other);
      add_token_products(values, memory, g, row, v, other);
      scores.multiply_by(values);
      scores.visit([&](int r, int o, float& product) { product = other + o <= row + r ? product : 0.0f; });
      stage(scores, staged);
      __syncthreads();
      for (int r = threadIdx.x / 32; r < kRows && row + r < place.size(); r += kWarps) {
        const float* const products = staged + r * kStagePitch + threadIdx.x % 32;
        const float sum = warp_sum(products[0] + products[32]);
        if (threadIdx.x % 32 == 0) inside[r] += sum;
      }
      __syncthreads();
    }
  }
  const std::int64_t values = wave_offset(wave, head, block, wave.C);
  if (threadIdx.x < kRows && row + threadIdx.x < place.at.size) {
    if (job.maybe_before) job.maybe_before[values + row + threadIdx.x] = before[threadIdx.x];
    if (kCausal) job.maybe_inside[values + row + threadIdx.x] = inside[threadIdx.x];
  }
}

__global__ void __launch_bounds__(kThreads) dot_gradient_kernel(const __grid_constant__ DotGradientJob job) {
  __shared__ float warps[kWarps];
  const Wave& wave = job.wave;
  const int head = blockIdx.y;
  const std::int64_t block = blockIdx.x, values = wave_offset(wave, head, block, wave.C);
  const Place place = find_place(wave, block);
  const float coefficient = job.maybe_inside ? job.mix.at(query_head(wave, head), place.block, place.block) : 0.0f;
  float diagonal = 0;
  for (int w = threadIdx.x; w < place.size(); w += kThreads) {
    const std::int64_t at = values + w;
    const float inside = job.maybe_inside ? job.maybe_inside[at] : 0.0f;
    float dden = 0;
    if (job.maybe_den) {
      const float dot = job.maybe_inside ? fmaf(coefficient, inside, job.maybe_before[at]) : job.maybe_before[at];
      const double den = job.maybe_den[at];  // dmix is a difference of large terms: one rounding here, not three
      dden = static_cast<float>(-job.scale * dot / (den * den));
      job.maybe_dden[at] = dden;
    }
    if (job.maybe_diagonal) {
      diagonal += job.scale * inside / (job.maybe_den ? job.maybe_den[at] : 1.0f);
      if (job.maybe_den) diagonal = fmaf(dden, job.maybe_open[at], diagonal);
    }
  }
  if (job.maybe_diagonal == nullptr) return;
  diagonal = warp_sum(diagonal);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = diagonal;
  __syncthreads();
  if (threadIdx.x == 0) {
    float sum = 0;
    for (const float warp : warps) sum += warp;
    job.maybe_diagonal[static_cast<std::int64_t>(head) * wave.blocks + block] = sum;
  }
}

// A thread owns a column of x and walks the tokens: forward for queries, backward for keys.
template <class T>
__global__ void __launch_bounds__(kThreads) vector_gradient_kernel(const __grid_constant__ VectorGradientJob job) {
  const Wave& wave = job.wave;
  const bool causal = job.maybe_y.given();
  const int tokens = causal ? wave.C : kTokens, tiles = ceil_div(wave.C, tokens), head = blockIdx.y;
  const std::int64_t block = blockIdx.x / tiles;
  const int first = blockIdx.x % tiles * tokens, column = blockIdx.z * kThreads + threadIdx.x;
  const Place place = find_place(wave, block);
  if (column >= wave.D) return;
  const int tensor_head = job.of_queries ? query_head(wave, head) : wave.first_kv_head + head;
  const int z_head = job.z_of_keys && job.of_queries ? head / wave.group : head;
  const float z = job.z[wave_offset(wave, z_head, block, wave.summary_stride) + column];
  const int last = min(first + tokens, place.size()) - 1;
  float base = 0, part = 0;  // of the running sum
  for (int step = 0; step <= last - first; ++step) {
    const int w = job.of_queries ? first + step : last - step;
    if (step % kTokens == 0) base += part, part = 0;
    float value = z;
    if (causal && job.of_queries) {
      part +=
          feature(wave.feature_map, widen(token_row<const T>(job.maybe_y, place, tensor_head / wave.group, w)[column]));
      value = fmaf(job.mix.at(tensor_head, place.block, place.block), base + part, z);
    } else if (causal) {
      for (int g = 0; g < wave.group; ++g) {
        const int query = head * wave.group + g;
        const float y = feature(wave.feature_map,
                                widen(token_row<const T>(job.maybe_y, place, query_head(wave, query), w)[column]));
        const float factor = job.maybe_factor[wave_offset(wave, query, block, wave.C) + w];
        part = fmaf(job.mix.at(query_head(wave, query), place.block, place.block) * factor, y, part);
      }
      value = z + (base + part);
    }
    if (job.of_queries && job.maybe_factor) value *= job.maybe_factor[wave_offset(wave, head, block, wave.C) + w];
    const float x = widen(token_row<const T>(job.x, place, tensor_head, w)[column]);
    token_row<T>(job.out, place, tensor_head, w)[column] = narrow<T>(through_slope(wave.feature_map, x, value));
  }
}

template <class T, int kRows>
void launch_row_dots(const RowDotJob& job, void* stream) {
  const Wave& wave = job.wave;
  const std::int64_t tiles = ceil_div(wave.C, kRows);
  launch(job.k.tensor.given() ? row_dot_kernel<T, kRows, true> : row_dot_kernel<T, kRows, false>,
         grid_of(wave.blocks * tiles, wave.kv_heads * wave.group), job, stream, "row_dot_kernel");
}

}  // namespace

void denominators(DType dtype, const DenominatorJob& job, void* stream) {
  const Wave& wave = job.wave;
  const std::int64_t tiles = ceil_div(wave.C, kTokens);
  with_type(dtype, [&](auto type) {
    launch(denominator_kernel<decltype(type)>, grid_of(wave.blocks * tiles, wave.kv_heads * wave.group), job, stream,
           "denominator_kernel");
  });
}

void causal_denominators(DType dtype, const CausalDenominatorJob& job, void* stream) {
  const Wave& wave = job.wave;
  with_type(dtype, [&](auto type) {
    launch(causal_denominator_kernel<decltype(type)>, grid_of(wave.blocks, wave.kv_heads * wave.group), job, stream,
           "causal_denominator_kernel");
  });
}

void row_dots(DType dtype, const RowDotJob& job, void* stream) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    job.wave.low_tiles ? launch_row_dots<T, 16>(job, stream) : launch_row_dots<T, 64>(job, stream);
  });
}

void dot_gradients(const DotGradientJob& job, void* stream) {
  const Wave& wave = job.wave;
  launch(dot_gradient_kernel, grid_of(wave.blocks, wave.kv_heads * wave.group), job, stream, "dot_gradient_kernel");
}

void vector_gradients(DType dtype, const VectorGradientJob& job, void* stream) {
  const Wave& wave = job.wave;
  const std::int64_t tiles = job.maybe_y.given() ? 1 : ceil_div(wave.C, kTokens);
  with_type(dtype, [&](auto type) {
    launch(vector_gradient_kernel<decltype(type)>,
           grid_of(wave.blocks * tiles, wave.kv_heads * (job.of_queries ? wave.group : 1), ceil_div(wave.D, kThreads)),
           job, stream, "vector_gradient_kernel");
  });
}

}  // namespace mhla::cuda
