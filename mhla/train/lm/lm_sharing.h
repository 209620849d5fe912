// `--context-parallel` of language models: which processes share sequences, how, and what cannot be shared.
#pragma once

#include "mhla/models/lm/lm_config.h"
#include "mhla/train/lm/lm_options.h"

namespace mhla::train {

// Tells the trainer which processes share sequences; before check(). Throws where their number does not fit.
void place_sequences(LmOptions& options);
// Throws mhla::Error naming what cannot be cut between processes. For a context_parallel above 1.
void check_sharing(const LmOptions& options, const LmConfig& network);
// What they exchange and why, in words; empty: they share nothing.
std::string describe_sharing(const LmOptions& options, const LmConfig& network);

}  // namespace mhla::train
