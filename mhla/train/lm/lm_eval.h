// Perplexity of a language model on held-out tokens. A window of `length` tokens is one sequence; with a stride below
// the length windows overlap, and of every window but a document's first only the last `stride` tokens are scored: each
// token once, with at least length - stride before it. Losses are kept by place in the window, so that what a long past
// is worth shows.
#pragma once

#include <functional>

#include "mhla/data/token_set.h"
#include "mhla/models/lm/lm.h"
#include "mhla/modules/context_share.h"
#include "mhla/train/options.h"

namespace mhla::train {

struct PerplexityOptions {
  std::int64_t length = 2048;
  std::int64_t stride = 0;              // 0: as length, windows side by side
  bool documents = true;                // windows stay inside documents; else they run over all of them, as published
  std::int64_t tokens = 0;              // so many are scored, and what fills the last window; 0: all
  std::int64_t batch = 8;               // windows of full length at a time
  std::int64_t bucket = 0;              // places of a window that share a line; 0: an eighth of the length
  Place place;                          // several processes: each takes every so many-th batch
  ContextShare* maybe_share = nullptr;  // those of one context compute a batch together, each its part of every window
};

struct Bucket {
  std::int64_t first = 0, last = 0;  // places in the window
  std::int64_t tokens = 0;
  double loss = 0;  // mean
};

struct Perplexity {
  std::int64_t tokens = 0;  // scored
  double loss = 0;          // mean
  std::vector<Bucket> buckets;
  std::string length;  // what the length policy did: describe(LengthPlan) of a full window
  double seconds = 0;
};

// In evaluation mode without gradients, on the device of the model; with autocast where that is on. `progress` gets
// the tokens done.
Perplexity perplexity(LanguageModelImpl& model, const TokenSet& set, const PerplexityOptions& options,
                      const std::function<void(std::int64_t done)>& progress = {});

}  // namespace mhla::train
