// Vector helpers: 16-bit floats to f32 lanes and back (round to nearest even, as core/dtype.h), rows with
// a ragged end, feature maps and their derivatives with NaN kept.
#include "hwy/cache_control.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

#if defined(MHLA_KERNELS_COMMON_SIMD_VEC_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHLA_KERNELS_COMMON_SIMD_VEC_INL_H_
#undef MHLA_KERNELS_COMMON_SIMD_VEC_INL_H_
#else
#define MHLA_KERNELS_COMMON_SIMD_VEC_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "mhla/core/dtype.h"
#include "mhla/kernels/common/options.h"

#ifndef MHLA_UNROLL  // complete unrolling of the small loops over registers
#define MHLA_PRAGMA(x) _Pragma(#x)
#if defined(__clang__)
#define MHLA_UNROLL(n) MHLA_PRAGMA(clang loop unroll_count(n))
#else
#define MHLA_UNROLL(n) MHLA_PRAGMA(GCC unroll n)
#endif
#endif

HWY_BEFORE_NAMESPACE();
namespace mhla {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes: one AVX-512 vector, one cache line.
using Full = hn::CappedTag<float, 16>;
inline constexpr std::int64_t kLanes = static_cast<std::int64_t>(hn::MaxLanes(Full()));
inline constexpr std::int64_t kHalf = kLanes > 1 ? kLanes / 2 : 1;
using Half = hn::CappedTag<float, kHalf>;

constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

template <class DF>
HWY_INLINE hn::Vec<DF> load(DF d, const float* from) {
  return hn::LoadU(d, from);
}

template <class DF>
HWY_INLINE hn::Vec<DF> load(DF d, const bf16* from) {
  const hn::Rebind<std::uint16_t, DF> d16;
  const hn::RebindToUnsigned<DF> d32;
  const auto bits = hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(from));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
}

template <class DF>
HWY_INLINE hn::Vec<DF> load(DF d, const f16* from) {
  const hn::Rebind<std::uint16_t, DF> d16;
  const hn::RebindToUnsigned<DF> d32;
  const auto bits = hn::PromoteTo(d32, hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(from)));
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(d32, 0x8000u)));
  const auto magnitude = hn::And(bits, hn::Set(d32, 0x7fffu));
  // Exponents differ by 112; multiplying by 2^112 also normalises subnormals. Infinity and NaN by hand.
  const auto finite = hn::Mul(hn::BitCast(d, hn::ShiftLeft<13>(magnitude)), hn::Set(d, 0x1p112f));
  const auto special = hn::BitCast(d, hn::Or(hn::ShiftLeft<13>(magnitude), hn::Set(d32, 0x7f800000u)));
  const auto is_special = hn::RebindMask(d, hn::Gt(magnitude, hn::Set(d32, 0x7bffu)));
  return hn::Or(hn::IfThenElse(is_special, special, finite), hn::BitCast(d, sign));
}

template <class DF>
HWY_INLINE void store(hn::Vec<DF> value, DF d, float* to) {
  hn::StoreU(value, d, to);
}

template <class DF>
HWY_INLINE void store(hn::Vec<DF> value, DF, bf16* to) {
  const hn::Rebind<std::uint16_t, DF> d16;
  const hn::RebindToUnsigned<DF> d32;
  const auto bits = hn::BitCast(d32, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1u));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7fffu)));
  const auto is_nan = hn::Gt(hn::And(bits, hn::Set(d32, 0x7fffffffu)), hn::Set(d32, 0x7f800000u));
  const auto quiet = hn::Or(bits, hn::Set(d32, 0x400000u));
  const auto high = hn::ShiftRight<16>(hn::IfThenElse(is_nan, quiet, rounded));
  hn::StoreU(hn::TruncateTo(d16, high), d16, reinterpret_cast<std::uint16_t*>(to));
}

template <class DF>
HWY_INLINE void store(hn::Vec<DF> value, DF d, f16* to) {
  const hn::Rebind<std::uint16_t, DF> d16;
  const hn::RebindToUnsigned<DF> d32;
  const auto bits = hn::BitCast(d32, value);
  const auto magnitude = hn::And(bits, hn::Set(d32, 0x7fffffffu));
  const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 0x8000u));
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(d32, 1u));
  const auto normal =
      hn::ShiftRight<13>(hn::Add(hn::Sub(magnitude, hn::Set(d32, 0x38000000u)), hn::Add(odd, hn::Set(d32, 0xfffu))));
  const auto shifted = hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5f));  // the addition rounds
  const auto small = hn::Sub(hn::BitCast(d32, shifted), hn::Set(d32, 0x3f000000u));
  const auto nan = hn::Or(hn::And(hn::ShiftRight<13>(magnitude), hn::Set(d32, 0x3ffu)), hn::Set(d32, 0x7e00u));
  auto half = hn::IfThenElse(hn::Lt(magnitude, hn::Set(d32, 0x38800000u)), small, normal);
  half = hn::IfThenElse(hn::Gt(magnitude, hn::Set(d32, 0x477fefffu)), hn::Set(d32, 0x7c00u), half);
  half = hn::IfThenElse(hn::Gt(magnitude, hn::Set(d32, 0x7f800000u)), nan, half);
  hn::StoreU(hn::TruncateTo(d16, hn::Or(half, sign)), d16, reinterpret_cast<std::uint16_t*>(to));
}

