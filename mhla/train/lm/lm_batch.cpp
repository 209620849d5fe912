#include "mhla/train/lm/lm_batch.h"

#include <algorithm>

namespace mhla::train {
namespace {

torch::Tensor copy_to(const torch::Device& device, const std::vector<std::int64_t>& list, torch::IntArrayRef shape) {
  // LibTorch takes no pointer to const; nothing writes there.
  const torch::Tensor host = torch::from_blob(const_cast<std::int64_t*>(list.data()), shape, torch::kLong);
  return device.is_cuda() ? host.to(device) : host.clone();
}

}  // namespace

void cut_columns(TokenBatch& batch, std::int64_t first, std::int64_t count) {
  for (std::vector<std::int64_t>* list : {&batch.tokens, &batch.targets}) {
    for (std::int64_t row = 0; row < batch.rows; ++row)  // forwards: what is read lies at or after what is written
      std::copy_n(list->begin() + row * batch.length + first, count, list->begin() + row * count);
    list->resize(static_cast<std::size_t>(batch.rows * count));
  }
  batch.length = count;
}

LmBatch batch_on(const torch::Device& device, const TokenBatch& batch) {
  LmBatch to;
  to.tokens = copy_to(device, batch.tokens, {batch.rows, batch.length});
  if (!batch.cu_seqlens.empty()) to.maybe_cu_seqlens = torch::tensor(batch.cu_seqlens, torch::kLong);
  const auto all = static_cast<std::int64_t>(batch.targets.size());
  to.known = all - std::count(batch.targets.begin(), batch.targets.end(), kNoTarget);
  if (2 * to.known >= all) {
    to.targets = copy_to(device, batch.targets, {batch.rows, batch.length});
    return to;
  }
  std::vector<std::int64_t> places, targets;
  for (std::int64_t i = 0; i < all; ++i) {
    const std::int64_t target = batch.targets[static_cast<std::size_t>(i)];
    if (target != kNoTarget) places.push_back(i), targets.push_back(target);
  }
  to.maybe_places = copy_to(device, places, {to.known});
  to.targets = copy_to(device, targets, {to.known});
  return to;
}

}  // namespace mhla::train
