#include "mhla/train/options.h"

#include <algorithm>
#include <limits>

#include "mhla/core/error.h"
#include "mhla/core/limits.h"

namespace mhla::train {
namespace {

template <class T>
void expect(bool good, const char* field, const T& value, const char* expected) {
  if (!good) fail("train: ", field, " is ", value, ", expected ", expected);
}

// A batch that cannot be shared, before anything else is done.
void check_share(const TrainOptions& o) {
  const bool power = o.reduce_leaves > 0 && (o.reduce_leaves & (o.reduce_leaves - 1)) == 0;
  expect(power && o.reduce_leaves <= 4096, "reduce_leaves", o.reduce_leaves, "a power of two up to 4096");
  const Place& place = o.place;
  const auto groups = [&] {  // of processes, each with its part of the batch
    return place.context == 1 ? str(place.ranks, " processes")
                              : str(place.data_ranks(), " groups of ", place.context, " processes");
  };
  if (o.deterministic_reduce && o.reduce_leaves % place.data_ranks() != 0)
    fail("train: ", groups(), ", expected a number that divides reduce_leaves = ", o.reduce_leaves);
  if (o.deterministic_reduce && (place.context & (place.context - 1)) != 0)
    fail("train: context_parallel is ", place.context, " with deterministic_reduce, expected a power of two");
  if (o.deterministic_reduce && o.batch % o.reduce_leaves != 0)
    fail("train: batch is ", o.batch, ", expected a multiple of reduce_leaves = ", o.reduce_leaves);
  if (o.batch % place.data_ranks() != 0) fail("train: batch is ", o.batch, ", expected a multiple of the ", groups());
  if (o.cuda_graph && (o.deterministic_reduce || place.ranks > 1))
    fail("train: cuda_graph is on, expected one process without deterministic_reduce");
}

}  // namespace

void place_sequences(TrainOptions& o) {
  const int ranks = o.place.ranks;
  if (o.context_parallel < 1) fail("train: context_parallel is ", o.context_parallel, ", expected at least 1");
  if (ranks % o.context_parallel != 0)
    fail("train: context_parallel is ", o.context_parallel, " on ", ranks, ranks == 1 ? " process" : " processes",
         ", expected a number that divides the processes");
  o.place.context = static_cast<int>(o.context_parallel);
}

Share share_of(const TrainOptions& o) {
  Share share;
  share.parts = o.deterministic_reduce ? static_cast<int>(o.reduce_leaves) : o.place.data_ranks();
  share.each = o.batch / share.parts;
  share.count = share.parts / o.place.data_ranks();
  share.first = o.place.data_rank() * share.count;
  return share;
}

void check(const TrainOptions& o) {
  const auto at_least = [](std::int64_t low, const char* field, std::int64_t value) {
    if (value < low) fail("train: ", field, " is ", value, ", expected at least ", low);
  };
  at_least(0, "max_steps", o.max_steps);
  if (o.max_steps == 0) at_least(1, "epochs", o.epochs);
  expect_within("train", "batch", o.batch, limits::kBatch);
  expect_within("train", "accumulate", o.accumulate, limits::kAccumulate);
  if (o.warmup_steps) at_least(0, "warmup_steps", *o.warmup_steps);
  expect_within("train", "threads", o.threads, limits::kThreads);
  at_least(0, "seed", o.seed);
  at_least(0, "checkpoint_every", o.checkpoint_every);
  at_least(1, "keep", o.keep);
  at_least(1, "log_every", o.log_every);
  at_least(0, "eval_every", o.eval_every);
  at_least(0, "eval_steps", o.eval_steps);
  // Written so that NaN is refused.
  const auto between = [](double value, double low, double high) { return value >= low && value < high; };
  const double most = std::numeric_limits<double>::infinity();
  expect(o.lr > 0 && between(o.lr, 0, most), "lr", o.lr, "a number above 0");
  expect(between(o.weight_decay, 0, most), "weight_decay", o.weight_decay, "0 or more");
  expect(between(o.beta1, 0, 1), "beta1", o.beta1, "0 or more and below 1");
  expect(between(o.beta2, 0, 1), "beta2", o.beta2, "0 or more and below 1");
  expect(o.adam_eps > 0 && between(o.adam_eps, 0, most), "adam_eps", o.adam_eps, "a number above 0");
  expect(between(o.mix_lr_scale, 0, most), "mix_lr_scale", o.mix_lr_scale, "0 or more");
  if (o.mix_weight_decay)
    expect(between(*o.mix_weight_decay, 0, most), "mix_weight_decay", *o.mix_weight_decay, "0 or more");
  expect(between(o.clip_norm, 0, most), "clip_norm", o.clip_norm, "0 or more");
  expect(between(o.timeout, 1, most), "timeout", o.timeout, "1 or more");
  expect(between(o.checkpoint_minutes, 0, most), "checkpoint_minutes", o.checkpoint_minutes, "0 or more");
  expect(between(o.warmup_lr, 0, most), "warmup_lr", o.warmup_lr, "0 or more");
  expect(between(o.min_lr, 0, most) && o.min_lr <= o.lr, "min_lr", o.min_lr, "0 to lr");
  expect(between(o.ema, 0, 1), "ema", o.ema, "0 or more and below 1");
  expect(o.schedule == "cosine" || o.schedule == "constant", "schedule", o.schedule, "cosine or constant");
  expect(o.init_weights == "model" || o.init_weights == "ema" || o.init_weights == "best", "init_weights",
         o.init_weights, "model, ema or best");
  expect(o.context_method == "auto" || o.context_method == "summaries" || o.context_method == "heads", "context_method",
         o.context_method, "auto, summaries or heads");
  expect(o.precision == "f32" || o.precision == "bf16", "precision", o.precision, "f32 or bf16");
  check_share(o);
}

std::int64_t warmup_of(const TrainOptions& o, std::int64_t total_steps) {
  return o.warmup_steps.value_or(std::min(o.usual_warmup, total_steps / 10));
}

}  // namespace mhla::train