// The first `count` < Lanes(d) elements; the other lanes are 0. Never reads past the row.
template <class DF, class T>
HWY_INLINE hn::Vec<DF> load_some(DF d, const T* from, std::int64_t count) {
  T row[16] = {};
  std::memcpy(row, from, static_cast<std::size_t>(count) * sizeof(T));
  return load(d, row);
}

template <class DF, class T>
HWY_INLINE void store_some(hn::Vec<DF> value, DF d, T* to, std::int64_t count) {
  T row[16];
  store(value, d, row);
  std::memcpy(to, row, static_cast<std::size_t>(count) * sizeof(T));
}

// As many of the lanes as there is room for.
template <class DF, class T>
HWY_INLINE void store_up_to(hn::Vec<DF> value, DF d, T* to, std::int64_t room) {
  if (room >= static_cast<std::int64_t>(hn::MaxLanes(DF()))) {
    store(value, d, to);
  } else {
    store_some(value, d, to, room);
  }
}

// The same past the caches. Whole vectors of f32 must be aligned; FlushStream() before another thread reads them.
template <class DF, class T>
HWY_INLINE void stream_up_to(hn::Vec<DF> value, DF d, T* to, std::int64_t room) {
  if constexpr (std::is_same_v<T, float>) {
    if (room >= static_cast<std::int64_t>(hn::MaxLanes(DF()))) {
      hn::Stream(value, d, to);
      return;
    }
  }
  store_up_to(value, d, to, room);
}

template <FeatureMap kMap, class DF>
HWY_INLINE hn::Vec<DF> feature(DF d, hn::Vec<DF> x) {
  if constexpr (kMap == FeatureMap::kIdentity) return x;
  if constexpr (kMap == FeatureMap::kRelu || kMap == FeatureMap::kReluEps) {
    const auto relu = hn::IfThenZeroElse(hn::Lt(x, hn::Zero(d)), x);  // a comparison keeps NaN, Max would not
    return kMap == FeatureMap::kRelu ? relu : hn::Add(relu, hn::Set(d, static_cast<float>(kReluEpsilon)));
  }
  if constexpr (kMap == FeatureMap::kElu1) {
    const auto above = hn::Add(x, hn::Set(d, 1.0f));  // NaN stays NaN here
    return hn::IfThenElse(hn::Le(x, hn::Zero(d)), hn::Exp(d, x), above);
  }
}

// grad * phi'(x), with the derivative 0 at 0 for the relus.
template <FeatureMap kMap, class DF>
HWY_INLINE hn::Vec<DF> feature_gradient(DF d, hn::Vec<DF> x, hn::Vec<DF> grad) {
  if constexpr (kMap == FeatureMap::kIdentity) return grad;
  const auto below = hn::Le(x, hn::Zero(d));
  if constexpr (kMap == FeatureMap::kElu1) {
    return hn::IfThenElse(below, hn::Mul(grad, hn::Exp(d, x)), grad);
  } else {
    return hn::IfThenZeroElse(below, grad);
  }
}

// Calls f(std::integral_constant<FeatureMap, ...>) for the run-time value.
template <class F>
HWY_INLINE void with_feature_map(FeatureMap map, F&& f) {
  switch (map) {
    case FeatureMap::kReluEps: f(std::integral_constant<FeatureMap, FeatureMap::kReluEps>()); return;
    case FeatureMap::kRelu: f(std::integral_constant<FeatureMap, FeatureMap::kRelu>()); return;
    case FeatureMap::kElu1: f(std::integral_constant<FeatureMap, FeatureMap::kElu1>()); return;
    case FeatureMap::kIdentity: f(std::integral_constant<FeatureMap, FeatureMap::kIdentity>()); return;
  }
}

// sum_i a[i] b[i] over `count` floats, a multiple of kLanes (padding is zero). One accumulator per lane, in order.
HWY_INLINE float dot(const float* a, const float* b, std::int64_t count) {
  const Full d;
  auto sum = hn::Zero(d);
  for (std::int64_t i = 0; i < count; i += kLanes) sum = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum);
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

}  // namespace HWY_NAMESPACE
}  // namespace mhla
HWY_AFTER_NAMESPACE();

#endif
