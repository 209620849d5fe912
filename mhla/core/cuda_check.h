// For code that calls the CUDA runtime: every call and every launch is checked, and a failure becomes mhla::Error
// with the call and the driver's words.
#pragma once

#include <cuda_runtime.h>

#include "mhla/core/cuda.h"
#include "mhla/core/error.h"

namespace mhla {

inline void cuda_check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();  // an error that is reported here is not reported again by the next call
  fail(what, ": ", cudaGetErrorString(status), " (", cudaGetErrorName(status), ")");
}

// After <<<...>>>: whether the launch was accepted. What goes wrong while it runs shows at the next synchronisation.
inline void check_launch(const char* kernel) { cuda_check(cudaGetLastError(), kernel); }

inline cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }

}  // namespace mhla
