// Element types, and exact conversions between the 16-bit floats and f32.
// Narrowing rounds to nearest, ties to even; NaN stays NaN, overflow becomes infinity. The vector
// code in kernels/common/simd must agree with these bit for bit (dtype_test walks all patterns).
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

namespace mhla {

enum class DType : std::uint8_t { kF32, kBF16, kF16, kF64, kI8, kU8, kI16, kU16, kI32, kU32, kI64, kU64, kBool };

struct bf16 {
  std::uint16_t bits;
};
struct f16 {
  std::uint16_t bits;
};

constexpr float to_f32(bf16 x) { return std::bit_cast<float>(std::uint32_t{x.bits} << 16); }

constexpr bf16 to_bf16(float x) {
  const auto u = std::bit_cast<std::uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>((u >> 16) | 0x40u)};  // quiet NaN
  return {static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

constexpr float to_f32(f16 x) {
  const std::uint32_t sign = (x.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = x.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) {  // infinity or NaN
    const std::uint32_t quiet = magnitude > 0x7c00u ? 0x400000u : 0u;
    return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13) | quiet);
  }
  if (magnitude < 0x400u) {  // zero or subnormal: magnitude * 2^-24 is exact
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return sign ? -value : value;
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
}

constexpr f16 to_f16(float x) {
  const auto u = std::bit_cast<std::uint32_t>(x);
  const auto sign = static_cast<std::uint16_t>((u >> 16) & 0x8000u);
  const std::uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<std::uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu))};
  if (magnitude >= 0x477ff000u) return {static_cast<std::uint16_t>(sign | 0x7c00u)};  // 65520 and up
  if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 leaves the result in the low mantissa bits, rounded
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return {static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u))};
  }
  const std::uint32_t rounded = magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u);
  return {static_cast<std::uint16_t>(sign | (rounded >> 13))};
}

constexpr std::int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
    case DType::kU64: return 8;
    case DType::kF32:
    case DType::kI32:
    case DType::kU32: return 4;
    case DType::kBF16:
    case DType::kF16:
    case DType::kI16:
    case DType::kU16: return 2;
    case DType::kI8:
    case DType::kU8:
    case DType::kBool: return 1;
  }
  return 0;
}

constexpr std::string_view name_of(DType dtype) {
  constexpr std::string_view kNames[] = {"f32", "bf16", "f16", "f64", "i8",  "u8",  "i16",
                                         "u16", "i32",  "u32", "i64", "u64", "bool"};
  return kNames[static_cast<int>(dtype)];
}

constexpr bool is_float(DType dtype) { return dtype <= DType::kF64; }
constexpr bool is_kernel_dtype(DType dtype) { return dtype <= DType::kF16; }  // f32, bf16 or f16

template <class T>
inline constexpr DType kDTypeOf = DType::kF32;
template <>
inline constexpr DType kDTypeOf<double> = DType::kF64;
template <>
inline constexpr DType kDTypeOf<bf16> = DType::kBF16;
template <>
inline constexpr DType kDTypeOf<f16> = DType::kF16;
template <>
inline constexpr DType kDTypeOf<std::int32_t> = DType::kI32;
template <>
inline constexpr DType kDTypeOf<std::int64_t> = DType::kI64;

// One element of any float type as double, and back (for references and tests; kernels are typed).
constexpr double to_f64(double x) { return x; }
constexpr double to_f64(float x) { return x; }
constexpr double to_f64(bf16 x) { return to_f32(x); }
constexpr double to_f64(f16 x) { return to_f32(x); }

double load_f64(const void* data, DType dtype, std::int64_t index);
void store_f64(void* data, DType dtype, std::int64_t index, double value);  // rounds to nearest even, once

}  // namespace mhla
