// `mhla eval lm`, beside `mhla eval classify`.
#pragma once

#include "apps/commands.h"

namespace mhla::apps {

void add_eval_lm(CLI::App& eval, Job& job);

}  // namespace mhla::apps
