#include "mhla/kernels/common/cuda/launch.h"

#include "mhla/core/error.h"

namespace mhla::cuda {

void refuse_grid(std::int64_t x, std::int64_t y, std::int64_t z) {
  fail("cuda: a grid of ", x, " x ", y, " x ", z, " blocks, expected less than 2^31 x 2^16 x 2^16");
}

}  // namespace mhla::cuda
