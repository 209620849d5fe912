// Where things are while a call runs. Tokens from before it are in the ring of their state, those it brings in its
// tensors; the ring is written when all have read it. Summaries are in slots, prefixes in the state or the workspace.
#pragma once

#include "mhla/kernels/common/cuda/tokens.cuh"
#include "mhla/kernels/streaming/streaming_cuda.h"

namespace mhla::cuda {

template <class T>
__device__ inline T* in_state(const StreamSequence& sequence, std::int64_t offset) {
  return reinterpret_cast<T*>(sequence.state + offset);
}

// One chunk of one sequence; places count from the first token of the chunk.
struct StreamChunk {
  std::int64_t chunk;
  std::int64_t fresh;    // the first place that the call brings; negative where the call began in an earlier chunk
  std::int32_t size;     // tokens up to the end of the call
  std::int32_t in_ring;  // row of the ring of place 0

  __device__ StreamChunk(const StreamJob& job, const StreamSequence& sequence, int n) : chunk(sequence.first + n) {
    const std::int64_t begin = chunk * job.shape.C, rest = sequence.start + job.T - begin;
    fresh = sequence.start - begin;
    size = rest < job.shape.C ? static_cast<std::int32_t>(rest) : job.shape.C;
    in_ring = static_cast<std::int32_t>(begin % job.shape.ring);
  }
};

// Rows of a chunk as an operand (tile.cuh). Without a ring rows from before the call are zeros.
template <class T>
struct StreamRows {
  using Element = T;
  const T* input;  // of place `fresh`
  std::int64_t stride;
  const T* maybe_ring;
  std::int64_t ring_stride;
  std::int64_t fresh;
  std::int32_t in_ring, ring;
  Run at;
  int columns;
  bool vector;
  FeatureMap map;

  __device__ StreamRows(const StreamJob& job, const StreamSequence& sequence, const StreamChunk& place,
                        const DeviceTensor& tensor, int head, std::int64_t ring_offset, FeatureMap feature_map)
      : stride(tensor.token_stride),
        maybe_ring(nullptr),
        ring_stride(static_cast<std::int64_t>(job.shape.Hkv) * tensor.columns),
        fresh(place.fresh),
        in_ring(place.in_ring),
        ring(job.shape.ring),
        at{static_cast<std::uint32_t>(place.size)},
        columns(tensor.columns),
        vector(tensor.vector),
        map(feature_map) {
    input = static_cast<const T*>(tensor.data) + sequence.batch * tensor.batch_stride + head * tensor.head_stride;
    if (ring_offset < 0) return;
    maybe_ring = in_state<const T>(sequence, ring_offset) + head * columns;
    vector = vector && columns % Piece<T>::kSize == 0;  // rows of the ring follow each other without a gap
  }

  // Row of a place, or null.
  [[nodiscard]] __device__ const T* row(int place) const {
    if (place >= fresh) return input + (place - fresh) * stride;
    if (maybe_ring == nullptr) return nullptr;
    const int turned = in_ring + place;
    return maybe_ring + static_cast<std::int64_t>(turned < ring ? turned : turned - ring) * ring_stride;
  }
  __device__ Piece<T> load(int place, int column) const {
    const T* const from = place < static_cast<int>(at.size) ? row(place) : nullptr;
    if (from == nullptr) return {};
    return load_piece(from, column, columns, vector);
  }
  [[nodiscard]] __device__ bool verbatim() const { return map == FeatureMap::kIdentity; }
  __device__ void finish(const Piece<T>& raw, int /*place*/, int column, float (&x)[Piece<T>::kSize]) const {
#pragma unroll
    for (int j = 0; j < Piece<T>::kSize; ++j) x[j] = feature(map, widen(raw.x[j]));
    if (column + Piece<T>::kSize > columns && map != FeatureMap::kIdentity) {  // as in TokenRows
#pragma unroll
      for (int j = 0; j < Piece<T>::kSize; ++j) x[j] = column + j < columns ? x[j] : 0.0f;
    }
  }
};

// What a chunk reads in front of it: place n of the piece, prefix of `head` (of prefixes).
__device__ inline std::byte* prefix_of(const StreamJob& job, const StreamSequence& sequence, int n, int head) {
  const StreamShape& s = job.shape;
  if (n > 0 && n < sequence.closed) {
    const std::int64_t row = static_cast<std::int64_t>(sequence.batch) * (job.piece - 1) + n - 1;
    return job.maybe_prefixes + (row * s.prefixes() + head) * s.layout.stride;
  }
  return in_state<std::byte>(sequence, s.prefix[n == 0 ? sequence.open : sequence.open ^ 1]) + head * s.layout.stride;
}

// Four values of a mixed summary from column `column` on, of s.columns, into their prefix.
__device__ inline void store_prefix(const StreamShape& s, std::byte* prefix, int column, const float (&x)[4]) {
  if (!s.layout.panels) {
    store_piece(reinterpret_cast<float*>(prefix), column, s.columns, true, x);
    return;
  }
  bf16* const panels = reinterpret_cast<bf16*>(prefix);
  const int d = column / s.E, e = column - d * s.E;
  if (s.E % 4 == 0 && d < s.D) {  // four columns of one row
    struct alignas(8) Few {
      bf16 x[4];
    } few;
#pragma unroll
    for (int j = 0; j < 4; ++j) few.x[j] = narrow<bf16>(x[j]);
    *reinterpret_cast<Few*>(panels + PrefixLayout::index(d, e, s.D)) = few;
    return;
  }
  float* const z = reinterpret_cast<float*>(prefix + s.layout.z);
  for (int j = 0; j < 4 && column + j < s.columns; ++j) {
    const int row = (column + j) / s.E, own = column + j - row * s.E;
    if (row < s.D)
      panels[PrefixLayout::index(row, own, s.D)] = narrow<bf16>(x[j]);
    else
      z[column + j - s.D * s.E] = x[j];
  }
}

// Rows of a panelled prefix as an operand (tile.cuh).
struct PanelRows {
  using Element = bf16;
  const bf16* data;
  int rows, columns;

