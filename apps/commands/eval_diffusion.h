// `mhla eval diffusion`, for apps/commands/eval.cpp.
#pragma once

#include "apps/commands.h"

namespace mhla::apps {

void add_eval_diffusion(CLI::App& eval, Job& job);

}  // namespace mhla::apps
