#include "mhla/train/item_order.h"

#include "mhla/core/error.h"

namespace mhla::train {

ItemOrder::ItemOrder(std::int64_t count, std::string what, const TrainOptions& o)
    : count_(count),
      batch_(o.batch),
      what_(std::move(what)),
      share_(share_of(o)),
      seed_(static_cast<std::uint64_t>(o.seed)) {
  if (batches_per_epoch() < 1) fail("train: batch is ", batch_, ", expected at most the ", count_, " ", what_);
}

ItemOrder::Part ItemOrder::next() {
  if (turn_ == 0 && at_.position + batch_ > count_) at_ = {at_.epoch + 1, 0};
  if (order_epoch_ != at_.epoch) {
    order_ = epoch_order(count_, seed_, at_.epoch, /*shuffle=*/true, /*repeats=*/1);
    order_epoch_ = at_.epoch;
  }
  Part part;
  part.epoch = at_.epoch, part.position = at_.position + (share_.first + turn_) * share_.each;
  const auto begin = order_.begin() + part.position;
  part.items.assign(begin, begin + share_.each);
  turn_ = (turn_ + 1) % share_.count;
  if (turn_ == 0) at_.position += batch_;
  return part;
}

JsonValue ItemOrder::cursor() const { return JsonValue().set("epoch", at_.epoch).set("position", at_.position); }

void ItemOrder::seek(const JsonValue& cursor) {
  const Cursor start{.epoch = cursor.at("epoch").as_int(), .position = cursor.at("position").as_int()};
  if (start.epoch < 0 || start.position < 0 || start.position > count_)
    fail("train: the cursor is at epoch ", start.epoch, ", position ", start.position,
         ", expected a position up to the ", count_, " ", what_);
  at_ = start;
}

}  // namespace mhla::train