  __device__ Piece<bf16> load(int row, int column) const {
    if (row >= rows || column >= columns) return {};
    Piece<bf16> raw = *reinterpret_cast<const Piece<bf16>*>(data + PrefixLayout::index(row, column, rows));
#pragma unroll
    for (int j = 0; j < Piece<bf16>::kSize; ++j) {
      if (column + j >= columns) raw.x[j] = {};
    }
    return raw;
  }
  [[nodiscard]] __device__ bool verbatim() const { return true; }
  __device__ void finish(const Piece<bf16>& raw, int /*row*/, int /*column*/, float (&x)[8]) const {
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] = widen(raw.x[j]);
  }
};

// The prefix of a chunk as the operand that products with tokens of type T take.
template <class T>
__device__ inline auto prefix_rows(const StreamShape& s, const std::byte* prefix) {
  if constexpr (std::is_same_v<T, bf16>) {
    return PanelRows{reinterpret_cast<const bf16*>(prefix), s.D, s.E};
  } else {
    return MatrixRows{reinterpret_cast<const float*>(prefix), s.E, s.D, s.E, s.E % 4 == 0};
  }
}

__device__ inline float* slot_of(const StreamShape& s, const StreamSequence& sequence, int kv_head,
                                 std::int64_t block) {
  return in_state<float>(sequence, s.summaries) + (block % s.slots * s.Hkv + kv_head) * s.stride;
}

// Summaries by block, from the ring of slots. Blocks outside [first, end) are zeros.
struct SlotRows {
  using Element = float;
  const float* data;         // of the kv head
  std::int64_t slot_stride;  // floats
  int slots, first, end, columns;

  __device__ Piece<float> load(int block, int column) const {
    if (block < first || block >= end) return {};
    return load_piece(data + block % slots * slot_stride, column, columns, true);
  }
  [[nodiscard]] __device__ bool verbatim() const { return true; }
  __device__ void finish(const Piece<float>& raw, int /*row*/, int /*column*/, float (&x)[4]) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) x[j] = raw.x[j];
  }
};

// Denominators of chunk n of the piece and query head, one for each place.
__device__ inline float* den_of(const StreamJob& job, const StreamSequence& sequence, int n, int head) {
  const StreamShape& s = job.shape;
  return job.maybe_den + ((static_cast<std::int64_t>(sequence.batch) * s.heads() + head) * job.piece + n) * s.C;
}

__device__ inline DeviceMix mix_of(const StreamJob& job, const StreamSequence& sequence) {
  const StreamShape& s = job.shape;
  DeviceMix mix;
  mix.data = in_state<const float>(sequence, s.mix);
  mix.row_stride = s.L, mix.column_stride = 1, mix.L = s.L;
  mix.head_stride = s.per_head ? static_cast<std::int64_t>(s.L) * s.L : 0;
  return mix;
}

}  // namespace mhla::cuda
