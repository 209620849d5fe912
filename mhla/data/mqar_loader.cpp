#include "mhla/data/mqar_loader.h"

#include <algorithm>

#include "mhla/core/error.h"

namespace mhla {

MqarLoader::MqarLoader(const MqarLoaderOptions& options) : options_(options), at_(options.start) {
  const MqarLoaderOptions& o = options_;
  check(o.mqar);
  if (o.batch_size < 1) fail("mqar: batch_size is ", o.batch_size, ", expected at least 1");
  if (o.ranks < 1 || o.rank < 0 || o.rank >= o.ranks || o.per_rank < 1)
    fail("mqar: rank ", o.rank, " of ", o.ranks, " ranks with ", o.per_rank, " batches each, expected 0 to ranks - 1");
  if (o.items < step()) fail("mqar: items is ", o.items, ", expected at least the ", step(), " sequences of a batch");
  if (at_.epoch < 0 || at_.position < 0 || at_.position % step() != 0)
    fail("mqar: start is epoch ", at_.epoch, ", position ", at_.position, ", expected a multiple of ", step());
}

void MqarLoader::next(TokenBatch& batch) {
  const MqarLoaderOptions& o = options_;
  if (turn_ == 0 && at_.position + step() > o.items) at_ = {at_.epoch + 1, 0};
  const std::int64_t first = at_.position + (o.rank * o.per_rank + turn_) * o.batch_size;
  batch.rows = o.batch_size, batch.length = o.mqar.length;
  batch.tokens.resize(static_cast<std::size_t>(batch.rows * batch.length));
  batch.targets.assign(batch.tokens.size(), kNoTarget);
  batch.cu_seqlens.clear();
  for (std::int64_t row = 0; row < batch.rows; ++row) {
    const std::int64_t item = first + row;
    const MqarSequence made = o.held_out ? mqar_sequence(o.mqar, item) : mqar_lesson(o.mqar, at_.epoch, item);
    std::copy(made.tokens.begin(), made.tokens.end(), batch.tokens.begin() + row * batch.length);
    for (std::size_t i = 0; i < made.places.size(); ++i)
      batch.targets[static_cast<std::size_t>(row * batch.length + made.places[i])] = made.expected[i];
  }
  batch.epoch = at_.epoch;
  turn_ = (turn_ + 1) % o.per_rank;
  if (turn_ == 0) {
    at_.position += step();
    if (at_.position + step() > o.items) at_ = {at_.epoch + 1, 0};
  }
  batch.next = at_;
}

}  // namespace mhla
