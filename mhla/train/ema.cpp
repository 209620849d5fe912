#include "mhla/train/ema.h"

#include <algorithm>

namespace mhla::train {

Ema::Ema(const torch::nn::Module& model, double decay) : decay_(decay) {
  const torch::NoGradGuard no_gradient;
  for (const auto& item : model.named_parameters())
    names_.push_back(item.key()), live_.push_back(item.value().detach());
  params_ = live_.size();
  for (const auto& item : model.named_buffers()) names_.push_back(item.key()), live_.push_back(item.value().detach());
  for (const torch::Tensor& tensor : live_) average_.push_back(tensor.clone());
}

void Ema::update(std::int64_t step) {
  const torch::NoGradGuard no_gradient;
  const auto t = static_cast<double>(step);
  const double d = std::min(decay_, (1.0 + t) / (10.0 + t));
  const at::TensorList live(live_), average(average_);
  if (params_ > 0) {
    at::_foreach_mul_(average.slice(0, params_), d);
    at::_foreach_add_(average.slice(0, params_), live.slice(0, params_), 1.0 - d);
  }
  for (std::size_t i = params_; i < live_.size(); ++i) average_[i].copy_(live_[i]);
}

std::vector<std::pair<std::string, torch::Tensor>> Ema::state() const {
  std::vector<std::pair<std::string, torch::Tensor>> all;
  for (std::size_t i = 0; i < names_.size(); ++i) all.emplace_back(names_[i], average_[i]);
  return all;
}

void Ema::swap() {
  const torch::NoGradGuard no_gradient;
  for (std::size_t i = 0; i < live_.size(); ++i) {
    const torch::Tensor kept = live_[i].clone();
    live_[i].copy_(average_[i]);
    average_[i].copy_(kept);
  }
}

}  // namespace mhla::train
