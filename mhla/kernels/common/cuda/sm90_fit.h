// What the Hopper candidates of both forms ask of a problem.
#pragma once

#include <string>

#include "mhla/kernels/common/problem.h"

namespace mhla::sm90 {

// The device: a Hopper card that can be used. Empty, or why not.
std::string fit_device(const Problem& problem);

// bf16, D and the columns of a unit up to 128. Empty, or why not.
std::string fit_common(const Problem& problem, std::int64_t columns);

// Whether the boxes of a tensor map (sm90_boxes.cuh) can address a view whose rows are multiples of 16 bytes: strides
// that are not negative, and tokens that do not share memory.
bool boxes_take(const ConstView& view);

}  // namespace mhla::sm90
