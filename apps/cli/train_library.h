// Training and evaluation by libmhla_train.so (MHLA_TRAIN points elsewhere).
#pragma once

#include <functional>
#include <string>

#include "mhla/io/json.h"

namespace mhla::apps {

using RowHandler = std::function<void(const JsonValue& row, bool progress)>;

// Opens the library, runs the request and returns the exit code; what went wrong has been said on stderr.
int run_in_train_library(const JsonValue& request, const RowHandler& handle);

}  // namespace mhla::apps
