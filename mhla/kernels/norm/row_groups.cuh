// Rows of up to 5,120 columns, each in the registers of a group of 32, 64, 128 or 256 threads of a block: thread
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

// Sum over the threads of a group, the same bits in every one. `shared`: two rows of a value per warp, used in turn so
// that one barrier is enough.
template <class S>
__device__ inline float group_sum(float x, float (&shared)[2][kThreads / 32], int& turn) {
#pragma unroll
  for (int away = 16; away > 0; away /= 2) x += __shfl_xor_sync(0xffffffffu, x, away);
  if constexpr (S::kGroup > 32) {
    constexpr int kWarps = S::kGroup / 32;
    turn ^= 1;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    if (threadIdx.x % 32 == 0) shared[turn][warp] = x;
    asm volatile("bar.sync %0, %1;" ::"r"(group<S>() + 1), "n"(S::kGroup) : "memory");
    x = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) x += shared[turn][warp / kWarps * kWarps + i];
  }
  return x;
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
