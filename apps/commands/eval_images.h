// `mhla eval images`, for apps/commands/eval.cpp.
#pragma once

#include "apps/commands.h"

namespace mhla::apps {

void add_eval_images(CLI::App& eval, Job& job);

}  // namespace mhla::apps
