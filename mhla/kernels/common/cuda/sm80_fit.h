// What the Hopper candidates of both forms ask of a problem.
#pragma once

#include <string>

#include "mhla/kernels/common/problem.h"

namespace mhla::sm80 {

// The device: a Hopper card that can be used. Empty, or why not.
std::string fit_device(const Problem& problem);

// bf16, D and the columns of a unit up to 128. Empty, or why not.
std::string fit_common(const Problem& problem, std::int64_t columns);

}  // namespace mhla::sm80
