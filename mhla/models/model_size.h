// How large a model is, by formula from its configuration, before anything of it is allocated. model_size_test holds
// the parameters to real models of every attention. What passes through a model is a lower bound: what is refused by it
// could not have run.
#pragma once

#include <cstdint>

namespace mhla {

struct ClassifierConfig;
struct LmConfig;

struct ModelSize {
  double parameters = 0;
  double kept = 0;     // numbers that a sample leaves for the backward pass, at least
  double passing = 0;  // numbers of a sample that a pass without gradients has at once, at least
};

ModelSize size_of(const ClassifierConfig& config);  // a sample is an image

// A sample is `tokens` tokens of a sequence. `recompute`: blocks keep their inputs only. `alone`: all tokens are one
// sequence, not documents side by side, whose pairs softmax attention of LibTorch 1 has all at once.
ModelSize size_of(const LmConfig& config, std::int64_t tokens, bool recompute = false, bool alone = false);

// Bytes of what an LM remembers of a sequence of `tokens` tokens, at least.
double state_bytes(const LmConfig& config, std::int64_t tokens);

}  // namespace mhla
