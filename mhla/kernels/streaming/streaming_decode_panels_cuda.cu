// One token for each of many sequences in one launch (README.md, eq. 1 and 2), bf16. A block of threads takes one or
// two panels of a head's prefix, 64 columns each, 32 keys of the open chunk and the same columns of their values into
// shared memory, 51 KB at D = 128, so that four blocks share a multiprocessor: 64 sequences of 4 heads of 256 are 512
// blocks, and 528 fit an H200. Later keys and values wait in the second-level cache.
// All of it is requested before the previous kernel has ended where the host knows that it writes none of it (`early`);
// what the call brings is read afterwards. Query heads that share a prefix are rows of one product. The sums are those
// of product.cuh, bit for bit: the same instructions over the same 16 depths in the same order.
#include <type_traits>

#include "mhla/kernels/common/cuda/arguments.cuh"
#include "mhla/kernels/streaming/streaming_decode.cuh"
#include "mhla/kernels/streaming/streaming_decode_panels.cuh"

namespace mhla::cuda {
namespace {

union CloseMemory {
  TileMemory<Bf16, kCloseRows> tile;
  float vectors[kVectorMemory];
};

// `count` elements of a row, to come; without `vector` they are there when the call returns.
__device__ inline void fetch_row(bf16* to, const bf16* from, int count, bool vector, int lane, int lanes) {
  if (vector) {
    for (int c = lane * kPieceSize; c < count; c += lanes * kPieceSize)
      copy16(shared_address(static_cast<const void*>(to + c)), from + c, true);
  } else {
    for (int c = lane; c < count; c += lanes) to[c] = from[c];
  }
}

constexpr int kRowLanes = 16;  // that fetch a row

// Rows [first, first + rows) of the open chunk that are in the ring, columns [column, column + count) of them.
__device__ inline void fetch_rows(bf16* to, int pitch, const OpenRows<bf16>& x, int first, int rows, int column,
                                  int count) {
  const bool vector = x.columns % kPieceSize == 0;
  for (int row = threadIdx.x / kRowLanes; row < rows; row += kThreads / kRowLanes) {
    if (first + row != x.last)
      fetch_row(to + row * pitch, x.row(first + row) + column, count, vector, static_cast<int>(threadIdx.x) % kRowLanes,
                kRowLanes);
  }
}

// The same rows on their way to the second-level cache.
__device__ inline void expect_rows(const OpenRows<bf16>& x, int first, int rows, int column, int count) {
  constexpr int kLine = 64;  // elements
  const int lines = ceil_div(count, kLine);
  for (int index = threadIdx.x; index < rows * lines; index += kThreads)
    if (first + index / lines != x.last) prefetch_line(x.row(first + index / lines) + column + index % lines * kLine);
}

// Columns [column, column + count) of the newest row: to shared memory, and where `ring` is given to the ring as well.
// Lanes from `first` on, a piece each, so that several rows come at the same time.
__device__ inline void take_newest(bf16* maybe_to, bf16* maybe_ring, const OpenRows<bf16>& x, int column, int count,
                                   int first) {
  if (x.vector) {
    const int c = (static_cast<int>(threadIdx.x) - first) * kPieceSize;
    if (c < 0 || c >= count) return;
    const auto piece = *reinterpret_cast<const Piece<bf16>*>(x.newest + column + c);
    if (maybe_to) *reinterpret_cast<Piece<bf16>*>(maybe_to + c) = piece;
    if (maybe_ring) *reinterpret_cast<Piece<bf16>*>(maybe_ring + column + c) = piece;
  } else {
    for (int c = threadIdx.x; c < count; c += kThreads) {
      const bf16 value = x.newest[column + c];
      if (maybe_to) maybe_to[c] = value;
      if (maybe_ring) maybe_ring[column + c] = value;
    }
  }
}

// Replaces rows by their features.
__device__ inline void map_rows(bf16* rows, int pitch, int count, int columns, FeatureMap map) {
  for (int row = threadIdx.x / kRowLanes; row < count; row += kThreads / kRowLanes) {
    for (int c = threadIdx.x % kRowLanes; c < columns; c += kRowLanes) {
      bf16& x = rows[row * pitch + c];
      x = narrow<bf16>(feature(map, widen(x)));
    }
  }
}

// Blocks of threads along x are columns, along y heads, along z sequences, and after these the closers.
template <int kPanels, class Job>
__global__ void __launch_bounds__(kThreads) decode_panels_kernel(const __grid_constant__ Job job) {
  constexpr int kBlockColumns = kPanels * kPanelColumns, kWarpColumns = kBlockColumns / kWarps;
  constexpr int kTiles = kWarpColumns / 8, kRowPieces = kPanelColumns / kPieceSize;
  bf16* const memory = reinterpret_cast<bf16*>(dynamic_shared());
  const StreamShape& s = job.shape;
  const int number = static_cast<int>(blockIdx.z), column_block = static_cast<int>(blockIdx.x);
  if (number >= job.count) {
    wait_for_previous();
    allow_next();
    const int plane = static_cast<int>(gridDim.x * gridDim.y);
    const int own = (number - job.count) * plane + static_cast<int>(blockIdx.y * gridDim.x + blockIdx.x);
    close_chunks<bf16>(job, own, (static_cast<int>(gridDim.z) - job.count) * plane,
                       *reinterpret_cast<CloseMemory*>(memory));
    return;
  }
  const int most = most_rows(s), tiles = row_tiles(s);
  const int kv_head = tiles == 1 ? blockIdx.y : blockIdx.y / tiles,
            tile = static_cast<int>(blockIdx.y) - kv_head * tiles;
  const DecodeSequence sequence = job.sequence(number);
  const int batch = job.first + number;
  const int head = kv_head * s.group + tile * most, rows = min(most, s.group - tile * most);
  const int keys = sequence.inside + 1;
  const int block_column = column_block * kBlockColumns, width = min(kBlockColumns, s.E - block_column);
  const DecodePlaces at(s, kPanels, most);
  bf16 *const P = memory + at.prefix, *const K = memory + at.k, *const V = memory + at.v, *const Q = memory + at.q;
  bf16* const scores = memory + at.scores;
  float* const running = reinterpret_cast<float*>(memory + at.running);
  float* const den = reinterpret_cast<float*>(memory + at.den);
  const OpenRows<bf16> k(job, sequence, job.k, s.k, batch, kv_head, s.feature_map);
  const OpenRows<bf16> v(job, sequence, job.v, s.v, batch, kv_head, FeatureMap::kIdentity);
  const std::byte* const prefix =
      sequence.state + (sequence.open ? s.prefix[1] : s.prefix[0]) + (s.per_head ? head : kv_head) * s.layout.stride;

  // What the state has.
  const float coefficient = diagonal_of(s, sequence, head);
  for (int panel = 0; panel < ceil_div(width, kPanelColumns); ++panel) {
    const bf16* const from =
        reinterpret_cast<const bf16*>(prefix) + static_cast<std::int64_t>(block_column + panel * kPanelColumns) * s.D;
    bf16* const to = P + panel * at.depth * kPanelColumns;
#pragma unroll 8
    for (int piece = threadIdx.x; piece < s.D * kRowPieces; piece += kThreads)
      copy16(shared_address(static_cast<const void*>(to + piece * kPieceSize)), from + piece * kPieceSize, true);
    for (int c = s.D * kPanelColumns + threadIdx.x; c < at.depth * kPanelColumns; c += kThreads) to[c] = {};
  }
  // Rows [first, first + kTokens) of k; of v, and zeros after the last.
  const auto fetch_keys = [&](int first) { fetch_rows(K, at.key_pitch, k, first, min(kTokens, keys - first), 0, s.D); };
  const auto fetch_values = [&](int first) {
    const int given = min(kTokens, keys - first);
    fetch_rows(V, at.value_pitch, v, first, given, block_column, width);
    for (int row = given; row < up(given, kStep); ++row) {
      for (int c = threadIdx.x; c < width; c += kThreads) V[row * at.value_pitch + c] = {};
    }
  };
  fetch_keys(0);
  fetch_values(0);
  if (const int later = keys - kTokens; later > 0) {
    expect_rows(k, kTokens, later, 0, s.D);
    expect_rows(v, kTokens, later, block_column, width);
  }
  for (int row = threadIdx.x; at.depth > s.D && row < at.tokens + rows; row += kThreads) {
    bf16* const to = row < at.tokens ? K + row * at.key_pitch : Q + (row - at.tokens) * at.key_pitch;
    for (int c = s.D; c < at.depth; ++c) to[c] = {};
  }

  // In a recorded step every state comes once, so the kernels after this one may start before those ahead of it have
  // ended. Between calls the host counts on the opposite (DeviceAppend::settled).
  constexpr bool kRecorded = std::is_same_v<Job, DecodeReplay>;
  expect_arguments(job);
  if constexpr (kRecorded) allow_next();
  wait_for_previous();
  if constexpr (!kRecorded) allow_next();

  // What the call brings, the newest tokens to the ring as well.
  const auto query = [&](const DeviceTensor& x, int row) {
    return static_cast<const bf16*>(x.data) + batch * x.batch_stride + (head + row) * x.head_stride;
  };
  for (int row = threadIdx.x / kRowLanes; row < rows; row += kThreads / kRowLanes)
    fetch_row(Q + row * at.key_pitch, query(job.q, row), s.D, job.q.vector && s.D % kPieceSize == 0,
              static_cast<int>(threadIdx.x) % kRowLanes, kRowLanes);
  copy_commit();
  const auto ring_row = [&](std::int64_t offset, int columns) {
    const std::int64_t row = static_cast<std::int64_t>(s.ring_row(sequence.in_ring, sequence.inside)) * s.Hkv + kv_head;
    return tile == 0 ? reinterpret_cast<bf16*>(sequence.state + offset) + row * columns : nullptr;
  };
  constexpr int kHalf = kThreads / 2;  // lanes of k; those of v follow
  const int place = (keys - 1) % kTokens;
  const bool here = keys <= kTokens;  // the newest is one of the first
  take_newest(here ? K + place * at.key_pitch : nullptr, column_block == 0 ? ring_row(s.k, s.D) : nullptr, k, 0, s.D,
              0);
  take_newest(here ? V + place * at.value_pitch : nullptr, ring_row(s.v, s.E), v, block_column, width, kHalf);
  if (s.normalized) {
    const OpenRows<bf16> k_den(job, sequence, s.has_den ? job.k_den : job.k, s.has_den ? s.k_den : s.k, batch, kv_head,
                               s.feature_map);
    sum_keys(k_den, keys, s.D, running);
    if (s.has_den && column_block == 0) take_newest(nullptr, ring_row(s.k_den, s.D), k_den, 0, s.D, 0);
  }
  copy_wait<0>();
  __syncthreads();

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  for (int row = warp; s.normalized && row < rows; row += kWarps) {
    const bf16* const features = query(s.has_den ? job.q_den : job.q, row);
    const float before = dot_row(s.feature_map, features, reinterpret_cast<const float*>(prefix + s.layout.z), s.D);
    const float inside = dot_row(s.feature_map, features, running, s.D);
    if (lane == 0) den[row] = fmaf(coefficient, inside, before + s.eps);
  }

  // Rows of a step that a lane names: 8 x 8 matrices (depth, column) in the order (0, 0), (8, 0), (0, 8), (8, 8).
  const int inner = lane % 8, lower = lane / 8 % 2 * 8, right = lane / 16;
  float sums[kTiles][4] = {};
  const int warp_column = warp * kWarpColumns;
  const bool works = warp_column < width;
  for (int first = 0; first < keys; first += kTokens) {
    const int given = min(kTokens, keys - first);
    if (first > 0) {
      __syncthreads();
      fetch_values(first);
      copy_commit();
      if (first + given == keys) {
        take_newest(K + place * at.key_pitch, nullptr, k, 0, s.D, 0);
        take_newest(V + place * at.value_pitch, nullptr, v, block_column, width, kHalf);
      }
      copy_wait<0>();
      __syncthreads();
    }
    if (s.feature_map != FeatureMap::kIdentity) {  // products take features rounded to bf16
      map_rows(K, at.key_pitch, given, s.D, s.feature_map);
      if (first == 0) map_rows(Q, at.key_pitch, rows, s.D, s.feature_map);
      __syncthreads();
    }

    if (const int own = warp * kStep; own < given) {  // 16 tokens of a warp
      float products[2][4] = {};
      const bf16* const from = K + (own + inner + right * 8) * at.key_pitch + lower;
#pragma unroll 4
      for (int d = 0; d < at.depth; d += kStep) {
        std::uint32_t x[4], y[4];
        load_rows(x, Q + d, at.key_pitch, rows);
        load_matrices(y, shared_address(from + d));
        multiply_add(products[0], x, y[0], y[1]);
        multiply_add(products[1], x, y[2], y[3]);
      }
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const int row = g + e % 4 / 2 * 8, token = own + e / 4 * 8 + 2 * q + e % 2;
        if (row >= rows) continue;
        const float x = products[e / 4][e % 4];
        scores[row * kScorePitch + token] = narrow<bf16>(token < given ? coefficient * (x + 0.0f) : 0.0f);
      }
    }
    // The prefix comes first in every sum, and while scores are on their way.
#pragma unroll 2
    for (int d = 0; first == 0 && works && d < at.depth; d += kStep) {
      std::uint32_t x[4];
      load_rows(x, Q + d, at.key_pitch, rows);
      const int row = d + lower + inner;
#pragma unroll
      for (int pair = 0; pair < kTiles / 2; ++pair) {
        const int piece = warp_column / kPieceSize + 2 * pair + right, panel = piece / kRowPieces;
        std::uint32_t y[4];
        load_matrices_transposed(y, shared_address(P + (panel * at.depth + row) * kPanelColumns +
                                                   ((piece % kRowPieces) ^ (row % 8)) * kPieceSize));
        multiply_add(sums[2 * pair], x, y[0], y[1]);
        multiply_add(sums[2 * pair + 1], x, y[2], y[3]);
      }
    }
    __syncthreads();
    if (first + kTokens < keys) fetch_keys(first + kTokens);
#pragma unroll 2
    for (int token = 0; works && token < given; token += kStep) {
      std::uint32_t x[4];
      load_rows(x, scores + token, kScorePitch, rows);
#pragma unroll
      for (int pair = 0; pair < kTiles / 2; ++pair) {
        std::uint32_t y[4];
        load_matrices_transposed(y, shared_address(V + (token + lower + inner) * at.value_pitch + warp_column +
                                                   (2 * pair + right) * kPieceSize));
        multiply_add(sums[2 * pair], x, y[0], y[1]);
        multiply_add(sums[2 * pair + 1], x, y[2], y[3]);
      }
    }
  }
  if (!works) return;

#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
#pragma unroll
    for (int down = 0; down < 2; ++down) {
      const int row = g + 8 * down, column = block_column + warp_column + 8 * j + 2 * q;
      if (row >= rows) continue;
      float y[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        y[e] = s.scale * sums[j][2 * down + e];
        if (s.normalized) y[e] /= den[row];
      }
      bf16* const out =
          static_cast<bf16*>(job.out.data) + batch * job.out.batch_stride + (head + row) * job.out.head_stride;
      if (job.out.vector && column + 2 <= s.E) {
        *reinterpret_cast<std::uint32_t*>(out + column) = pack_bf16(y[0], y[1]);
      } else {
        for (int e = 0; e < 2; ++e) {
          if (column + e < s.E) out[column + e] = narrow<bf16>(y[e]);
        }
      }
    }
  }
}

