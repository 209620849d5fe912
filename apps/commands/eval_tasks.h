// The tasks of `mhla eval lm --task`: their flags, and what is said of them.
#pragma once

#include <vector>

#include "apps/cli/output.h"
#include "apps/cli/request_flags.h"

namespace mhla::apps {

void check_task_flags(const RequestFlags& flags);
std::vector<const char*> task_flags();  // those that perplexity does not have
void print_task(const JsonValue& row, const Output& out);

}  // namespace mhla::apps
