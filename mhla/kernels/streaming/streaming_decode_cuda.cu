// One token for each of many sequences in one launch (README.md, eq. 1 and 2). A block of threads is 128 columns of a
// head of a sequence, 32 for each warp; sequences may stand anywhere. What there is to do is to read P once, D E floats
// a head, in pieces of 16 bytes: the first rows into shared memory and the next into registers, all on their way while
// scores of the open chunk are computed, so that what a multiprocessor waits for is as much as it can hold. Query heads
// that share a prefix are rows of one product. The order of every sum is that of the chunkwise pass. A sequence whose
// chunk is complete with this token gets its summary in the same launch, from the blocks that come last.
#include "mhla/kernels/common/cuda/quads.cuh"
#include "mhla/kernels/common/cuda/summaries.cuh"
#include "mhla/kernels/streaming/streaming_cuda.h"

namespace mhla::cuda {
namespace {

constexpr int kWarps = kThreads / 32;
constexpr int kMaxColumns = 256;  // D
constexpr int kWide = 4;          // columns of a lane: 16 bytes of P
constexpr int kTokensWide = 2;    // tokens of a lane
constexpr int kWarpColumns = 8 * kWide, kWarpTokens = 8 * kTokensWide;
constexpr int kTokens = kWarps * kWarpTokens;  // scores at a time
constexpr int kSums = 32;                      // tokens of a running sum, as in denominators.cu
constexpr int kQueryPitch = kMaxColumns + 8, kScorePitch = kTokens + 8;
constexpr int kBlockColumns = kWarps * kWarpColumns;
constexpr int kStagedPitch = kBlockColumns + 4;  // so that the rows of a group of lanes lie in different banks
static_assert(kTokens % kDepth == 0);

__host__ __device__ inline int column_blocks(const StreamShape& s) { return ceil_div(s.E, kBlockColumns); }

// Where a sequence stands.
struct OpenChunk {
  std::int64_t chunk;
  int inside, in_ring;  // place of the newest token, and row of the ring of place 0

  __device__ OpenChunk(const StreamShape& s, const DecodeSequence& sequence) : chunk(sequence.position / s.C) {
    const std::int64_t begin = chunk * s.C;
    inside = static_cast<int>(sequence.position - begin);
    in_ring = static_cast<int>(begin % s.ring);
  }
};

// Tokens of the open chunk of one kv head, as a source of operands (tile.cuh): the newest from the call, the others
// from the ring.
template <class T>
struct OpenRows {
  using Element = T;
  const T* newest;
  const T* ring;  // row 0, of the head
  std::int64_t ring_stride;
  int in_ring, rows_of_ring, last, columns;
  bool vector;
  FeatureMap map;

  __device__ OpenRows(const DecodeJob& job, const DecodeSequence& sequence, const OpenChunk& open,
                      const DeviceTensor& tensor, std::int64_t offset, int batch, int head, FeatureMap feature_map)
      : newest(static_cast<const T*>(tensor.data) + batch * tensor.batch_stride + head * tensor.head_stride),
        ring(reinterpret_cast<const T*>(sequence.state + offset) + head * tensor.columns),
        ring_stride(static_cast<std::int64_t>(job.shape.Hkv) * tensor.columns),
        in_ring(open.in_ring),
        rows_of_ring(job.shape.ring),
        last(open.inside),
        columns(tensor.columns),
        vector(tensor.vector && tensor.columns % Piece<T>::kSize == 0),
        map(feature_map) {}

