// Rows of up to 5,120 columns, each in the registers of a group of 16, 32, 64, 128 or 256 threads of a block: thread
// t of g holds columns 4 t to 4 t + 3 of every 4 g, at most five such pieces. Rows are given as {data, stride, dtype};
// sums over a group have the same bits in all its threads.
#pragma once

#include "mhla/kernels/common/cuda/intrinsics.cuh"

namespace mhla::rows {

using cuda::narrow;
using cuda::widen;

constexpr int kThreads = 256;

template <int kGroup_, int kPieces_>
struct Token {  // how one lies
  static constexpr int kGroup = kGroup_, kPieces = kPieces_, kGroups = kThreads / kGroup_;
};

template <class S>
using Values = float[S::kPieces][4];

template <class S>
__device__ inline int group() {
  return static_cast<int>(threadIdx.x) / S::kGroup;
}

// f(piece, column of its first value) for the pieces of this thread that are there.
template <class S, class F>
__device__ inline void each_piece(int X, const F& f) {
#pragma unroll
  for (int piece = 0; piece < S::kPieces; ++piece) {
    const int column = (piece * S::kGroup + static_cast<int>(threadIdx.x) % S::kGroup) * 4;
    if (column < X) f(piece, column);
  }
}

template <class S, class F>
__device__ inline void each(const F& f) {
#pragma unroll
  for (int piece = 0; piece < S::kPieces; ++piece) {
#pragma unroll
    for (int i = 0; i < 4; ++i) f(piece, i);
  }
}

using GroupShared = float[2][kThreads / 32][2];  // two values per warp, twice: used in turn, so one barrier is enough

// Sums over the threads of a group, one or two at a time, the same bits in every thread.
template <class S, int kCount>
__device__ inline void group_sums(float (&x)[kCount], GroupShared& shared, int& turn) {
  constexpr int kLanes = S::kGroup < 32 ? S::kGroup : 32;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  // Groups of a warp may have different numbers of rows, so half a warp does not wait for the other.
  const unsigned together = kLanes == 32 ? 0xffffffffu : ((1u << kLanes % 32) - 1) << lane / kLanes * kLanes;
#pragma unroll
  for (int away = kLanes / 2; away > 0; away /= 2) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] += __shfl_xor_sync(together, x[i], away);
  }
  if constexpr (S::kGroup > 32) {
    constexpr int kWarps = S::kGroup / 32;
    turn ^= 1;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (lane == 0) shared[turn][warp][i] = x[i];
    }
    asm volatile("bar.sync %0, %1;" ::"r"(group<S>() + 1), "n"(S::kGroup) : "memory");
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      x[i] = 0;
#pragma unroll
      for (int from = 0; from < kWarps; ++from) x[i] += shared[turn][warp / kWarps * kWarps + from][i];
    }
  }
}

template <class S>
__device__ inline float group_sum(float x, GroupShared& shared, int& turn) {
  float one[1] = {x};
  group_sums<S>(one, shared, turn);
  return one[0];
}

template <class T>
struct alignas(4 * sizeof(T)) Four {
  T x[4];
};

template <class S, class T>
__device__ inline void load_as(const void* data, std::int64_t at, int X, Values<S>& to) {
  const T* from = static_cast<const T*>(data) + at;
  each_piece<S>(X, [&](int piece, int column) {
    const Four<T> four = *reinterpret_cast<const Four<T>*>(from + column);
#pragma unroll
    for (int i = 0; i < 4; ++i) to[piece][i] = widen(four.x[i]);
  });
}

// Columns behind the last one are zeros.
template <class S, class Rows>
__device__ inline void load(const Rows& from, std::int64_t row, int X, Values<S>& to) {
  each<S>([&](int piece, int i) { to[piece][i] = 0.0f; });
  const std::int64_t at = row * from.stride;
  if (from.dtype == DType::kBF16) return load_as<S, bf16>(from.data, at, X, to);
  if (from.dtype == DType::kF16) return load_as<S, f16>(from.data, at, X, to);
  load_as<S, float>(from.data, at, X, to);
}

// A row as it lies in memory. fetch() asks for it, widen_row() waits for it: between them other rows can be asked for.
template <class S>
struct Raw {
  std::uint32_t words[S::kPieces][4];
};

template <class S, class Rows>
__device__ inline void fetch(const Rows& from, std::int64_t row, int X, Raw<S>& to) {
  each<S>([&](int piece, int i) { to.words[piece][i] = 0; });
  if (from.data == nullptr) return;
  const std::int64_t at = row * from.stride;
  each_piece<S>(X, [&](int piece, int column) {
    std::uint32_t(&words)[4] = to.words[piece];
    if (from.dtype == DType::kF32) {
      const uint4 four = *reinterpret_cast<const uint4*>(static_cast<const float*>(from.data) + at + column);
      words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w;
    } else {
      const uint2 two = *reinterpret_cast<const uint2*>(static_cast<const std::uint16_t*>(from.data) + at + column);
      words[0] = two.x, words[1] = two.y;
    }
  });
}

template <class S, class Rows>
__device__ inline void widen_row(const Rows& from, const Raw<S>& raw, Values<S>& to) {
  const auto half = [&](int piece, int i) {
    return static_cast<std::uint16_t>(raw.words[piece][i / 2] >> 16 * (i % 2));
  };
  if (from.dtype == DType::kBF16) {
    each<S>([&](int piece, int i) { to[piece][i] = widen(bf16{half(piece, i)}); });
  } else if (from.dtype == DType::kF16) {
    each<S>([&](int piece, int i) { to[piece][i] = widen(f16{half(piece, i)}); });
  } else {
    each<S>([&](int piece, int i) { to[piece][i] = __uint_as_float(raw.words[piece][i]); });
  }
}

template <class S, class T>
__device__ inline void store_as(void* data, std::int64_t at, int X, const Values<S>& from) {
  T* to = static_cast<T*>(data) + at;
  each_piece<S>(X, [&](int piece, int column) {
    Four<T> four;
#pragma unroll
    for (int i = 0; i < 4; ++i) four.x[i] = narrow<T>(from[piece][i]);
    *reinterpret_cast<Four<T>*>(to + column) = four;
  });
}

template <class S, class Rows>
__device__ inline void store(const Rows& to, std::int64_t row, int X, const Values<S>& from) {
  const std::int64_t at = row * to.stride;
  if (to.dtype == DType::kBF16) return store_as<S, bf16>(to.data, at, X, from);
  if (to.dtype == DType::kF16) return store_as<S, f16>(to.data, at, X, from);
  store_as<S, float>(to.data, at, X, from);
}

// f(token) with the least that holds one.
template <class F>
void with_token(int X, const F& f) {
  if (X <= 128) return f(Token<32, 1>{});
  if (X <= 192) return f(Token<16, 3>{});
  if (X <= 256) return f(Token<32, 2>{});
  if (X <= 384) return f(Token<32, 3>{});
  if (X <= 512) return f(Token<32, 4>{});
  if (X <= 768) return f(Token<64, 3>{});
  if (X <= 1024) return f(Token<64, 4>{});
  if (X <= 1536) return f(Token<128, 3>{});
  if (X <= 2048) return f(Token<128, 4>{});
  if (X <= 4096) return f(Token<256, 4>{});
  f(Token<256, 5>{});
}

}  // namespace mhla::rows
