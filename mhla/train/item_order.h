// The order in which a training goes through numbered items: shuffled anew every epoch by (seed, epoch), in batches of
// which each process takes its share, with a place that a checkpoint keeps. For data that is read when a batch wants
// it.
#pragma once

#include <vector>

#include "mhla/data/loader.h"
#include "mhla/io/json.h"
#include "mhla/train/options.h"

namespace mhla::train {

class ItemOrder {
 public:
  struct Part {
    std::vector<std::int64_t> items;
    std::int64_t epoch = 0, position = 0;
  };
  // `what`: "latents of FOLDER", for errors: a set without a whole batch is refused.
  ItemOrder(std::int64_t count, std::string what, const TrainOptions& options);
  [[nodiscard]] std::int64_t batches_per_epoch() const { return count_ / batch_; }
  Part next();
  [[nodiscard]] JsonValue cursor() const;
  void seek(const JsonValue& cursor);  // before the first next()

 private:
  std::int64_t count_, batch_;
  std::string what_;
  Share share_;
  std::uint64_t seed_;
  std::vector<std::int64_t> order_;
  std::int64_t order_epoch_ = -1;
  int turn_ = 0;  // which of this process's parts of a batch
  Cursor at_;
};

}  // namespace mhla::train
