// What a machine does at best, measured in place: the yardstick of "mfu" in logs and benchmarks.
#pragma once

#include "mhla/train/torch.h"

namespace mhla::train {

// Floating-point operations a second of one large product, bf16 or f32 with its tensor cores off, as training uses it.
double gemm_rate(const torch::Device& device, bool bf16);
// Bytes a second that a large copy reads and writes together.
double copy_rate(const torch::Device& device);

}  // namespace mhla::train
