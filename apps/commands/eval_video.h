// mhla eval video.
#pragma once

#include "apps/commands.h"

namespace mhla::apps {

void add_eval_video(CLI::App& eval, Job& job);

}  // namespace mhla::apps
