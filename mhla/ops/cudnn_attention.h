// cuDNN's softmax attention, which PyTorch 2 prefers on Hopper, makes a plan for every length it meets: worth it in
// training, not in a stream, where every step has a length of its own (docs/benchmarks.md has what that cost).
#pragma once

#include "mhla/ops/torch.h"

namespace mhla::ops {

// PyTorch chooses among its other kernels while this lives.
class WithoutCudnnAttention {
 public:
  WithoutCudnnAttention() {
#if TORCH_VERSION_MAJOR >= 2
    was_on_ = at::globalContext().userEnabledCuDNNSDP();
    at::globalContext().setSDPUseCuDNN(false);
#endif
  }
  ~WithoutCudnnAttention() {
#if TORCH_VERSION_MAJOR >= 2
    at::globalContext().setSDPUseCuDNN(was_on_);
#endif
  }
  WithoutCudnnAttention(const WithoutCudnnAttention&) = delete;
  WithoutCudnnAttention& operator=(const WithoutCudnnAttention&) = delete;

 private:
  [[maybe_unused]] bool was_on_ = false;
};

}  // namespace mhla::ops
