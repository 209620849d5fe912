// `mhla data encode`, and what `mhla data info` says about its folders; for apps/commands/data.cpp.
#pragma once

#include <string>

#include "apps/commands.h"

namespace mhla::apps {

void add_data_encode(CLI::App& data, Job& job);
int run_latent_info(const std::string& folder, bool json);  // reads every byte

}  // namespace mhla::apps
