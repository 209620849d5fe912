#include "mhla/data/mqar_loader.h"

#include <algorithm>

#include "mhla/core/error.h"

namespace mhla {

MqarLoader::MqarLoader(const MqarLoaderOptions& options) : options_(options), at_(options.start) {
  const MqarLoaderOptions& o = options_;
  check(o.mqar);
  if (o.batch_size < 1) fail("mqar: batch_size is ", o.batch_size, ", expected at least 1");
  if (o.items < o.batch_size)
    fail("mqar: items is ", o.items, ", expected at least the ", o.batch_size, " sequences of a batch");
  if (at_.epoch < 0 || at_.position < 0 || at_.position % o.batch_size != 0)
    fail("mqar: start is epoch ", at_.epoch, ", position ", at_.position, ", expected a multiple of ", o.batch_size);
}

void MqarLoader::next(TokenBatch& batch) {
  const MqarLoaderOptions& o = options_;
  if (at_.position + o.batch_size > o.items) at_ = {at_.epoch + 1, 0};
  batch.rows = o.batch_size, batch.length = o.mqar.length;
  batch.tokens.resize(static_cast<std::size_t>(batch.rows * batch.length));
  batch.targets.assign(batch.tokens.size(), kNoTarget);
  batch.cu_seqlens.clear();
  for (std::int64_t row = 0; row < batch.rows; ++row) {
    const std::int64_t item = at_.position + row;
    const MqarSequence made = o.held_out ? mqar_sequence(o.mqar, item) : mqar_lesson(o.mqar, at_.epoch, item);
    std::copy(made.tokens.begin(), made.tokens.end(), batch.tokens.begin() + row * batch.length);
    for (std::size_t i = 0; i < made.places.size(); ++i)
      batch.targets[static_cast<std::size_t>(row * batch.length + made.places[i])] = made.expected[i];
  }
  batch.epoch = at_.epoch;
  at_.position += o.batch_size;
  if (at_.position + o.batch_size > o.items) at_ = {at_.epoch + 1, 0};
  batch.next = at_;
}

}  // namespace mhla
