#include "mhla/core/dtype.h"

#include <cmath>
#include <limits>

#include "mhla/core/error.h"

namespace mhla {
namespace {

// f64 to f32 rounding to odd: a second rounding to 16 bits then equals one rounding from f64.
float to_f32_odd(double x) {
  const float nearest = static_cast<float>(x);
  if (!std::isfinite(nearest) || static_cast<double>(nearest) == x) return nearest;
  const float toward_zero =
      std::abs(static_cast<double>(nearest)) > std::abs(x) ? std::nextafter(nearest, 0.0f) : nearest;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(toward_zero) | 1u);
}

}  // namespace

double load_f64(const void* data, DType dtype, std::int64_t index) {
  switch (dtype) {
    case DType::kF32: return static_cast<const float*>(data)[index];
    case DType::kF64: return static_cast<const double*>(data)[index];
    case DType::kBF16: return to_f64(static_cast<const bf16*>(data)[index]);
    case DType::kF16: return to_f64(static_cast<const f16*>(data)[index]);
    default: fail("load_f64: dtype is ", name_of(dtype), ", expected a float type");
  }
}

void store_f64(void* data, DType dtype, std::int64_t index, double value) {
  switch (dtype) {
    case DType::kF32: static_cast<float*>(data)[index] = static_cast<float>(value); return;
    case DType::kF64: static_cast<double*>(data)[index] = value; return;
    case DType::kBF16: static_cast<bf16*>(data)[index] = to_bf16(to_f32_odd(value)); return;
    case DType::kF16: static_cast<f16*>(data)[index] = to_f16(to_f32_odd(value)); return;
    default: fail("store_f64: dtype is ", name_of(dtype), ", expected a float type");
  }
}

}  // namespace mhla
