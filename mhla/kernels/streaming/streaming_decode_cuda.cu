// One token for each of many sequences in one launch (README.md, eq. 1 and 2), f32 and f16. A block of threads is 128
// columns of a head of a sequence, 32 for each warp; sequences may stand anywhere. What there is to do is to read P
// once, D E floats a head, in pieces of 16 bytes: the first rows into shared memory and the next into registers, all on
// their way while scores of the open chunk are computed, so that what a multiprocessor waits for is as much as it can
// hold. Query heads that share a prefix are rows of one product. The order of every sum is that of the chunkwise pass.
// A sequence whose chunk is complete with this token gets its summary in the same launch, from the blocks that come
// last.
#include "mhla/kernels/common/cuda/quads.cuh"
#include "mhla/kernels/streaming/streaming_decode.cuh"

namespace mhla::cuda {
namespace {

constexpr int kWarps = kThreads / 32;
constexpr int kMaxColumns = 256;  // D
constexpr int kWide = 4;          // columns of a lane: 16 bytes of P
constexpr int kTokensWide = 2;    // tokens of a lane
constexpr int kWarpColumns = 8 * kWide, kWarpTokens = 8 * kTokensWide;
constexpr int kTokens = kWarps * kWarpTokens;  // scores at a time
constexpr int kQueryPitch = kMaxColumns + 8, kScorePitch = kTokens + 8;
constexpr int kBlockColumns = kWarps * kWarpColumns;
constexpr int kStagedPitch = kBlockColumns + 4;  // so that the rows of a group of lanes lie in different banks
static_assert(kTokens % kDepth == 0);

__host__ __device__ inline int column_blocks(const StreamShape& s) { return ceil_div(s.E, kBlockColumns); }

// What a lane holds of a step over the features of a key: x[j] = phi(row[k + depth_of(j)]), anything beyond the last.
template <class Products>
__device__ void load_key(const f16* row, int k, int columns, bool /*vector*/, FeatureMap map, float (&x)[kLaneDepths]) {
#pragma unroll
  for (int j = 0; j < kLaneDepths; ++j) {
    const int d = k + Products::depth_of(j);
    x[j] = d < columns ? feature(map, widen(row[d])) : 0.0f;
  }
}
template <class Products>
__device__ void load_key(const float* row, int k, int columns, bool vector, FeatureMap map, float (&x)[kLaneDepths]) {
#pragma unroll
  for (int j = 0; j < kLaneDepths; j += 4) {  // depths of a lane follow each other
    const int d = k + Products::depth_of(j);
    const Piece<float> four = load_piece(row, d, columns, vector);
#pragma unroll
    for (int i = 0; i < 4; ++i) x[j + i] = d + i < columns ? feature(map, four.x[i]) : 0.0f;
  }
}

// What a lane holds of a step over `depths` rows of a matrix: its columns of the rows row(d), zeros beyond the last row
// and the last column. `whole`: there are kDepth rows, all columns of the warp exist, and rows begin at multiples of 16
// bytes. Then all loads are under way before one is waited for.
template <class Products, class Row>
__device__ void load_matrix(const Row& row, int depths, int column, int columns, bool whole, LaneOperand<kWide>& b) {
  using T = std::remove_cvref_t<decltype(*row(0))>;
  struct alignas(kWide * sizeof(T)) Few {
    T x[kWide];
  };
  if (whole) {
    Few few[kLaneDepths];
#pragma unroll
    for (int j = 0; j < kLaneDepths; ++j) few[j] = *reinterpret_cast<const Few*>(row(Products::depth_of(j)) + column);
#pragma unroll
    for (int j = 0; j < kLaneDepths; ++j) {
#pragma unroll
      for (int w = 0; w < kWide; ++w) b[j][w] = widen(few[j].x[w]);
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < kLaneDepths; ++j) {
    const int d = Products::depth_of(j);
#pragma unroll
    for (int w = 0; w < kWide; ++w) b[j][w] = d < depths && column + w < columns ? widen(row(d)[column + w]) : 0.0f;
  }
}

// `rows` rows of `bytes` bytes are on their way from here on, whoever asks for them later. Registers hold too little of
// what a block will read to keep the memory busy while it computes scores.
template <class Row>
__device__ void prefetch_rows(int rows, int bytes, const Row& row) {
  constexpr int kLine = 128;
  const int lines = ceil_div(bytes, kLine);
  for (int index = threadIdx.x; index < rows * lines; index += kThreads)
    prefetch_line(reinterpret_cast<const char*>(row(index / lines)) + index % lines * kLine);
}

// Scores of tokens [first, first + kTokens) times the diagonal of mix, for every row.
template <class A, class T>
__device__ void score_tokens(const OpenRows<T>& k, int first, int keys, const typename A::Operand* q, int rows, int D,
                             float coefficient, typename A::Operand* scores) {
  using Products = Quads<A, kTokensWide>;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, own = first + warp * kWarpTokens;
  Products products;
  if (own < keys) {
#pragma unroll 2
    for (int d = 0; d < D; d += kDepth) {
      LaneOperand<kTokensWide> b;
#pragma unroll
      for (int w = 0; w < kTokensWide; ++w) {
        const int token = min(own + lane / 4 * kTokensWide + w, keys - 1);  // scores beyond the last are zeroed below
        float x[kLaneDepths];
        load_key<Products>(k.row(token), d, D, k.vector, k.map, x);
#pragma unroll
        for (int j = 0; j < kLaneDepths; ++j) b[j][w] = x[j];
      }
      products.template add<kQueryPitch>(q + d, rows, b);
    }
  }
  products.visit(rows, [&](int row, int column, const float(&x)[Products::kOwn]) {
#pragma unroll
    for (int j = 0; j < Products::kOwn; ++j) {
      const bool given = own + column + j < keys;
      scores[row * kScorePitch + warp * kWarpTokens + column + j] =
          A::operand(given ? coefficient * (x[j] + 0.0f) : 0.0f);
    }
  });
}

// Rows of P in shared memory: what 48 KiB leave beside queries of 16 rows.
template <class A>
constexpr int kStagedRows = Quads<A, kWide>::kMostRows > 1 ? kDepth : 2 * kDepth;

template <class T, int kRows>
union DecodeMemory {
  struct {
    alignas(16) typename Arithmetic<T>::Operand q[kRows * kQueryPitch];
    alignas(16) typename Arithmetic<T>::Operand scores[kRows * kScorePitch];
    alignas(16) float prefix[kStagedRows<Arithmetic<T>> * kStagedPitch];
    float running[kMaxColumns], den[kRows];
  } token;
  TileMemory<Arithmetic<T>, kCloseRows> tile;
  float vectors[kVectorMemory];
};

template <class T, class Job>
__global__ void __launch_bounds__(kThreads, 4) decode_kernel(const __grid_constant__ Job job) {
  using A = Arithmetic<T>;
  using Products = Quads<A, kWide>;
  constexpr int kRows = Products::kMostRows, kStaged = kStagedRows<A>;
  __shared__ DecodeMemory<T, kRows> shared;
  const StreamShape& s = job.shape;
  const int most = s.per_head ? 1 : min(s.group, kRows), tiles = ceil_div(s.group, most), heads = s.Hkv * tiles;
  const int across = column_blocks(s), block = static_cast<int>(blockIdx.x);
  if (const int tokens = job.count * heads * across; block >= tokens) {
    close_chunks<T>(job, block - tokens, static_cast<int>(gridDim.x) - tokens, shared);
    return;
  }
  const int number = block / across / heads, column_block = block % across;
  const int kv_head = block / across % heads / tiles, tile = block / across % tiles;
  const DecodeSequence sequence = job.sequence(number);
  const int batch = job.first + number;
  auto& memory = shared.token;
  const int head = kv_head * s.group + tile * most, rows = min(most, s.group - tile * most);
  const int keys = sequence.inside + 1;
  const float* const P = reinterpret_cast<const float*>(sequence.state + s.prefix[sequence.open]) +
                         (s.per_head ? head : kv_head) * s.stride;

  const int lane = threadIdx.x % 32;
  const OpenRows<T> k(job, sequence, job.k, s.k, batch, kv_head, s.feature_map);
  const OpenRows<T> v(job, sequence, job.v, s.v, batch, kv_head, FeatureMap::kIdentity);
  const int block_column = column_block * kBlockColumns;
  const int warp_column = block_column + static_cast<int>(threadIdx.x) / 32 * kWarpColumns;
  const int column = warp_column + lane / 4 * kWide, width = min(kBlockColumns, s.E - block_column);
  const bool works = warp_column < s.E;
  prefetch_rows(keys, s.D * static_cast<int>(sizeof(T)), [&](int place) { return k.row(place); });
  const bool staged = s.E % kWide == 0;  // rows begin at multiples of 16 bytes
  const int staged_rows = staged ? min(s.D, kStaged) : 0, pieces = width / kWide;
  for (int index = threadIdx.x; index < staged_rows * pieces; index += kThreads) {
    const int d = index / pieces, c = index % pieces * kWide;
    copy16(shared_address(memory.prefix + d * kStagedPitch + c), P + d * s.E + block_column + c, true);
  }
  copy_commit();
  prefetch_rows(s.D - staged_rows, width * 4, [&](int d) { return P + (staged_rows + d) * s.E + block_column; });
  prefetch_rows(keys, width * static_cast<int>(sizeof(T)), [&](int place) { return v.row(place) + block_column; });
  LaneOperand<kWide> even, odd;  // steps of P on their way; the second not before the scores, which need registers too
  const bool all_columns = warp_column + kWarpColumns <= s.E;
  const auto load_prefix = [&](int d, LaneOperand<kWide>& step) {
    if (!works || d >= s.D) return;
    const bool whole = all_columns && staged && d + kDepth <= s.D;
    if (d < staged_rows) {
      const float* const first = memory.prefix + d * kStagedPitch - block_column;
      load_matrix<Products>([&](int depth) { return first + depth * kStagedPitch; }, s.D - d, column, s.E, whole, step);
    } else {
      load_matrix<Products>([&](int depth) { return P + (d + depth) * s.E; }, s.D - d, column, s.E, whole, step);
    }
  };
  load_prefix(kStaged, even);

  const OpenRows<T> k_den(job, sequence, s.has_den ? job.k_den : job.k, s.has_den ? s.k_den : s.k, batch, kv_head,
                          s.feature_map);
  const auto query = [&](const DeviceTensor& x, int row) {
    return static_cast<const T*>(x.data) + batch * x.batch_stride + (head + row) * x.head_stride;
  };
  const int depths = ceil_div(s.D, kDepth) * kDepth;
  for (int index = threadIdx.x; index < rows * depths; index += kThreads) {
    const int row = index / depths, d = index % depths;
    const float x = d < s.D ? feature(s.feature_map, widen(query(job.q, row)[d])) : 0.0f;
    memory.q[row * kQueryPitch + d] = A::operand(x);
  }
  if (s.normalized) sum_keys(k_den, keys, s.D, memory.running);
  if (column_block == 0 && tile == 0) {
    keep_row(job, sequence, k, kv_head, s.k);
    keep_row(job, sequence, v, kv_head, s.v);
    if (s.has_den) keep_row(job, sequence, k_den, kv_head, s.k_den);
  }
  __syncthreads();
  const float coefficient = diagonal_of(s, sequence, head);
  for (int row = threadIdx.x / 32; s.normalized && row < rows; row += kWarps) {
    const T* const features = query(s.has_den ? job.q_den : job.q, row);
    const float before = dot_row(s.feature_map, features, P + static_cast<std::int64_t>(s.D) * s.E, s.D);
    const float inside = dot_row(s.feature_map, features, memory.running, s.D);
    if (lane == 0) memory.den[row] = fmaf(coefficient, inside, before + s.eps);
  }
  score_tokens<A>(k, 0, keys, memory.q, rows, s.D, coefficient, memory.scores);
  copy_wait<0>();
  __syncthreads();

  Products sums;
  for (int d = 0; works && d < min(s.D, kStaged); d += kDepth) {
    load_prefix(d, odd);
    sums.template add<kQueryPitch>(memory.q + d, rows, odd);
  }
  load_prefix(kStaged + kDepth, odd);
  for (int d = kStaged; works && d < s.D; d += 2 * kDepth) {
    sums.template add<kQueryPitch>(memory.q + d, rows, even);
    load_prefix(d + 2 * kDepth, even);
    if (d + kDepth < s.D) sums.template add<kQueryPitch>(memory.q + d + kDepth, rows, odd);
    load_prefix(d + 3 * kDepth, odd);
  }
  for (int first = 0; first < keys; first += kTokens) {
    if (first > 0) {
      __syncthreads();
      score_tokens<A>(k, first, keys, memory.q, rows, s.D, coefficient, memory.scores);
      __syncthreads();
    }
    for (int step = 0; works && step < kTokens && first + step < keys; step += kDepth) {
      LaneOperand<kWide> b;
      const int token = first + step;
      load_matrix<Products>([&](int depth) { return v.row(token + depth); }, keys - token, column, s.E,
                            all_columns && v.vector && token + kDepth <= keys, b);
      sums.template add<kScorePitch>(memory.scores + step, rows, b);
    }
  }
  if (!works) return;
  sums.visit(rows, [&](int row, int place, const float(&x)[Products::kOwn]) {
    static_assert(Products::kOwn == Piece<T>::kSize);
    float y[Products::kOwn];
#pragma unroll
    for (int j = 0; j < Products::kOwn; ++j) {
      y[j] = s.scale * x[j];
      if (s.normalized) y[j] /= memory.den[row];
    }
    T* const out = static_cast<T*>(job.out.data) + batch * job.out.batch_stride + (head + row) * job.out.head_stride;
    store_piece(out, warp_column + place, s.E, job.out.vector, y);
  });
}

template <class Job>
void decode(DType dtype, const Job& job, void* stream) {
  const StreamShape& s = job.shape;
  const auto with = [&](auto type) {
    using T = decltype(type);
    constexpr int kRows = Quads<Arithmetic<T>, kWide>::kMostRows;
    const int most = s.per_head ? 1 : (s.group < kRows ? s.group : kRows);
    const std::int64_t tokens =
        static_cast<std::int64_t>(job.count) * s.Hkv * ceil_div(s.group, most) * column_blocks(s);
    launch(decode_kernel<T, Job>, grid_of(tokens + closing_blocks(job)), job, stream, "decode_kernel");
  };
  dtype == DType::kF16 ? with(f16{}) : with(float{});
}

}  // namespace

void stream_decode(DType dtype, const DecodeCall& job, void* stream) { decode(dtype, job, stream); }
void stream_decode(DType dtype, const DecodeReplay& job, void* stream) { decode(dtype, job, stream); }

}  // namespace mhla::cuda
