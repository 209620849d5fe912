#include "mhla/train/ema.h"

#include <algorithm>

namespace mhla::train {

Ema::Ema(const torch::nn::Module& model, double decay, const Place& shared_by) : decay_(decay), place_(shared_by) {
  const auto keep = [&](const torch::Tensor& weight) {
    live_.push_back(weight), average_.push_back(torch::empty_like(weight));
  };
  for (const auto& item : model.named_parameters()) weights_.emplace_back(item.key(), item.value().detach());
  if (place_.ranks > 1 && !weights_.empty()) {
    row_.emplace(weights_, place_);
    live_ = row_->parts_of_weights(), average_ = row_->parts();
  } else {
    for (const auto& [name, weight] : weights_) keep(weight);
  }
  params_ = live_.size();
  for (const auto& item : model.named_buffers()) {
    weights_.emplace_back(item.key(), item.value().detach());
    keep(weights_.back().second);
  }
  restart();
}

void Ema::restart() {
  const torch::NoGradGuard no_gradient;
  for (std::size_t i = 0; i < live_.size(); ++i) average_[i].copy_(live_[i]);
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

NamedTensors Ema::state() const {
  NamedTensors all;
  const std::size_t kept_apart = row_ ? row_->names.size() : 0;
  for (std::size_t i = kept_apart; i < weights_.size(); ++i)
    all.emplace_back(weights_[i].first, average_[row_ ? params_ + i - kept_apart : i]);
  return all;
}

PrefixedRows Ema::rows() const {
  if (!row_) return {};
  return {{"", &*row_}};
}

NamedTensors Ema::shapes() const { return weights_; }

void Ema::swap() {
  const torch::NoGradGuard no_gradient;
  for (std::size_t i = 0; i < live_.size(); ++i) {
    const torch::Tensor kept = live_[i].clone();
    live_[i].copy_(average_[i]);
    average_[i].copy_(kept);
  }
  if (row_) distributed::complete(*place_.maybe_team, row_->cut, row_->weights, "the average of the weights");
}

}  // namespace mhla::train
