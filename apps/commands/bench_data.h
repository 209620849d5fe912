// `mhla bench data`, beside `mhla bench op`.
#pragma once

#include "apps/commands.h"

namespace mhla::apps {

void add_bench_data(CLI::App& bench, Job& job);

}  // namespace mhla::apps
