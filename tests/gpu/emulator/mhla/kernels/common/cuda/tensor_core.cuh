// Stands in for the real file when kernels run in the emulator; what is not an instruction is the same.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <cstring>

#include "tests/gpu/emulator/copies.h"
#include "tests/gpu/emulator/emulator.h"
#include "tests/gpu/emulator/products.h"
#include "tests/gpu/emulator/shared.h"

namespace mhla::cuda {

inline std::uint32_t shared_address(const void* p) { return emulator::address_of(p); }

inline void copy16(std::uint32_t shared, const void* global, bool valid) {
  emulator::copy_async(shared, global, 16, valid);
}
inline void copy8(std::uint32_t shared, const void* global, bool valid) {
  emulator::copy_async(shared, global, 8, valid);
}
inline void copy_commit() { emulator::copy_commit(); }
template <int kPending>
inline void copy_wait() {
  emulator::copy_wait(kPending);
}

template <class T>
inline T shared_at(std::uint32_t at) {
  T x;
  std::memcpy(&x, emulator::place_of(at, sizeof(T), sizeof(T), "ld.shared"), sizeof(T));
  return x;
}
inline uint4 shared_words(std::uint32_t at) { return shared_at<uint4>(at); }
inline float4 shared_floats(std::uint32_t at) { return shared_at<float4>(at); }
inline uint2 shared_pair(std::uint32_t at) { return shared_at<uint2>(at); }
inline std::uint32_t shared_word(std::uint32_t at) { return shared_at<std::uint32_t>(at); }
inline void set_shared_words(std::uint32_t at, std::uint32_t x, std::uint32_t y, std::uint32_t z, std::uint32_t w) {
  const uint4 words{x, y, z, w};
  std::memcpy(emulator::place_of(at, 16, 16, "st.shared"), &words, 16);
}
inline void set_shared_word(std::uint32_t at, std::uint32_t x) {
  std::memcpy(emulator::place_of(at, 4, 4, "st.shared"), &x, 4);
}

inline void load_matrices(std::uint32_t (&r)[4], std::uint32_t address) {
  emulator::load_matrices(r, address, 4, false);
}
inline void load_matrices_transposed(std::uint32_t (&r)[4], std::uint32_t address) {
  emulator::load_matrices(r, address, 4, true);
}
inline void load_two_transposed(std::uint32_t (&r)[2], std::uint32_t address) {
  emulator::load_matrices(r, address, 2, true);
}
inline void store_matrices(std::uint32_t address, std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
  const std::uint32_t r[] = {a, b, c, d};
  emulator::store_matrices(r, address, 4);
}
inline void store_two_matrices(std::uint32_t address, std::uint32_t a, std::uint32_t b) {
  const std::uint32_t r[] = {a, b};
  emulator::store_matrices(r, address, 2);
}

inline void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  const std::uint32_t b[] = {b0, b1};
  emulator::multiply_warp(c, a, b, 4);
}
inline void multiply_upper(float (&c)[4], std::uint32_t a, std::uint32_t b) {
  const std::uint32_t words[] = {a, 0};
  emulator::multiply_warp(c, words, &b, 2);
}

// All of `threads` that meet at a barrier of the block; 0 is that of __syncthreads().
inline void named_barrier(int barrier, int threads) { emulator::block_barrier(true, barrier, threads); }

inline std::uint32_t pack_bf16(float low, float high) {
  return std::uint32_t{__float2bfloat16_rn(low).bits} | std::uint32_t{__float2bfloat16_rn(high).bits} << 16;
}
inline float2 unpack_bf16(std::uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}
inline std::uint32_t finite_pair(std::uint32_t pair) {
  if ((pair & 0x7f80u) == 0x7f80u) pair &= 0xffff0000u;
  if ((pair & 0x7f800000u) == 0x7f800000u) pair &= 0xffffu;
  return pair;
}

template <int kTiles, bool kFiniteAlone = false>
inline void multiply_rows(float (&acc)[kTiles][4], const std::uint32_t (&a)[4], std::uint32_t row) {
  const std::uint32_t right = threadIdx.x % 32 / 16 * 16;
  for (int j = 0; j + 1 < kTiles; j += 2) {
    std::uint32_t two[4];
    load_matrices_transposed(two, row + j * 16 + right);
    if constexpr (kFiniteAlone) {
      for (std::uint32_t& pair : two) pair = finite_pair(pair);
    }
    multiply_add(acc[j], a, two[0], two[1]);
    multiply_add(acc[j + 1], a, two[2], two[3]);
  }
  if constexpr (kTiles % 2 == 1) {
    std::uint32_t one[2];
    load_two_transposed(one, row + (kTiles - 1) * 16);
    if constexpr (kFiniteAlone) one[0] = finite_pair(one[0]), one[1] = finite_pair(one[1]);
    multiply_add(acc[kTiles - 1], a, one[0], one[1]);
  }
}

}  // namespace mhla::cuda
