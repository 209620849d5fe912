// For code that calls the CUDA runtime: every call and every launch is checked, and a failure becomes mhla::Error
// with the call and the driver's words.
#pragma once

#include <cuda_runtime.h>

#include "mhla/core/cuda.h"

namespace mhla {

// In cuda.cu: the streams of fail() cost a kernel's file 0.3 s.
[[noreturn]] void cuda_failed(cudaError_t status, const char* what);
inline void cuda_check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) cuda_failed(status, what);
}

// After <<<...>>>: whether the launch was accepted. What goes wrong while it runs shows at the next synchronisation.
inline void check_launch(const char* kernel) { cuda_check(cudaGetLastError(), kernel); }

inline cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }

}  // namespace mhla
