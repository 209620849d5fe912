// Stands in for the real file when kernels run in the emulator.
#pragma once

#include <cstddef>
#include <cstring>

#include "mhla/core/dtype.h"
#include "mhla/core/error.h"
#include "tests/gpu/emulator/emulator.h"

namespace mhla::cuda {

inline constexpr int kThreads = 128;

inline dim3 grid_of(std::int64_t x, std::int64_t y = 1, std::int64_t z = 1) {
  return {static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z)};
}

struct LaunchOptions {
  std::size_t shared_bytes = 0;
  bool early = false;
};

inline std::byte* dynamic_shared() {  // one block at a time
  constexpr std::size_t kMost = 227 << 10;
  alignas(128) static std::byte memory[kMost];
  return memory;
}

template <class Job>
struct Launch {
  void (*kernel)(Job);
  const Job& job;
};

template <class Job>
void launch(void (*kernel)(Job), dim3 grid, const Job& job, void* /*stream*/, const char* /*name*/,
            const LaunchOptions& options = {}) {
  std::memset(dynamic_shared(), 0xff, options.shared_bytes);  // as it may come: NaN
  const Launch<Job> call{kernel, job};
  emulator::run(
      grid, kThreads,
      [](const void* data) {
        const auto& own = *static_cast<const Launch<Job>*>(data);
        own.kernel(own.job);
      },
      &call);
}

template <class F>
void with_type(DType dtype, const F& f) {
  if (dtype == DType::kBF16) return f(bf16{});
  if (dtype == DType::kF16) return f(f16{});
  f(float{});
}

}  // namespace mhla::cuda