  [[nodiscard]] __device__ const T* row(int place) const {
    if (place == last) return newest;
    const int turned = in_ring + place;
    return ring + static_cast<std::int64_t>(turned < rows_of_ring ? turned : turned - rows_of_ring) * ring_stride;
  }
  __device__ Piece<T> load(int place, int column) const {
    if (place > last) return {};
    return load_piece(row(place), column, columns, vector);
  }
  [[nodiscard]] __device__ bool verbatim() const { return map == FeatureMap::kIdentity; }
  __device__ void finish(const Piece<T>& raw, int /*place*/, int column, float (&x)[Piece<T>::kSize]) const {
#pragma unroll
    for (int j = 0; j < Piece<T>::kSize; ++j) x[j] = column + j < columns ? feature(map, widen(raw.x[j])) : 0.0f;
  }
};

// What a lane holds of a step over the features of a key: x[j] = phi(row[k + depth_of(j)]), anything beyond the last.
template <class Products, class T>
__device__ void load_key(const T* row, int k, int columns, bool vector, FeatureMap map, float (&x)[kLaneDepths]) {
  if (sizeof(T) == 2 && vector && k + kDepth <= columns && Products::depth_of(1) == Products::depth_of(0) + 1) {
#pragma unroll
    for (int j = 0; j < kLaneDepths; j += 2) {  // bf16: depths come in pairs
      const std::uint32_t pair = *reinterpret_cast<const std::uint32_t*>(row + k + Products::depth_of(j));
      T low, high;
      low.bits = static_cast<std::uint16_t>(pair), high.bits = static_cast<std::uint16_t>(pair >> 16);
      x[j] = feature(map, widen(low)), x[j + 1] = feature(map, widen(high));
    }
    return;
  }
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

template <class T>
__device__ void keep_row(const DecodeJob& job, const DecodeSequence& sequence, const OpenRows<T>& rows, int head,
                         std::int64_t offset) {
  const std::int64_t row = sequence.position % job.shape.ring * job.shape.Hkv + head;
  T* const to = reinterpret_cast<T*>(sequence.state + offset) + row * rows.columns;
  for (int c = threadIdx.x; c < rows.columns; c += kThreads) to[c] = rows.newest[c];
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

// The running sum of keys, as the chunkwise pass adds it up.
template <class T>
__device__ void sum_keys(const OpenRows<T>& k, int keys, int D, float* running) {
  for (int c = threadIdx.x; c < D; c += kThreads) {
    float base = 0;
    for (int first = 0; first < keys; first += kSums) {
      float part = 0;
#pragma unroll 8
      for (int w = first; w < min(first + kSums, keys); ++w) part += feature(k.map, widen(k.row(w)[c]));
      base += part;
    }
    running[c] = base;
  }
}

__device__ float diagonal_of(const StreamShape& s, const DecodeSequence& sequence, int head, std::int64_t chunk) {
  DeviceMix mix;
  mix.data = reinterpret_cast<const float*>(sequence.state + s.mix);
  mix.row_stride = s.L, mix.column_stride = 1, mix.L = s.L;
  mix.head_stride = s.per_head ? static_cast<std::int64_t>(s.L) * s.L : 0;
  return mix.at(head, chunk, chunk);
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

constexpr int kCloseRows = 16;  // of a tile of a summary: small, for one sequence alone must keep a card busy

// Rows of P in shared memory: what 48 KiB leave beside queries of 16 rows.
template <class A>
constexpr int kStagedRows = Quads<A, kWide>::kMostRows > 1 && sizeof(typename A::Operand) > 2 ? kDepth : 2 * kDepth;

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

__host__ __device__ inline int summary_tiles(const StreamShape& s) {
  return ceil_div(s.D, kCloseRows) * ceil_div(s.E, kColumns) + (s.normalized ? 1 : 0);
}

// Tile `tile` of the summary of a chunk that is complete now, or z.
template <class T, class Memory>
__device__ void close_chunk(const DecodeJob& job, const DecodeSequence& sequence, int batch, int head, int tile,
                            Memory& memory) {
  const StreamShape& s = job.shape;
  const OpenChunk open(s, sequence);
  float* const out =
      reinterpret_cast<float*>(sequence.state + s.summaries) + (open.chunk % s.slots * s.Hkv + head) * s.stride;
  const int across = ceil_div(s.E, kColumns);
  if (tile == ceil_div(s.D, kCloseRows) * across) {
    const OpenRows<T> x(job, sequence, open, s.has_den ? job.k_den : job.k, s.has_den ? s.k_den : s.k, batch, head,
                        s.feature_map);
    sum_vectors(memory.vectors, x, s.C, nullptr, s.D, out + s.D * s.E);
    return;
  }
  const OpenRows<T> k(job, sequence, open, job.k, s.k, batch, head, s.feature_map);
  const OpenRows<T> v(job, sequence, open, job.v, s.v, batch, head, FeatureMap::kIdentity);
  summary_tile(memory.tile, k, v, s.C, tile / across * kCloseRows, tile % across * kColumns, s.D, s.E, out);
}

template <class T>
__global__ void __launch_bounds__(kThreads, 4) decode_kernel(const __grid_constant__ DecodeJob job) {
  using A = Arithmetic<T>;
  using Products = Quads<A, kWide>;
  constexpr int kRows = Products::kMostRows, kStaged = kStagedRows<A>;
  __shared__ DecodeMemory<T, kRows> shared;
  const StreamShape& s = job.shape;
  const int most = s.per_head ? 1 : min(s.group, kRows), tiles = ceil_div(s.group, most), heads = s.Hkv * tiles;
  const int across = column_blocks(s), block = static_cast<int>(blockIdx.x);
  if (const int beyond = block - job.count * heads * across; beyond >= 0) {
    const int parts = summary_tiles(s), closer = job.closing[beyond / parts / s.Hkv];
    close_chunk<T>(job, job.sequences[closer], job.first + closer, beyond / parts % s.Hkv, beyond % parts, shared);
    return;
  }
  const int number = block / across / heads, column_block = block % across;
  const int kv_head = block / across % heads / tiles, tile = block / across % tiles;
  const DecodeSequence& sequence = job.sequences[number];
  const int batch = job.first + number;
  auto& memory = shared.token;
  const int head = kv_head * s.group + tile * most, rows = min(most, s.group - tile * most);
  const OpenChunk open(s, sequence);
  const int keys = open.inside + 1;
  const float* const P = sequence.prefix + (s.per_head ? head : kv_head) * s.stride;

  const int lane = threadIdx.x % 32;
  const OpenRows<T> k(job, sequence, open, job.k, s.k, batch, kv_head, s.feature_map);
  const OpenRows<T> v(job, sequence, open, job.v, s.v, batch, kv_head, FeatureMap::kIdentity);
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

  const OpenRows<T> k_den(job, sequence, open, s.has_den ? job.k_den : job.k, s.has_den ? s.k_den : s.k, batch, kv_head,
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
  const float coefficient = diagonal_of(s, sequence, head, open.chunk);
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

}  // namespace

void stream_decode(DType dtype, const DecodeJob& job, void* stream) {
  const StreamShape& s = job.shape;
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kRows = Quads<Arithmetic<T>, kWide>::kMostRows;
    const int most = s.per_head ? 1 : (s.group < kRows ? s.group : kRows);
    const std::int64_t tokens =
        static_cast<std::int64_t>(job.count) * s.Hkv * ceil_div(s.group, most) * column_blocks(s);
    const std::int64_t closings = static_cast<std::int64_t>(job.closers) * s.Hkv * summary_tiles(s);
    launch(decode_kernel<T>, grid_of(tokens + closings), job, stream, "decode_kernel");
  });
}

}  // namespace mhla::cuda
