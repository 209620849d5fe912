// What launch.cuh leaves to plain C++: errors with numbers in them, whose streams cost nvcc 0.3 s a file.
#pragma once

#include <cstdint>

namespace mhla::cuda {

[[noreturn]] void refuse_grid(std::int64_t x, std::int64_t y, std::int64_t z);

}  // namespace mhla::cuda
