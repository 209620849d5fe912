// `--context-parallel` of language models: what their processes share, and what cannot be shared.
#pragma once

#include "mhla/models/lm/lm_config.h"
#include "mhla/train/lm/lm_options.h"
#include "mhla/train/sharing.h"

namespace mhla::train {

SharedKind shared_kind(const LmOptions& options, const LmConfig& network);
// Throws mhla::Error naming what cannot be cut between processes. For those that share sequences.
void check_sharing(const LmOptions& options, const LmConfig& network);

}  // namespace mhla::train
