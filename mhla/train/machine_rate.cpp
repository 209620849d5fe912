#include "mhla/train/machine_rate.h"

#include <algorithm>
#include <chrono>

namespace mhla::train {
namespace {

// Seconds of the fastest of a few runs, behind one that is not counted.
template <class Work>
double fastest(const torch::Device& device, const Work& work) {
  double best = 0;
  for (int run = 0; run < 6; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    if (device.is_cuda()) torch::cuda::synchronize(device.index());
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (run == 1 || (run > 1 && seconds < best)) best = seconds;
  }
  return std::max(best, 1e-9);
}

}  // namespace

double gemm_rate(const torch::Device& device, bool bf16) {
  const torch::NoGradGuard no_gradient;
  const std::int64_t size = device.is_cuda() ? 8192 : 1024;
  const auto options = torch::TensorOptions(bf16 ? torch::kBFloat16 : torch::kFloat).device(device);
  // Small whole numbers: no random ones are drawn, and no products of zeros flatter a card's clock.
  const torch::Tensor x = (torch::arange(size * size, torch::TensorOptions(torch::kLong).device(device)) % 7 - 3)
                              .view({size, size})
                              .to(options);
  const auto work = static_cast<double>(2 * size * size * size);
  return work / fastest(device, [&] { (void)torch::mm(x, x); });
}

double copy_rate(const torch::Device& device) {
  const torch::NoGradGuard no_gradient;
  const std::int64_t count = std::int64_t{1} << (device.is_cuda() ? 28 : 25);
  const torch::Tensor from = torch::ones({count}, torch::TensorOptions(torch::kFloat).device(device));
  torch::Tensor to = torch::empty_like(from);
  return static_cast<double>(2 * from.nbytes()) / fastest(device, [&] { to.copy_(from); });
}

}  // namespace mhla::train
