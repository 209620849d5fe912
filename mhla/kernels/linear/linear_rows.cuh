// What linear_rows_cuda.cu is made of: sums of the blocks of a cluster, and rows on their way to the product.
#pragma once

#include "mhla/kernels/common/cuda/clusters.cuh"
#include "mhla/kernels/common/cuda/intrinsics.cuh"
#include "mhla/kernels/linear/linear_rows_job.h"

namespace mhla::cuda {

inline constexpr int kRowsBlock = 256, kRowsWarps = kRowsBlock / 32;  // threads and warps of a block

__device__ inline void add_to(float& sum, float x) { sum += x; }
__device__ inline void add_to(float4& sum, const float4& x) { sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w; }

// The same place in the memory of up to kMost blocks of a cluster: requested at once, then added up in their order.
template <class T, int kMost>
struct Parts {
  T x[kMost];
  __device__ Parts(const void* at, int slices) {
    const std::uint32_t address = shared_address(at);
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      x[i] = {};
      if (i < slices) load_of_block(x[i], address_in_block(address, i));
    }
  }
  [[nodiscard]] __device__ T sum(int slices) const {
    T total = x[0];
#pragma unroll
    for (int i = 1; i < kMost; ++i) {
      if (i < slices) add_to(total, x[i]);
    }
    return total;
  }
};

struct alignas(8) Four {
  bf16 x[4];
};

// Sums of one place or of two; parts of both are on their way at once where registers allow it.
template <int kMost>
__device__ inline void sum_parts(const float* at, const float* maybe_other, int slices, float4& y, float4& z) {
  const int other_slices = maybe_other != nullptr ? slices : 0;
  const Parts<float4, kMost> parts(at, slices);
  if constexpr (kMost > 4) y = parts.sum(slices);
  const Parts<float4, kMost> other_parts(maybe_other, other_slices);
  if constexpr (kMost <= 4) y = parts.sum(slices);
  z = other_parts.sum(other_slices);
}

// Two parts in a million off: its results are rounded to bf16. The exact division and exponential took most of the time
// of the output projection of 64 rows.
__device__ inline float silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

// What a lane needs of the scale of a norm, loaded before the previous kernel has ended: nothing has kept it in a cache
// since the last step.
template <RowsBefore kBefore>
struct LaneScale {};

template <>
struct LaneScale<RowsBefore::kNorm> {
  static constexpr int kChunks = kRowsSlice / 128;
  Four x[kChunks];
  __device__ LaneScale(const LinearRowsJob& p, int k) {
#pragma unroll
    for (int j = 0; j < kChunks; ++j) {
      const int c = j * 128 + static_cast<int>(threadIdx.x) % 32 * 4;
      x[j] = Four{};
      if (c < p.slice && k + c < p.K) x[j] = *reinterpret_cast<const Four*>(static_cast<const bf16*>(p.scale) + k + c);
    }
  }
};

template <>
struct LaneScale<RowsBefore::kHeadNorm> {
  uint4 x;
  __device__ LaneScale(const LinearRowsJob& p, int /*k*/)
      : x(static_cast<const uint4*>(p.scale)[static_cast<int>(threadIdx.x) % 32 % (p.head / 8)]) {}
};

template <>
struct LaneScale<RowsBefore::kPlain> {
  __device__ LaneScale(const LinearRowsJob& /*p*/, int /*k*/) {}
};

// Rows of the first operand through what stands before the product, into shared memory; zeros after the last of K.
// A warp has rows warp, warp + 8, ...: up to four on their way before the first is used. More at once would take the
// registers of the blocks that wait on the same multiprocessor.
template <int kM>
inline constexpr int kTogether = 2 * kM < 4 ? 2 * kM : 4;

template <int kM>
__device__ void take_rows(const LinearRowsJob& p, const LaneScale<RowsBefore::kPlain>& /*scale*/, int k, bf16* rows,
                          int pitch, float* /*squares*/) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bf16* const x = static_cast<const bf16*>(p.x) + k;
#pragma unroll
  for (int i = 0; i < 2 * kM; ++i) {
    const int row = warp + i * kRowsWarps;
    for (int c = lane * 8; c < p.slice; c += 256)
      copy16(shared_address(rows + row * pitch + c), x + row * p.x_stride + c, row < p.R && k + c < p.K);
  }
}