template <int kPanels, class Job>
void decode_with(const Job& job, void* stream) {
  const StreamShape& s = job.shape;
  const int across = ceil_div(s.E, kPanels * kPanelColumns), heads = s.Hkv * row_tiles(s);
  const std::int64_t plane = static_cast<std::int64_t>(across) * heads;
  const std::int64_t closing = (closing_blocks(job) + plane - 1) / plane;
  const auto bytes = static_cast<std::size_t>(DecodePlaces(s, kPanels, most_rows(s)).end) * sizeof(bf16);
  launch(decode_panels_kernel<kPanels, Job>, grid_of(across, heads, job.count + closing), job, stream,
         "decode_panels_kernel",
         {.shared_bytes = bytes < sizeof(CloseMemory) ? sizeof(CloseMemory) : bytes, .early = job.early});
}

template <class Job>
void decode(const Job& job, void* stream) {
  decode_wide(job) ? decode_with<2>(job, stream) : decode_with<1>(job, stream);
}

}  // namespace

void stream_decode_panels(const DecodeCall& job, void* stream) {
  job.closers == 0 && decode_sm90_fits(job) ? stream_decode_sm90(job, stream) : decode(job, stream);
}
void stream_decode_panels(const DecodeReplay& job, void* stream) {
  job.maybe_closers == nullptr&& decode_sm90_fits(job) ? stream_decode_sm90(job, stream) : decode(job, stream);
}

}  // namespace mhla::cuda
