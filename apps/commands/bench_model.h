// `mhla bench model`, beside `mhla bench op`.
#pragma once

#include "apps/commands.h"

namespace mhla::apps {

void add_bench_model(CLI::App& bench, Job& job);

}  // namespace mhla::apps
