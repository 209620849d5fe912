// Training batches of associative recall (mqar.h), one sequence a row, made when they are asked for: sequence i of an
// epoch is drawn from (seed, epoch, i). The value of a key that comes back is the target at the key; no other token has
// one.
#pragma once

#include "mhla/data/mqar.h"
#include "mhla/data/token_batches.h"

namespace mhla {

struct MqarLoaderOptions {
  MqarOptions mqar;
  std::int64_t batch_size = 8;
  std::int64_t items = 100000;  // sequences of an epoch
  int rank = 0, ranks = 1;  // of each ranks * per_rank batches, this process takes per_rank, from rank * per_rank on
  int per_rank = 1;
  bool held_out = false;  // sequences to judge by, the same ones in every epoch
  Cursor start;           // position: sequences of the epoch
};

class MqarLoader final : public TokenBatches {
 public:
  explicit MqarLoader(const MqarLoaderOptions& options);
  void next(TokenBatch& batch) override;
  [[nodiscard]] std::int64_t batches_per_epoch() const override { return options_.items / step(); }

 private:
  [[nodiscard]] std::int64_t step() const { return options_.batch_size * options_.ranks * options_.per_rank; }
  MqarLoaderOptions options_;
  Cursor at_;
  int turn_ = 0;  // which of this rank's batches at at_
};

}  // namespace mhla
