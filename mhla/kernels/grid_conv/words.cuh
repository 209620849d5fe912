// Channels of tokens in words of 32 bits, as they lie in memory: one of f32, two of bf16 or f16. Registers hold words,
// half of what numbers would take, and a word becomes f32 where it is used.
#pragma once

#include "mhla/kernels/common/cuda/intrinsics.cuh"

namespace mhla::words {

using Word = std::uint32_t;

template <class T>
constexpr int kWord = 4 / static_cast<int>(sizeof(T));  // channels of one

template <class T>
struct Numbers {
  float x[kWord<T>] = {};
};

template <class T>
__device__ inline Numbers<T> unpack(Word word) {
  if constexpr (sizeof(T) == 4) {
    return {{__uint_as_float(word)}};
  } else {
    const T low = {static_cast<std::uint16_t>(word)}, high = {static_cast<std::uint16_t>(word >> 16)};
    return {{cuda::widen(low), cuda::widen(high)}};
  }
}

template <class T>
__device__ inline Word pack(const Numbers<T>& numbers) {
  if constexpr (sizeof(T) == 4) {
    return __float_as_uint(numbers.x[0]);
  } else {
    return cuda::narrow<T>(numbers.x[0]).bits | static_cast<Word>(cuda::narrow<T>(numbers.x[1]).bits) << 16;
  }
}
template <>
__device__ inline Word pack<bf16>(const Numbers<bf16>& numbers) {
  return cuda::pack_bf16(numbers.x[0], numbers.x[1]);  // one instruction for both
}

// A lane's word of every token of an image, which is small enough to count its words in an int: offsets of half the
// size are registers that rows of tokens can have.
struct Tokens {
  const Word* first;  // of token 0
  int stride;         // in words
  int rows, columns;

  // Tokens of a row from `column` on, zeros outside of the grid.
  template <int kCount>
  __device__ void load(int row, int column, Word (&to)[kCount]) const {
    const bool inside = static_cast<unsigned>(row) < static_cast<unsigned>(rows);
    const int at = (row * columns + column) * stride;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      to[i] = 0;
      if (inside && static_cast<unsigned>(column + i) < static_cast<unsigned>(columns)) to[i] = first[at + i * stride];
    }
  }

  // Asks for kRows rows of kColumns tokens to be in the second-level cache soon: a lane of a warp for each.
  template <int kRows, int kColumns>
  __device__ void prefetch(int row, int column) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int token = lane; token < kRows * kColumns; token += 32) {
      const int y = row + token / kColumns, x = column + token % kColumns;
      if (y < rows && x < columns) cuda::prefetch_line(first + (y * columns + x) * stride);
    }
  }
};

}  // namespace mhla::words
