// What the kernels of decode share: the tokens of an open chunk, the running sum of their keys, and the summary of a
// chunk that is complete with the newest of them.
#pragma once

#include "mhla/kernels/common/cuda/summaries.cuh"
#include "mhla/kernels/streaming/streaming_cuda.h"

namespace mhla::cuda {

inline constexpr int kSums = 32;  // tokens of a running sum, as in denominators.cu

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

  __device__ OpenRows(const DecodeJob& job, const DecodeSequence& sequence, const DeviceTensor& tensor,
                      std::int64_t offset, int batch, int head, FeatureMap feature_map)
      : newest(static_cast<const T*>(tensor.data) + batch * tensor.batch_stride + head * tensor.head_stride),
        ring(reinterpret_cast<const T*>(sequence.state + offset) + head * tensor.columns),
        ring_stride(static_cast<std::int64_t>(job.shape.Hkv) * tensor.columns),
        in_ring(sequence.in_ring),
        rows_of_ring(job.shape.ring),
        last(sequence.inside),
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

template <class T>
__device__ void keep_row(const DecodeJob& job, const DecodeSequence& sequence, const OpenRows<T>& rows, int head,
                         std::int64_t offset) {
  const std::int64_t row =
      static_cast<std::int64_t>(job.shape.ring_row(sequence.in_ring, sequence.inside)) * job.shape.Hkv + head;
  T* const to = reinterpret_cast<T*>(sequence.state + offset) + row * rows.columns;
  for (int c = threadIdx.x; c < rows.columns; c += kThreads) to[c] = rows.newest[c];
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

__device__ inline float diagonal_of(const StreamShape& s, const DecodeSequence& sequence, int head) {
  DeviceMix mix;
  mix.data = reinterpret_cast<const float*>(sequence.state + s.mix);
  mix.row_stride = s.L, mix.column_stride = 1, mix.L = s.L;
  mix.head_stride = s.per_head ? static_cast<std::int64_t>(s.L) * s.L : 0;
  return mix.at(head, sequence.chunk, sequence.chunk);
}

inline constexpr int kCloseRows = 16;  // of a tile of a summary: small, because one sequence must keep a card busy

__host__ __device__ inline int summary_tiles(const StreamShape& s) {
  return ceil_div(s.D, kCloseRows) * ceil_div(s.E, kColumns) + (s.normalized ? 1 : 0);
}

// Tile `tile` of the summary of a chunk that is complete now, or z.
template <class T, class Memory>
__device__ void close_chunk(const DecodeJob& job, const DecodeSequence& sequence, int batch, int head, int tile,
                            Memory& memory) {
  const StreamShape& s = job.shape;
  float* const out = reinterpret_cast<float*>(sequence.state + s.summaries) +
                     (static_cast<std::int64_t>(sequence.chunk % s.slots) * s.Hkv + head) * s.stride;
  const int across = ceil_div(s.E, kColumns);
  if (tile == ceil_div(s.D, kCloseRows) * across) {
    const OpenRows<T> x(job, sequence, s.has_den ? job.k_den : job.k, s.has_den ? s.k_den : s.k, batch, head,
                        s.feature_map);
    sum_vectors(memory.vectors, x, s.C, nullptr, s.D, out + s.D * s.E);
    return;
  }
  const OpenRows<T> k(job, sequence, job.k, s.k, batch, head, s.feature_map);
  const OpenRows<T> v(job, sequence, job.v, s.v, batch, head, FeatureMap::kIdentity);
  summary_tile(memory.tile, k, v, s.C, tile / across * kCloseRows, tile % across * kColumns, s.D, s.E, out);
}

// What the blocks of threads after those of tokens do: block `own` of `blocks`, until all tiles of all closers are
// done.
template <class T, class Job, class Memory>
__device__ void close_chunks(const Job& job, int own, int blocks, Memory& memory) {
  const int parts = summary_tiles(job.shape), heads = job.shape.Hkv;
  const std::int64_t all = static_cast<std::int64_t>(job.closer_count()) * heads * parts;
  for (std::int64_t at = own; at < all; at += blocks) {
    const int closer = job.closer(static_cast<int>(at / parts / heads)), tile = static_cast<int>(at % parts);
    close_chunk<T>(job, job.sequence(closer), job.first + closer, static_cast<int>(at / parts % heads), tile, memory);
    __syncthreads();
  }
}

// Blocks of threads for closers: one for every tile, or where their number is not known some that share them.
inline std::int64_t closing_blocks(const DecodeCall& job) {
  return static_cast<std::int64_t>(job.closers) * job.shape.Hkv * summary_tiles(job.shape);
}
inline std::int64_t closing_blocks(const DecodeReplay& job) {
  constexpr std::int64_t kMost = 1024;
  if (job.maybe_closers == nullptr) return 0;
  const std::int64_t all = static_cast<std::int64_t>(job.count) * job.shape.Hkv * summary_tiles(job.shape);
  return all < kMost ? all : kMost;
}

}  // namespace mhla::cuda
