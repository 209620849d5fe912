// Launches, each checked; and the choice of a type by the dtype of a problem.
#pragma once

#include "mhla/core/cuda_check.h"
#include "mhla/core/dtype.h"
#include "mhla/kernels/common/cuda/launch.h"

namespace mhla::cuda {

inline constexpr int kThreads = 128;  // of every block, four warps

// Blocks along x (up to 2^31 - 1), heads along y and tiles along z (up to 65535 each).
inline dim3 grid_of(std::int64_t x, std::int64_t y = 1, std::int64_t z = 1) {
  if (x >= std::int64_t{1} << 31 || y > 65535 || z > 65535) refuse_grid(x, y, z);
  return {static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z)};
}

struct LaunchOptions {
  std::size_t shared_bytes = 0;  // dynamic_shared(), beside what the kernel declares
  bool early = false;            // may start before the previous kernel has ended: up to wait_for_previous()
};

// Memory of a block that its launch sized, aligned to 128 bytes.
__device__ inline std::byte* dynamic_shared() {
  extern __shared__ __align__(128) std::byte memory[];
  return memory;
}

// More shared memory than a kernel has unasked.
template <class Job>
void allow_shared(void (*kernel)(Job), std::size_t bytes, const char* name) {
  constexpr std::size_t kUnasked = 48 << 10;
  if (bytes <= kUnasked) return;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)), name);
}

inline cudaLaunchAttribute early_attribute() {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  return attribute;
}

// Does nothing for an empty grid. Devices before sm_90 know no early start.
template <class Job>
void launch(void (*kernel)(Job), dim3 grid, const Job& job, void* stream, const char* name,
            const LaunchOptions& options = {}) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  allow_shared(kernel, options.shared_bytes, name);
  int device = 0;
  if (options.early) cuda_check(cudaGetDevice(&device), name);
  cudaLaunchAttribute early = early_attribute();
  cudaLaunchConfig_t config{};
  config.gridDim = grid, config.blockDim = dim3(kThreads), config.dynamicSmemBytes = options.shared_bytes;
  config.stream = stream_of(stream), config.attrs = &early;
  config.numAttrs = options.early && device_facts(device).major >= 9 ? 1 : 0;
  cuda_check(cudaLaunchKernelEx(&config, kernel, job), name);
}

// sm_90: blocks along y are one cluster, and the kernel may start early.
template <class Job>
void launch_cluster(void (*kernel)(Job), dim3 grid, int threads, const Job& job, std::size_t shared_bytes, void* stream,
                    const char* name) {
  allow_shared(kernel, shared_bytes, name);
  cudaLaunchAttribute attributes[2] = {early_attribute(), {}};
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = 1, attributes[1].val.clusterDim.y = grid.y, attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid, config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes, config.stream = stream_of(stream);
  config.attrs = attributes, config.numAttrs = 2;
  cuda_check(cudaLaunchKernelEx(&config, kernel, job), name);
}

// Calls f(T{}) with the element type of `dtype`: f32, bf16 or f16.
template <class F>
void with_type(DType dtype, const F& f) {
  if (dtype == DType::kBF16) return f(bf16{});
  if (dtype == DType::kF16) return f(f16{});
  f(float{});
}

}  // namespace mhla::cuda