template <int kM>
__device__ void take_rows(const LinearRowsJob& p, const LaneScale<RowsBefore::kNorm>& scale, int k, bf16* rows,
                          int pitch, float* squares) {
  constexpr int kChunks = LaneScale<RowsBefore::kNorm>::kChunks;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const float* const x = static_cast<const float*>(p.x) + k;
#pragma unroll 1
  for (int first = warp; first < 16 * kM; first += kTogether<kM> * kRowsWarps) {
    float4 value[kTogether<kM>][kChunks];
#pragma unroll
    for (int j = 0; j < kChunks; ++j) {
      const int c = j * 128 + lane * 4;
      const bool there = c < p.slice && k + c < p.K;
#pragma unroll
      for (int i = 0; i < kTogether<kM>; ++i) {
        const int row = first + i * kRowsWarps;
        value[i][j] = there && row < p.R ? *reinterpret_cast<const float4*>(x + row * p.x_stride + c) : float4{};
      }
    }
#pragma unroll
    for (int i = 0; i < kTogether<kM>; ++i) {
      const int row = first + i * kRowsWarps;
      float sum = 0;
#pragma unroll
      for (int j = 0; j < kChunks; ++j) {
        const int c = j * 128 + lane * 4;
        const float4 v = value[i][j];
        const Four& w = scale.x[j];
        sum = fmaf(v.x, v.x, sum), sum = fmaf(v.y, v.y, sum), sum = fmaf(v.z, v.z, sum), sum = fmaf(v.w, v.w, sum);
        if (c >= p.slice) continue;
        Four four;
        four.x[0] = narrow<bf16>(v.x * widen(w.x[0])), four.x[1] = narrow<bf16>(v.y * widen(w.x[1]));
        four.x[2] = narrow<bf16>(v.z * widen(w.x[2])), four.x[3] = narrow<bf16>(v.w * widen(w.x[3]));
        *reinterpret_cast<Four*>(rows + row * pitch + c) = four;
      }
      sum = warp_sum(sum);
      if (lane == 0) squares[row] = sum;
    }
  }
}

__device__ inline void unpack_eight(const uint4& from, float (&to)[8]) {
  const std::uint32_t pairs[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 two = unpack_bf16(pairs[i]);
    to[2 * i] = two.x, to[2 * i + 1] = two.y;
  }
}

template <int kM>
__device__ void take_rows(const LinearRowsJob& p, const LaneScale<RowsBefore::kHeadNorm>& scale, int k, bf16* rows,
                          int pitch, float* /*squares*/) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, lanes = p.head / 8;  // of a head
  const bf16 *const x = static_cast<const bf16*>(p.x) + k, *const gate = static_cast<const bf16*>(p.gate) + k;
  const float share = 1.0f / static_cast<float>(p.head);
#pragma unroll 1
  for (int begin = 0; begin < p.slice; begin += 256) {
    const int c = begin + lane * 8;
    const bool there = c < p.slice && k + c < p.K;
#pragma unroll 1
    for (int first = warp; first < 16 * kM; first += kTogether<kM> * kRowsWarps) {
      uint4 value[kTogether<kM>], factor[kTogether<kM>];
#pragma unroll
      for (int i = 0; i < kTogether<kM>; ++i) {
        const int row = first + i * kRowsWarps;
        const bool given = there && row < p.R;
        value[i] = given ? *reinterpret_cast<const uint4*>(x + row * p.x_stride + c) : uint4{};
        factor[i] = given ? *reinterpret_cast<const uint4*>(gate + row * p.gate_stride + c) : uint4{};
      }
#pragma unroll
      for (int i = 0; i < kTogether<kM>; ++i) {
        float v[8], w[8], g[8], sum = 0;
        unpack_eight(value[i], v), unpack_eight(scale.x, w), unpack_eight(factor[i], g);
#pragma unroll
        for (int e = 0; e < 8; ++e) sum = fmaf(v[e], v[e], sum);
        for (int away = lanes / 2; away > 0; away /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, away);
        const float unit = rsqrtf(sum * share + p.eps);
#pragma unroll
        for (int e = 0; e < 8; ++e) v[e] = v[e] * unit * w[e] * (p.silu_done ? g[e] : silu(g[e]));
        if (c < p.slice)
          *reinterpret_cast<uint4*>(rows + (first + i * kRowsWarps) * pitch + c) = {
              pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7])};
      }
    }
  }
}

}  // namespace mhla::cuda
