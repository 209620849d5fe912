// What a training can be told, whatever it trains. Plain values: the program reads, checks and prints them without
// LibTorch. Fields are listed once, in fields(); config files, flags and help come from the list (io/fields.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace mhla::distributed {
class Team;
}

namespace mhla::train {

// This process among those that train together.
struct Place {
  int rank = 0, ranks = 1;
  int local_ranks = 1;                      // on this machine
  distributed::Team* maybe_team = nullptr;  // none: alone
  int context = 1;  // ranks [n * context, (n + 1) * context) have the same sequences, each its part of every one
  [[nodiscard]] bool leads() const { return rank == 0; }
  [[nodiscard]] int context_rank() const { return rank % context; }
  // Those that have different samples.
  [[nodiscard]] int data_rank() const { return rank / context; }
  [[nodiscard]] int data_ranks() const { return ranks / context; }
};

struct TrainOptions {
  std::int64_t epochs = 10;
  std::int64_t max_steps = 0;
  std::int64_t batch = 128;
  std::int64_t accumulate = 1;

  double lr = 1e-3;
  double weight_decay = 0.05;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double adam_eps = 1e-8;
  double mix_lr_scale = 1.0;
  std::optional<double> mix_weight_decay;  // none: 0, with `official` that of all weights
  double clip_norm = 1.0;
  std::optional<bool> clip_mix_apart;  // none: on, with `official` off

  std::string schedule = "cosine";
  std::optional<std::int64_t> warmup_steps;  // none: usual_warmup, in a short run less (warmup_of)
  std::int64_t usual_warmup = 0;             // of the task, no option of its own
  double warmup_lr = 0.0;
  double min_lr = 0.0;

  std::string init;
  std::string init_weights = "model";
  double ema = 0.0;
  std::string precision = "f32";
  std::string device = "cpu";
  std::int64_t threads = 0;
  std::int64_t seed = 0;
  bool deterministic = false;
  bool cuda_graph = false;
  bool deterministic_reduce = false;
  std::int64_t reduce_leaves = 8;
  bool shard_optimizer = false;
  std::int64_t context_parallel = 1;
  std::string context_method = "auto";
  double timeout = 600;
  Place place;  // where the process runs, no option of its own

  std::int64_t checkpoint_every = 500;
  double checkpoint_minutes = 10;
  std::int64_t keep = 3;
  bool keep_best = true;
  std::int64_t log_every = 10;
  std::int64_t eval_every = 1;
  std::int64_t eval_steps = 0;

  template <class Self, class Visit>
  static void fields(Self& o, Visit&& visit) {
    visit("epochs", o.epochs, "passes over the training set");
    visit("max_steps", o.max_steps, "optimiser steps, instead of epochs; 0: by epochs");
    visit("batch", o.batch, "samples in one pass through the model, of all processes together");
    visit("accumulate", o.accumulate, "batches whose gradients are summed into one step");
    visit("lr", o.lr, "peak learning rate");
    visit("weight_decay", o.weight_decay, "for weights with two axes or more");
    visit("beta1", o.beta1, "AdamW: decay of the mean gradient");
    visit("beta2", o.beta2, "AdamW: decay of the mean squared gradient");
    visit("adam_eps", o.adam_eps, "AdamW: added to the denominator");
    visit("mix_lr_scale", o.mix_lr_scale, "learning rate of the mixing matrices, as a multiple of lr");
    visit("mix_weight_decay", o.mix_weight_decay, "for the mixing matrices (default: 0; with official: weight_decay)");
    visit("clip_norm", o.clip_norm, "scale gradients down to at most this norm; 0: never");
    visit("clip_mix_apart", o.clip_mix_apart,
          "clip the gradients of the mixing matrices separately (default: on; with official: off)");
    visit("schedule", o.schedule, "learning rate schedule: cosine or constant");
    visit("warmup_steps", o.warmup_steps,
          "steps of linear warm-up from warmup_lr to lr (default: 0; language models 100 and diffusion models 1000, or "
          "a tenth of a shorter run)");
    visit("warmup_lr", o.warmup_lr, "learning rate at the start of the warm-up");
    visit("min_lr", o.min_lr, "learning rate at the end of the cosine schedule");
    visit("init", o.init,
          "weights to start from: a run, a folder of mhla convert, or a .safetensors file (default: random weights)");
    visit("init_weights", o.init_weights, "weights of the folder of init: model, ema or best");
    visit("ema", o.ema, "decay of the running average of the weights; 0: no average");
    visit("precision", o.precision, "f32, or bf16: autocast on a GPU, or on a CPU with AVX-512 BF16");
    visit("device", o.device, "cpu, cuda or cuda:N");
    visit("threads", o.threads, "CPU threads; 0: all");
    visit("seed", o.seed, "seed of the weights, the order of the data and its augmentation");
    visit("deterministic", o.deterministic, "use only operations that give the same bits every time");
    visit("cuda_graph", o.cuda_graph, "record a batch as a CUDA graph, so that small models do not wait for the host");
    visit("deterministic_reduce", o.deterministic_reduce,
          "the same bits for every number of processes that divides reduce_leaves (with the same threads; 0: 1)");
    visit("reduce_leaves", o.reduce_leaves, "deterministic_reduce: parts of a batch, a power of two");
    visit("shard_optimizer", o.shard_optimizer,
          "each process keeps its share of AdamW's moments and of the EMA, instead of all of them");
    visit("context_parallel", o.context_parallel,
          "processes that share every sequence, each with its part of the tokens; divides the number of processes (lm, "
          "diffusion and video, with mhla)");
    visit("context_method", o.context_method,
          "what these exchange: heads, block summaries, or auto: what sends fewer bytes");
    visit("timeout", o.timeout, "seconds that one process may keep the others waiting");
    visit("checkpoint_every", o.checkpoint_every, "steps between checkpoints; 0: only by minutes and at the end");
    visit("checkpoint_minutes", o.checkpoint_minutes, "minutes between checkpoints, at most; 0: off");
    visit("keep", o.keep, "number of checkpoints to keep");
    visit("keep_best", o.keep_best, "keep the weights of the best evaluation in best.safetensors");
    visit("log_every", o.log_every, "steps between two lines of the log");
    visit("eval_every", o.eval_every, "epochs between two evaluations; 0: only at the end");
    visit("eval_steps", o.eval_steps, "steps between two evaluations, instead of eval_every; 0: by epochs");
  }
};

// Throws mhla::Error naming the field, its value and what is expected.
void check(const TrainOptions& options);

// Tells `place` which processes share sequences (context_parallel); before check(). Throws where their number does not
// fit.
void place_sequences(TrainOptions& options);

// A batch in equal parts, of which this process computes `count`, from number `first` on.
struct Share {
  std::int64_t each = 1;  // samples
  int first = 0, count = 1, parts = 1;
};
Share share_of(const TrainOptions& options);
// Who keeps the moments of AdamW and the EMA: all processes together, or this one for itself.
inline Place keepers_of(const TrainOptions& options) { return options.shard_optimizer ? options.place : Place{}; }
// What the batches of a loader are then: the loaders of data/ have these fields.
template <class LoaderOptions>
void set_share(LoaderOptions& loader, const TrainOptions& options) {
  const Share share = share_of(options);
  loader.batch_size = share.each, loader.rank = options.place.data_rank();
  loader.ranks = options.place.data_ranks();
  loader.per_rank = share.count;
}

// Steps of the warm-up in a run of `total_steps`: as given, or the usual ones and a tenth of the run at most.
std::int64_t warmup_of(const TrainOptions& options, std::int64_t total_steps);

}  // namespace mhla::train
