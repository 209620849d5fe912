// A checked call as the kernels of grid_conv_cuda.cu take it.
#pragma once

#include "mhla/kernels/grid_conv/grid_conv.h"

namespace mhla {

struct GridConvJob {
  const void *v = nullptr, *base = nullptr, *gate = nullptr;
  const float *weight = nullptr, *bias = nullptr;
  void* out = nullptr;                              // dv in the backward pass
  std::int64_t image_stride = 0, token_stride = 0;  // of v, in elements
  DType dtype = DType::kF32;
  std::int64_t images = 0;
  int rows = 0, columns = 0, channels = 0, kernel = 3;
  const void* dout = nullptr;
  void *dbase = nullptr, *dgate = nullptr;
  float *dweight = nullptr, *dbias = nullptr;
  float* parts = nullptr;  // [parts][kernel kernel + 1][C]
  void* stream = nullptr;
};

inline constexpr int kConvStrip = 4;  // tokens of a row, and rows, that a thread works on at a time

// Strips of all images, and the parts that sums over them come in: by their number alone.
constexpr std::int64_t conv_strips(std::int64_t images, std::int64_t rows, std::int64_t columns) {
  return images * rows * ((columns + kConvStrip - 1) / kConvStrip);
}
constexpr std::int64_t conv_parts(std::int64_t strips) {
  const std::int64_t parts = (strips + 63) / 64;
  return parts < 256 ? parts : 256;
}

void grid_conv_cuda(const GridConvJob& job);
void grid_conv_backward_cuda(const GridConvJob& job);

}  // namespace mhla
