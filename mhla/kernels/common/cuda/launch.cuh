// Launches, each checked; and the choice of a type by the dtype of a problem.
#pragma once

#include "mhla/core/cuda_check.h"
#include "mhla/core/dtype.h"

namespace mhla::cuda {

inline constexpr int kThreads = 128;  // of every block, four warps

// Blocks along x (up to 2^31 - 1), heads along y and tiles along z (up to 65535 each).
inline dim3 grid_of(std::int64_t x, std::int64_t y = 1, std::int64_t z = 1) {
  if (x >= std::int64_t{1} << 31 || y > 65535 || z > 65535)
    fail("cuda: a grid of ", x, " x ", y, " x ", z, " blocks, expected less than 2^31 x 2^16 x 2^16");
  return {static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z)};
}

// Does nothing for an empty grid.
template <class Job>
void launch(void (*kernel)(Job), dim3 grid, const Job& job, void* stream, const char* name) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  kernel<<<grid, kThreads, 0, stream_of(stream)>>>(job);
  check_launch(name);
}

// Calls f(T{}) with the element type of `dtype`: f32, bf16 or f16.
template <class F>
void with_type(DType dtype, const F& f) {
  if (dtype == DType::kBF16) return f(bf16{});
  if (dtype == DType::kF16) return f(f16{});
  f(float{});
}

}  // namespace mhla::cuda
