// mhla sample video, below `mhla sample`.
#pragma once

#include "apps/commands.h"

namespace mhla::apps {

void add_sample_video(CLI::App& sample, Job& job);

}  // namespace mhla::apps
