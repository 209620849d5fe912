// One token after another for a batch of sequences, without what launching every kernel of a step by itself costs. On a
// CUDA device a step is recorded as a CUDA graph and replayed: one graph for steps that only read, one for steps in
// which a sequence completes a chunk. A table in device memory says where each sequence stands; it is copied there
// before every replay. Logits have the bits of LanguageModel::decode, which does the work wherever nothing can be
// recorded: on the CPU, with other attentions than mhla and linear, with short convolutions, under autocast, and for
// the step after states were rolled back or loaded.
//
//   Decoder decoder(*model);
//   for (...) next = decoder.decode(next, state).argmax(-1);
//
// The first step of a batch size is not recorded, the second is. Weights must stay where they are as long as a decoder
// lives; it holds the memory of one step.
#pragma once

#include <memory>

#include "mhla/models/lm/lm.h"

namespace mhla {

class Decoder {
 public:
  explicit Decoder(LanguageModelImpl& model);
  ~Decoder();
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  torch::Tensor decode(const torch::Tensor& tokens, LmState& state);  // [B] to [B, vocab], the caller's to keep
  [[nodiscard]] bool recorded() const { return replayed_; }           // whether the last step was a replay

 private:
  struct Recording;
  LanguageModelImpl& model_;
  std::unique_ptr<Recording> recording_;
  std::int64_t last_batch_ = 0;
  bool replayed_ = false;
};

}  // namespace mhla
