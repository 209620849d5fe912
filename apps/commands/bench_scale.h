// `mhla bench scale`, beside `mhla bench op`.
#pragma once

#include "apps/commands.h"

namespace mhla::apps {

void add_bench_scale(CLI::App& bench, Job& job);

}  // namespace mhla::apps
