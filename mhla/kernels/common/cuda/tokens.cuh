// Where the tokens of a block are, and rows of tokens as operands of a product: gathered from raster order, through
// the feature map where wanted, zero beyond the block.
#pragma once

#include "mhla/kernels/common/cuda/jobs.h"
#include "mhla/kernels/common/cuda/tile.cuh"

namespace mhla::cuda {

// phi and its slope in f32. Written so that NaN passes through: every comparison with NaN is false. Three of the four
// maps are the same two instructions.
__device__ inline float feature(FeatureMap map, float x) {
  if (map == FeatureMap::kElu1) return x <= 0 ? expf(x) : x + 1.0f;
  const float positive = x <= 0 && map != FeatureMap::kIdentity ? 0.0f : x;
  return positive + (map == FeatureMap::kReluEps ? static_cast<float>(kReluEpsilon) : 0.0f);
}

// A zero slope blocks the gradient altogether, infinite or not.
__device__ inline float through_slope(FeatureMap map, float x, float gradient) {
  switch (map) {
    case FeatureMap::kReluEps:
    case FeatureMap::kRelu: return x <= 0 ? 0.0f : gradient;
    case FeatureMap::kElu1: {
      const float slope = x <= 0 ? expf(x) : 1.0f;
      return slope == 0 ? 0.0f : gradient * slope;
    }
    case FeatureMap::kIdentity: break;
  }
  return gradient;
}

// Row of a tensor dot a vector, by one warp: lane l takes columns l, l + 32, ...
template <class T>
__device__ float dot_row(FeatureMap map, const T* row, const float* vector, int columns) {
  float sum = 0;
  for (int c = threadIdx.x % 32; c < columns; c += 32) sum = fmaf(feature(map, widen(row[c])), vector[c], sum);
  return warp_sum(sum);
}

// One block of a wave.
struct Place {
  std::int64_t batch, start;  // of its sequence
  std::int32_t block;         // number inside its sequence
  BlockTokens at;

  [[nodiscard]] __device__ int size() const { return static_cast<int>(at.size); }
};

__device__ inline Place find_place(const Wave& wave, std::int64_t local_block) {
  const DeviceSequences& s = wave.sequences;
  Place place{};
  std::int64_t length = s.N;
  if (s.maybe_start == nullptr) {  // a wave begins with a batch element
    const auto local = static_cast<std::uint32_t>(local_block), element = s.M.divide(local);
    place.batch = wave.first_sequence + element;
    place.block = static_cast<std::int32_t>(local - element * s.M.divisor);
  } else {
    const std::int64_t block = wave.first_block + local_block;
    const std::int32_t sequence = s.maybe_sequence_of_block[block];
    place.start = s.maybe_start[sequence];
    place.block = static_cast<std::int32_t>(block - s.maybe_first_block[sequence]);
    length = s.maybe_start[sequence + 1] - place.start;
  }
  place.at = wave.layout.tokens(place.block, length);
  return place;
}

// The blocks of one sequence of a wave: [first, first + count) among the blocks of the wave.
struct SequenceBlocks {
  std::int64_t first;
  std::int32_t count;
};
__device__ inline SequenceBlocks blocks_of(const Wave& wave, std::int64_t local_sequence) {
  const DeviceSequences& s = wave.sequences;
  if (s.maybe_start == nullptr) return {local_sequence * s.M.divisor, static_cast<std::int32_t>(s.M.divisor)};
  const std::int64_t sequence = wave.first_sequence + local_sequence, first = s.maybe_first_block[sequence];
  return {first - wave.first_block, static_cast<std::int32_t>(s.maybe_first_block[sequence + 1] - first)};
}

// Floats before what (head, block) of a wave has in a buffer; heads counted from the first of the wave.
__device__ inline std::int64_t wave_offset(const Wave& wave, int head, std::int64_t block, std::int64_t stride) {
  return (static_cast<std::int64_t>(head) * wave.blocks + block) * stride;
}

// Head of the tensor that head `local` of the wave reads.
__device__ inline int query_head(const Wave& wave, int local) { return wave.first_kv_head * wave.group + local; }

// A chunk of consecutive tokens, whose first one the data pointer of its rows points at.
struct Run {
  std::uint32_t size;
  [[nodiscard]] __device__ std::int64_t token(int place) const { return place; }
};

// kRun: blocks are runs, as in the causal form; saves the registers that gathering takes.
template <class T, bool kRun = false>
struct TokenRows {
  using Element = T;
  const T* data;  // of the head, at the start of the sequence
  std::int64_t stride;
  std::conditional_t<kRun, Run, BlockTokens> at;
  int columns;
  bool vector;
  FeatureMap map;
  const float* maybe_den;  // of the block
  float scale;
  bool scaled;

  // Local head of the wave; `of_queries` says of which kind.
  __device__ TokenRows(const Wave& wave, const Place& place, std::int64_t local_block, const TokenSource& source,
                       int local_head, bool of_queries)
      : stride(source.tensor.token_stride),
        columns(source.tensor.columns),
        vector(source.tensor.vector),
        map(source.mapped ? wave.feature_map : FeatureMap::kIdentity),
        maybe_den(nullptr),
        scale(source.scale),
        scaled(source.scaled) {
    const int head = of_queries ? query_head(wave, local_head) : wave.first_kv_head + local_head;
    data = static_cast<const T*>(source.tensor.data) + place.batch * source.tensor.batch_stride + place.start * stride +
           head * source.tensor.head_stride;
    if constexpr (kRun) {
      data += place.at.origin * stride;
      at.size = place.at.size;
    } else {
      at = place.at;
    }
    if (source.maybe_den != nullptr) maybe_den = source.maybe_den + wave_offset(wave, local_head, local_block, wave.C);
  }

  __device__ Piece<T> load(int row, int column) const {
    if (row >= static_cast<int>(at.size)) return {};
    return load_piece(data + at.token(row) * stride, column, columns, vector);
  }
  [[nodiscard]] __device__ bool verbatim() const { return map == FeatureMap::kIdentity && !scaled; }
  __device__ void finish(const Piece<T>& raw, int row, int column, float (&x)[Piece<T>::kSize]) const {
#pragma unroll
    for (int j = 0; j < Piece<T>::kSize; ++j) x[j] = feature(map, widen(raw.x[j]));
    if (scaled) {
      const float factor = maybe_den == nullptr              ? scale
                           : row < static_cast<int>(at.size) ? scale / maybe_den[row]
                                                             : 0.0f;
#pragma unroll
      for (int j = 0; j < Piece<T>::kSize; ++j) x[j] *= factor;
    }
    // Columns beyond the last one are met by columns beyond the last one of another token: features of both would add
    // something. Rows beyond the last one meet zeros, or are not written.
    if (column + Piece<T>::kSize > columns && map != FeatureMap::kIdentity) {
#pragma unroll
      for (int j = 0; j < Piece<T>::kSize; ++j) x[j] = column + j < columns ? x[j] : 0.0f;
    }
  }
};

// Row of a tensor: head counted in the tensor, place in the block.
template <class T>
__device__ inline T* token_row(const DeviceTensor& tensor, const Place& place, int head, int w) {
  return static_cast<T*>(tensor.data) + place.batch * tensor.batch_stride +
         (place.start + place.at.token(w)) * tensor.token_stride + head * tensor.head_stride;
}

}  // namespace mhla::cuda
