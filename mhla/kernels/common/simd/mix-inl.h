// Mixing of summaries: dst_i = sum_b m[i,b] src_b over all Z columns of a block, and the gradient of the
// coefficients, dm[i,b] = <d_i, src_b>. A block is one row of `stride` floats: its summary and its normaliser z.
#include "mhla/kernels/common/simd/pack-inl.h"

#if defined(MHLA_KERNELS_COMMON_SIMD_MIX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHLA_KERNELS_COMMON_SIMD_MIX_INL_H_
#undef MHLA_KERNELS_COMMON_SIMD_MIX_INL_H_
#else
#define MHLA_KERNELS_COMMON_SIMD_MIX_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace mhla {
namespace HWY_NAMESPACE {

// Rows of coefficients are packed 8 at a time, [i/8][b][8], so that a tile finds its row weights side by side.
inline constexpr std::int64_t kMixRows = 8;

constexpr std::int64_t packed_mix_size(std::int64_t M) { return round_up(M, kMixRows) * M; }

struct PackedMix {
  const float* data;  // [M/8][M][8]
  std::int64_t M;     // blocks it was packed for; a shorter sequence uses the leading part

  HWY_INLINE const float* row(std::int64_t i) const { return data + i / kMixRows * kMixRows * M + i % kMixRows; }
};

// weight(i, b) is the coefficient of source block b of M in destination block i of `rows`.
template <class Weight>
HWY_INLINE void pack_mix(std::int64_t rows, std::int64_t M, const Weight& weight, float* to) {
  for (std::int64_t i0 = 0; i0 < rows; i0 += kMixRows) {
    for (std::int64_t b = 0; b < M; ++b) {
      for (std::int64_t r = 0; r < kMixRows; ++r) *to++ = i0 + r < rows ? weight(i0 + r, b) : 0.0f;
    }
  }
}

// One strip of V vectors at column x: gathered into `strip` [M][V * kLanes], mixed, written to the `rows` blocks of dst
// (which may be src).
template <int V>
HWY_INLINE void mix_strip(const float* src, float* dst, std::int64_t stride, std::int64_t M, std::int64_t rows,
                          const PackedMix& mix, bool accumulate, std::int64_t x, float* strip) {
  const Full d;
  constexpr std::int64_t kWidth = V * kLanes;
  for (std::int64_t b = 0; b < M; ++b) {
    const float* row = src + b * stride + x;
    hwy::Prefetch(row + kWidth);
    MHLA_UNROLL(2)
    for (int v = 0; v < V; ++v) hn::StoreU(hn::LoadU(d, row + v * kLanes), d, strip + b * kWidth + v * kLanes);
  }
  const auto rows_of = [&](auto count, std::int64_t i0) HWY_ATTR {
    constexpr int R = decltype(count)::value;
    float* to = dst + i0 * stride + x;
    const float* a = mix.row(i0);
    const auto finish = [&](int r, int v, auto value) HWY_ATTR { hn::StoreU(value, d, to + r * stride + v * kLanes); };
    if (accumulate) {
      tile<R, V, kMixRows, 1>(
          d, M, a, strip, kWidth, [&](int r, int v) HWY_ATTR { return hn::LoadU(d, to + r * stride + v * kLanes); },
          finish, NoPrefetch());
    } else {
      tile<R, V, kMixRows, 1>(
          d, M, a, strip, kWidth, [&](int, int) HWY_ATTR { return hn::Zero(d); }, finish, NoPrefetch());
    }
  };
  for_each_row_tile<V>(rows, rows_of);
}

// Floats of the strip buffer of one worker. Strips are two vectors wide while they fit half the first-level cache.
constexpr std::int64_t mix_strip_width(std::int64_t M) { return (M <= 128 ? 2 : 1) * kLanes; }

// Columns [x0, x1) of `rows` blocks of dst from M blocks of src; x0 a multiple of 2 * kLanes. dst may be src.
inline HWY_NOINLINE void mix_columns(const float* src, float* dst, std::int64_t stride, std::int64_t M,
                                     std::int64_t rows, const PackedMix& mix, bool accumulate, std::int64_t x0,
                                     std::int64_t x1, float* strip) {
  const std::int64_t width = mix_strip_width(M);
  std::int64_t x = x0;
  if (width == 2 * kLanes) {
    for (; x + width <= x1; x += width) mix_strip<2>(src, dst, stride, M, rows, mix, accumulate, x, strip);
  }
  for (; x < x1; x += kLanes) mix_strip<1>(src, dst, stride, M, rows, mix, accumulate, x, strip);
}

// dm[i][b] += <d_i, s_b> for i in [i0, i1), b in [b0, b1), over Z columns in spans of kDotSpan: the 2 x 32 rows of
// a span are 256 KiB, so each comes from the second-level cache eight times.
inline constexpr std::int64_t kDotSpan = 1024;
inline constexpr std::int64_t kDotRows = 32;

template <int R, int Q>
HWY_INLINE void dot_tile(const float* d_rows, const float* s_rows, std::int64_t stride, std::int64_t Z, float* dm,
                         std::int64_t dm_stride) {
  const Full d;
  hn::Vec<Full> acc[R][Q];
  MHLA_UNROLL(4)
  for (int r = 0; r < R; ++r) {
    MHLA_UNROLL(4)
    for (int c = 0; c < Q; ++c) acc[r][c] = hn::Zero(d);
  }
  for (std::int64_t x = 0; x < Z; x += kLanes) {
    hn::Vec<Full> right[Q];
    MHLA_UNROLL(4)
    for (int c = 0; c < Q; ++c) right[c] = hn::LoadU(d, s_rows + c * stride + x);
    MHLA_UNROLL(4)
    for (int r = 0; r < R; ++r) {
      const auto left = hn::LoadU(d, d_rows + r * stride + x);
      MHLA_UNROLL(4)
      for (int c = 0; c < Q; ++c) acc[r][c] = hn::MulAdd(left, right[c], acc[r][c]);
    }
  }
  MHLA_UNROLL(4)
  for (int r = 0; r < R; ++r) {
    MHLA_UNROLL(4)
    for (int c = 0; c < Q; ++c) dm[r * dm_stride + c] += hn::GetLane(hn::SumOfLanes(d, acc[r][c]));
  }
}

inline HWY_NOINLINE void mix_gradient(const float* grads, const float* summaries, std::int64_t stride, std::int64_t Z,
                                      std::int64_t i0, std::int64_t i1, std::int64_t b0, std::int64_t b1, float* dm,
                                      std::int64_t dm_stride) {
  for (std::int64_t x = 0; x < Z; x += kDotSpan) {
    const std::int64_t span = HWY_MIN(kDotSpan, Z - x);
    for (std::int64_t i = i0; i < i1;) {
      const bool four_i = i + 4 <= i1;
      for (std::int64_t b = b0; b < b1;) {
        const bool four_b = b + 4 <= b1;
        const float* g = grads + i * stride + x;
        const float* s = summaries + b * stride + x;
        float* to = dm + i * dm_stride + b;
        if (four_i && four_b)
          dot_tile<4, 4>(g, s, stride, span, to, dm_stride);
        else if (four_i)
          dot_tile<4, 1>(g, s, stride, span, to, dm_stride);
        else if (four_b)
          dot_tile<1, 4>(g, s, stride, span, to, dm_stride);
        else
          dot_tile<1, 1>(g, s, stride, span, to, dm_stride);
        b += four_b ? 4 : 1;
      }
      i += four_i ? 4 : 1;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace mhla
HWY_AFTER_NAMESPACE();

#endif
