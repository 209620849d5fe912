// `mhla bench text`, beside `mhla bench data`.
#pragma once

#include "apps/commands.h"

namespace mhla::apps {

void add_bench_text(CLI::App& bench, Job& job);

}  // namespace mhla::apps
