// What the candidates `sm80` and `sm90` of both forms ask of a problem.
#pragma once

#include <string>

#include "mhla/kernels/common/problem.h"

namespace mhla::sm80 {

// The device: a card of compute capability 8.0 or more; a Hopper card. Empty, or why not.
std::string fit_device(const Problem& problem);
std::string fit_hopper(const Problem& problem);

// Shared memory that a block of threads may have: what the plans are made for. MHLA_SHARED_KIB=99 in the environment
// makes those of a card with less than the device has.
int most_shared_bytes(int device);

// bf16, D and the columns of a unit up to 128. Empty, or why not.
std::string fit_common(const Problem& problem, std::int64_t columns);

// Whether the boxes of a tensor map (sm90_boxes.cuh) can address a view whose rows are multiples of 16 bytes: strides
// that are not negative, and tokens that do not share memory.
bool boxes_take(const ConstView& view);

// Throws: the driver made no tensor map for boxes of `width` x `height`, of columns, tokens or rows; for summaries.
[[noreturn]] void refuse_boxes(int status, const ConstView& view, int width, int height);
[[noreturn]] void refuse_summary_boxes(int status, std::int64_t count, std::int64_t step, int D, int E);

}  // namespace mhla::sm80
