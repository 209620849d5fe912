// Rows of x on their way to the products of linear_rows_sm90.cu: through what stands before the product, into panels.
#pragma once

#include "mhla/kernels/linear/linear_rows.cuh"
#include "mhla/kernels/linear/linear_rows_panels.cuh"

namespace mhla::cuda {

// Where piece c / 8 of a row lies among panels of `rows` rows.
__device__ inline int place_of(int rows, int row, int c) {
  return c / kHalfPanelColumns * rows * kHalfPanelRowBytes + half_panel_offset(row, c % kHalfPanelColumns / 8);
}

__device__ inline uint4 pack_eight(const float (&x)[8]) {
  return {pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7])};
}

constexpr int power_of_two_from(int x) {
  int power = 1;
  while (power < x) power *= 2;
  return power;
}

// Sums of kCount values over the lanes of a warp, each as warp_sum() adds it up, but for all at once: with every step
// half of the lanes go on with half of the values. Lane l has value l * kCount / 32 then.
template <int kCount>
__device__ inline float warp_sums(float (&x)[kCount], int lane) {
  static_assert((kCount & (kCount - 1)) == 0);
  int away = 16;
#pragma unroll
  for (int half = kCount / 2; half > 0; half /= 2, away /= 2) {
    const bool upper = (lane & away) != 0;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const float leaves = upper ? x[i] : x[i + half], stays = upper ? x[i + half] : x[i];
      x[i] = stays + __shfl_xor_sync(0xffffffffu, leaves, away);
    }
  }
#pragma unroll
  for (int rest = 16 / kCount; rest > 0; rest /= 2) x[0] += __shfl_xor_sync(0xffffffffu, x[0], rest);
  return x[0];
}

// A warp has rows warp, warp + kWarps, ..., all of them on their way at once. Zeros after the last of K. Rows after the
// last are left as they are: nobody reads their sums.
template <int kN, int kWarps, int kPanels, RowsBefore kBefore, bool kSilu>
struct TakeRows {
  static constexpr int kWidth = kPanels * kHalfPanelColumns, kPasses = (kWidth + 255) / 256;
  static constexpr int kOwn = (kN + kWarps - 1) / kWarps;  // rows of a warp
  const LinearRowsJob& p;
  int k, warp, lane;
  uint4 scale[kPasses];  // loaded before the previous kernel has ended

  __device__ TakeRows(const LinearRowsJob& job, int from)
      : p(job), k(from), warp(static_cast<int>(threadIdx.x) / 32), lane(static_cast<int>(threadIdx.x) % 32) {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      scale[pass] = {};
      const int c = pass * 256 + lane * 8;
      if (!given(c)) continue;
      if constexpr (kBefore == RowsBefore::kNorm) scale[pass] = static_cast<const uint4*>(p.scale)[(k + c) / 8];
      if constexpr (kBefore == RowsBefore::kHeadNorm)
        scale[pass] = static_cast<const uint4*>(p.scale)[(c & (p.head - 1)) / 8];
    }
  }
  [[nodiscard]] __device__ bool given(int c) const { return c < p.slice && k + c < p.K; }

  // kNorm: send(row, sum of the squares of the slice), by one lane.
  template <class Send>
  __device__ void to(std::byte* panels, const Send& send) const {
    float squares[power_of_two_from(kOwn)] = {};
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int c = pass * 256 + lane * 8;
      if constexpr (kBefore == RowsBefore::kPlain) copy(panels, c);
      if constexpr (kBefore == RowsBefore::kNorm) widened(panels, c, scale[pass], squares);
      if constexpr (kBefore == RowsBefore::kHeadNorm) heads(panels, c, scale[pass]);
    }
    if constexpr (kBefore == RowsBefore::kNorm) {
      constexpr int kLanes = 32 / power_of_two_from(kOwn);  // that have the same sum
      const float sum = warp_sums(squares, lane);
      const int i = lane / kLanes, row = warp + i * kWarps;
      if (lane % kLanes == 0 && i < kOwn && row < p.R) send(row, sum);
    }
  }

 private:
  __device__ void copy(std::byte* panels, int c) const {
    const bool there = given(c);
    const bf16* const x = static_cast<const bf16*>(p.x) + (there ? k + c : 0);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int row = warp + i * kWarps;
      if (row < p.R && c < kWidth)
        copy16(shared_address(panels + place_of(kN, row, c)), there ? x + row * p.x_stride : x, there);
    }
  }

  __device__ void widened(std::byte* panels, int c, const uint4& packed,
                          float (&squares)[power_of_two_from(kOwn)]) const {
    const float* const x = static_cast<const float*>(p.x) + k + c;
    float4 value[kOwn][2];
    const bool there = given(c);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int row = warp + i * kWarps;
      const float4* const from = reinterpret_cast<const float4*>(x + row * p.x_stride);
      value[i][0] = value[i][1] = float4{};
      if (there && row < p.R) value[i][0] = from[0], value[i][1] = from[1];
    }
    float w[8];
    unpack_eight(packed, w);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int row = warp + i * kWarps;
      const float4 &a = value[i][0], &b = value[i][1];
      float v[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
      for (int e = 0; e < 8; ++e) squares[i] = fmaf(v[e], v[e], squares[i]), v[e] *= w[e];
      if (c < kWidth && row < kN) *reinterpret_cast<uint4*>(panels + place_of(kN, row, c)) = pack_eight(v);
    }
  }

  __device__ void heads(std::byte* panels, int c, const uint4& packed) const {
    const bool there = given(c);
    const bf16 *const x = static_cast<const bf16*>(p.x) + k + c, *const gate = static_cast<const bf16*>(p.gate) + k + c;
    uint4 value[kOwn], factor[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int row = warp + i * kWarps;
      value[i] = factor[i] = uint4{};
      if (there && row < p.R) {
        value[i] = *reinterpret_cast<const uint4*>(x + row * p.x_stride);
        factor[i] = *reinterpret_cast<const uint4*>(gate + row * p.gate_stride);
      }
    }
    float unit[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      float v[8];
      unpack_eight(value[i], v);
      unit[i] = 0;
#pragma unroll
      for (int e = 0; e < 8; ++e) unit[i] = fmaf(v[e], v[e], unit[i]);
    }
    for (int away = p.head / 16; away > 0; away /= 2) {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) unit[i] += __shfl_xor_sync(0xffffffffu, unit[i], away);
    }
    const float share = 1.0f / static_cast<float>(p.head);
    float w[8];
    unpack_eight(packed, w);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int row = warp + i * kWarps;
      float v[8], g[8];
      unpack_eight(value[i], v), unpack_eight(factor[i], g);
      unit[i] = rsqrtf(unit[i] * share + p.eps);
      if constexpr (kSilu) {
#pragma unroll
        for (int e = 0; e < 8; ++e) g[e] = silu(g[e]);
      }
#pragma unroll
      for (int e = 0; e < 8; ++e) v[e] = v[e] * unit[i] * w[e] * g[e];
      if (c < kWidth && row < kN) *reinterpret_cast<uint4*>(panels + place_of(kN, row, c)) = pack_eight(v);
    }
  }
};

}  // namespace mhla::cuda
