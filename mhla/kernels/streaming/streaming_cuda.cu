// The phases of the causal form over states (README.md, "On a CUDA device"): the tiles and sums of chunkwise_cuda.cu,
// so its bits, with tokens from rings and summaries from slots. Blocks along x are places in a piece, along y heads,
// along z sequences.
#include "mhla/kernels/common/cuda/read_out.cuh"
#include "mhla/kernels/common/cuda/summaries.cuh"
#include "mhla/kernels/streaming/streaming_rows.cuh"

namespace mhla::cuda {
namespace {

constexpr int kWarps = kThreads / 32;
constexpr int kMaxColumns = 256;  // D
constexpr int kTokens = 32;       // of a running sum at a time

template <class T>
__global__ void __launch_bounds__(kThreads) stream_summary_kernel(const __grid_constant__ StreamJob job) {
  __shared__ TileMemory<Arithmetic<T>, kSummaryRows> memory;
  const StreamShape& s = job.shape;
  const StreamSequence& sequence = job.sequences[blockIdx.z];
  const int tiles_across = ceil_div(s.E, kColumns), products = ceil_div(s.D, kSummaryRows) * tiles_across;
  const int tiles = products + (s.normalized ? 1 : 0), n = blockIdx.x / tiles, tile = blockIdx.x % tiles;
  const int head = blockIdx.y;
  if (n >= sequence.closed) return;
  const StreamChunk place(job, sequence, n);
  float* const out = slot_of(s, sequence, head, place.chunk);
  if (tile == products) {
    const StreamRows<T> rows(job, sequence, place, s.has_den ? job.k_den : job.k, head, s.has_den ? s.k_den : s.k,
                             s.feature_map);
    sum_vectors(memory.staged, rows, s.C, nullptr, s.D, out + s.D * s.E);
    return;
  }
  const StreamRows<T> k(job, sequence, place, job.k, head, s.k, s.feature_map);
  const StreamRows<T> v(job, sequence, place, job.v, head, s.v, FeatureMap::kIdentity);
  summary_tile(memory, k, v, s.C, tile / tiles_across * kSummaryRows, tile % tiles_across * kColumns, s.D, s.E, out);
}

// The first block that row i weighs by itself: those before share a coefficient and come as one sum.
__device__ inline int nearest(const StreamShape& s, int i) { return !s.extend || i < s.L ? 0 : min(i - s.L + 2, i); }

// P_i for the chunks i after the closed ones, or for the open one alone: rows of mix times all summaries, in steps of
// blocks that count from the beginning of the sequence.
template <class A, int kRows>
__device__ void mix_prefixes(const StreamJob& job, const StreamSequence& sequence, TileMemory<A, kRows>& memory) {
  auto *const a = memory.operands.a, *const b = memory.operands.b;
  const StreamShape& s = job.shape;
  const int tiles_across = ceil_div(s.columns, kColumns), head = blockIdx.y;
  const int row = blockIdx.x / tiles_across * kRows, column = blockIdx.x % tiles_across * kColumns;
  const int rows = job.open_only ? 1 : sequence.closed, first = sequence.first + (job.open_only ? 0 : 1);
  if (row >= rows) return;
  const int last = first + min(row + kRows, rows) - 1;  // chunk of the last row of this tile
  const DeviceMix mix = mix_of(job, sequence);
  const int kv_head = s.per_head ? head / s.group : head;
  const auto chunk_of = [&](int r) { return first + row + r; };
  const SlotRows in{
      slot_of(s, sequence, kv_head, 0), s.Hkv * s.stride, s.slots, nearest(s, chunk_of(0)), last, s.columns};
  const auto kept = [&](int k, int r) { return nearest(s, chunk_of(r)) <= k && k < chunk_of(r); };

  typename A::template Sums<kRows> sums;
  if (s.extend && last >= s.L) {
    const float* const sum = in_state<const float>(sequence, s.sum) + kv_head * s.stride;
    sums.visit([&](int r, int c, float& value) {
      const int i = chunk_of(r);
      if (i < s.L || row + r >= rows || column + c >= s.columns) return;
      float old = sequence.base > 0 ? sum[column + c] : 0.0f;
      for (int block = sequence.base; block < nearest(s, i); ++block)
        old += slot_of(s, sequence, kv_head, block)[column + c];
      value = mix.at(head, s.L, 0) * old;
    });
  }
  for (int k = in.first / kDepth * kDepth; k < last; k += kDepth) {
    for (int index = threadIdx.x; index < kRows * kDepth; index += kThreads) {
      const int r = index / kDepth, at = index % kDepth;
      const bool given = row + r < rows && kept(k + at, r);
      a[at * pitch(kRows) + r] = A::operand(given ? mix.at(head, chunk_of(r), k + at) : 0.0f);
    }
    const bool finite = __syncthreads_and(fill_by_rows<A, kColumns>(b, in, k, column));
    const int depth = min(kDepth, last - k);
    if (!finite) add_not_finite<kRows>(sums, a, b, depth, [&](int at, int r) { return kept(k + at, r); });
    sums.template add<Filled::kByRows, Filled::kByRows>(a, b, depth);
    __syncthreads();
  }
  stage(sums, memory.staged);
  __syncthreads();
  for_staged<float, kRows>(memory.staged, [&](int r, int c, const float(&x)[4]) {
    if (row + r >= rows) return;
    if (column + c >= s.columns) return;
    store_prefix(s, prefix_of(job, sequence, job.open_only ? 0 : row + r + 1, head), column + c, x);
  });
}

template <class A, int kRows>
__global__ void __launch_bounds__(kThreads) stream_prefix_kernel(const __grid_constant__ StreamJob job) {
  __shared__ TileMemory<A, kRows> memory;
  for (int n = blockIdx.z; n < job.sequence_count(); n += gridDim.z) {
    mix_prefixes<A, kRows>(job, job.sequence(n), memory);
    __syncthreads();
  }
}

// As causal_denominator_kernel (denominators.cu), for the tokens of the call.
template <class T>
__global__ void __launch_bounds__(kThreads) stream_denominator_kernel(const __grid_constant__ StreamJob job) {
  __shared__ float running[kTokens][kMaxColumns];
  const StreamShape& s = job.shape;
  const StreamSequence& sequence = job.sequences[blockIdx.z];
  const int n = blockIdx.x, head = blockIdx.y;
  if (n >= sequence.chunks) return;
  const StreamChunk place(job, sequence, n);
  const StreamRows<T> q(job, sequence, place, s.has_den ? job.q_den : job.q, head, -1, s.feature_map);
  const StreamRows<T> k(job, sequence, place, s.has_den ? job.k_den : job.k, head / s.group, s.has_den ? s.k_den : s.k,
                        s.feature_map);
  const std::byte* const prefix = prefix_of(job, sequence, n, s.per_head ? head : head / s.group);
  const float* const z = reinterpret_cast<const float*>(prefix + s.layout.z);
  const float coefficient = mix_of(job, sequence).at(head, place.chunk, place.chunk);
  float* const den = den_of(job, sequence, n, head);
  float base[kMaxColumns / kThreads] = {};
  for (int first = 0; first < place.size; first += kTokens) {
    const int count = min(kTokens, place.size - first);
    for (int c = threadIdx.x, own = 0; c < s.D; c += kThreads, ++own) {
      float part = 0;
      for (int w = 0; w < count; ++w) {
        part += feature(s.feature_map, widen(k.row(first + w)[c]));
        running[w][c] = base[own] + part;
      }
      base[own] += part;
    }
    __syncthreads();
    for (int w = threadIdx.x / 32; w < count; w += kWarps) {
      if (first + w < place.fresh) continue;
      const T* const row = q.row(first + w);
      const float before = dot_row(s.feature_map, row, z, s.D);
      const float open = dot_row(s.feature_map, row, running[w], s.D);
      if (threadIdx.x % 32 == 0) den[first + w] = fmaf(coefficient, open, before + s.eps);
    }
    __syncthreads();
  }
}

template <class T, int kRows>
__global__ void __launch_bounds__(kThreads) stream_read_out_kernel(const __grid_constant__ StreamJob job) {
  using A = Arithmetic<T>;
  __shared__ ReadOutMemory<A, kRows, true> memory;
  const StreamShape& s = job.shape;
  const StreamSequence& sequence = job.sequences[blockIdx.z];
  const int tiles = ceil_div(s.C, kRows), across = ceil_div(s.E, kColumns), head = blockIdx.y;
  const int n = blockIdx.x / across / tiles, row = blockIdx.x / across % tiles * kRows;
  const int column = blockIdx.x % across * kColumns;
  if (n >= sequence.chunks) return;
  const StreamChunk place(job, sequence, n);
  if (row >= place.size || row + kRows <= place.fresh) return;
  const StreamRows<T> q(job, sequence, place, job.q, head, -1, s.feature_map);
  const StreamRows<T> k(job, sequence, place, job.k, head / s.group, s.k, s.feature_map);
  const StreamRows<T> v(job, sequence, place, job.v, head / s.group, s.v, FeatureMap::kIdentity);
  const auto prefix = prefix_rows<T>(s, prefix_of(job, sequence, n, s.per_head ? head : head / s.group));
  typename A::template Sums<kRows> sums;
  add_summary<false>(sums, memory, q, row, prefix, column);
  const float coefficient = mix_of(job, sequence).at(head, place.chunk, place.chunk);
  add_inside(sums, memory, q, row, k, v, column, Inside{false, coefficient, nullptr});
  float* const staged = memory.tile.staged;
  stage(sums, staged);
  __syncthreads();
  const float* const den = job.maybe_den ? den_of(job, sequence, n, head) : nullptr;
  T* const out = static_cast<T*>(job.out.data) + sequence.batch * job.out.batch_stride + head * job.out.head_stride;
  for_staged<T, kRows>(staged, [&](int r, int c, auto& x) {
    const int w = row + r;
    c += column;
    if (w >= place.size || w < place.fresh || c >= s.E) return;
#pragma unroll
    for (int j = 0; j < Piece<T>::kSize; ++j) {
      x[j] = s.scale * x[j];
      if (den) x[j] /= den[w];
    }
    store_piece(out + (w - place.fresh) * job.out.token_stride, c, s.E, job.out.vector, x);
  });
}

__global__ void __launch_bounds__(kThreads) stream_fold_kernel(const __grid_constant__ StreamJob job) {
  const StreamShape& s = job.shape;
  const int column = blockIdx.x * kThreads + threadIdx.x;
  for (int n = blockIdx.z; n < job.sequence_count(); n += gridDim.z) {
    const StreamSequence& sequence = job.sequence(n);
    if (column >= s.columns || sequence.base == sequence.next_base) continue;
    float* const sum = in_state<float>(sequence, s.sum) + blockIdx.y * s.stride + column;
    float old = sequence.base > 0 ? *sum : 0.0f;
    for (int block = sequence.base; block < sequence.next_base; ++block)
      old += slot_of(s, sequence, blockIdx.y, block)[column];
    *sum = old;
  }
}

template <class T>
__device__ void keep_rows(const StreamJob& job, const StreamSequence& sequence, const DeviceTensor& tensor,
                          std::int64_t ring_offset, std::int64_t t) {
  const int head = blockIdx.y;
  const T* const from = static_cast<const T*>(tensor.data) + sequence.batch * tensor.batch_stride +
                        t * tensor.token_stride + head * tensor.head_stride;
  const std::int64_t row = (sequence.start + t) % job.shape.ring * job.shape.Hkv + head;
  T* const to = in_state<T>(sequence, ring_offset) + row * tensor.columns;
  for (int c = threadIdx.x; c < tensor.columns; c += kThreads) to[c] = from[c];
}

template <class T>
__global__ void __launch_bounds__(kThreads) stream_keep_kernel(const __grid_constant__ StreamJob job) {
  const StreamSequence& sequence = job.sequences[blockIdx.z];
  const std::int64_t t = (job.T > job.shape.ring ? job.T - job.shape.ring : 0) + blockIdx.x;
  keep_rows<T>(job, sequence, job.k, job.shape.k, t);
  keep_rows<T>(job, sequence, job.v, job.shape.v, t);
  if (job.shape.has_den) keep_rows<T>(job, sequence, job.k_den, job.shape.k_den, t);
}

// Sequences along z: all, or of a list whose length is not known as many as keep a card busy, which share them.
dim3 grid_of_list(const StreamJob& job, std::int64_t x, std::int64_t y) {
  constexpr std::int64_t kEnough = 1024;
  if (job.maybe_closers == nullptr) return grid_of(x, y, job.count);
  const std::int64_t wanted = ceil_div(static_cast<int>(kEnough), static_cast<int>(x * y < kEnough ? x * y : kEnough));
  return grid_of(x, y, wanted < job.count ? wanted : job.count);
}

template <class A>
void launch_prefixes(const StreamJob& job, void* stream) {
  const bool low = job.open_only || job.piece <= 16;  // of what a row gets nothing depends on it
  const std::int64_t tiles = low || job.piece <= 64 ? 1 : ceil_div(job.piece, 64);
  launch(low ? stream_prefix_kernel<A, 16> : stream_prefix_kernel<A, 64>,
         grid_of_list(job, tiles * ceil_div(job.shape.columns, kColumns), job.shape.prefixes()), job, stream,
         "stream_prefix_kernel");
}

template <class T, int kRows>
void launch_read_out(const StreamJob& job, void* stream) {
  const StreamShape& s = job.shape;
  const std::int64_t tiles = static_cast<std::int64_t>(ceil_div(s.C, kRows)) * ceil_div(s.E, kColumns);
  launch(stream_read_out_kernel<T, kRows>, grid_of(job.piece * tiles, s.heads(), job.count), job, stream,
         "stream_read_out_kernel");
}

}  // namespace

void stream_summaries(DType dtype, const StreamJob& job, void* stream) {
  const StreamShape& s = job.shape;
  const std::int64_t tiles = ceil_div(s.D, kSummaryRows) * ceil_div(s.E, kColumns) + (s.normalized ? 1 : 0);
  with_type(dtype, [&](auto type) {
    launch(stream_summary_kernel<decltype(type)>, grid_of(job.piece * tiles, s.Hkv, job.count), job, stream,
           "stream_summary_kernel");
  });
}

void stream_prefixes(DType arithmetic, const StreamJob& job, void* stream) {
  arithmetic == DType::kF32 ? launch_prefixes<FullF32>(job, stream) : launch_prefixes<Tf32>(job, stream);
}

void stream_denominators(DType dtype, const StreamJob& job, void* stream) {
  with_type(dtype, [&](auto type) {
    launch(stream_denominator_kernel<decltype(type)>, grid_of(job.piece, job.shape.heads(), job.count), job, stream,
           "stream_denominator_kernel");
  });
}

void stream_read_out(DType dtype, const StreamJob& job, void* stream) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    job.shape.C <= 32 ? launch_read_out<T, 16>(job, stream) : launch_read_out<T, 64>(job, stream);
  });
}

void stream_fold(const StreamJob& job, void* stream) {
  launch(stream_fold_kernel, grid_of_list(job, ceil_div(job.shape.columns, kThreads), job.shape.Hkv), job, stream,
         "stream_fold_kernel");
}

void stream_keep(DType dtype, const StreamJob& job, void* stream) {
  const std::int64_t tokens = job.T < job.shape.ring ? job.T : job.shape.ring;
  with_type(dtype, [&](auto type) {
    launch(stream_keep_kernel<decltype(type)>, grid_of(tokens, job.shape.Hkv, job.count), job, stream,
           "stream_keep_kernel");
  });
}

}  // namespace mhla::cuda
