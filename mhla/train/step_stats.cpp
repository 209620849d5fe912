#include "mhla/train/step_stats.h"

#ifdef MHLA_TORCH_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#endif

namespace mhla::train {

struct StepStats::Ready {
#ifdef MHLA_TORCH_CUDA
  at::cuda::CUDAEvent event;
#endif
};

StepStats::StepStats(const torch::Tensor& values) {
#ifdef MHLA_TORCH_CUDA
  if (values.is_cuda()) {
    host_ = torch::empty(values.sizes(), torch::TensorOptions(values.scalar_type()).pinned_memory(true));
    host_.copy_(values, /*non_blocking=*/true);
    ready_ = std::make_unique<Ready>();
    ready_->event.record(at::cuda::getCurrentCUDAStream(values.get_device()));
    return;
  }
#endif
  host_ = values.cpu();
}

StepStats::~StepStats() = default;
StepStats::StepStats(StepStats&&) noexcept = default;
StepStats& StepStats::operator=(StepStats&&) noexcept = default;

std::vector<double> StepStats::wait() {
#ifdef MHLA_TORCH_CUDA
  if (ready_) ready_->event.synchronize();
#endif
  const torch::Tensor wide = host_.to(torch::kDouble);
  return {wide.data_ptr<double>(), wide.data_ptr<double>() + wide.numel()};
}

}  // namespace mhla::train
