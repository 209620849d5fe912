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

// A warp walks down kConvBand rows of a strip of kConvStrip columns. Sums over all tokens come in parts, one for each
// block of kConvWarps warps: walks and parts are cut by the shape alone.
inline constexpr int kConvStrip = 4, kConvBand = 8, kConvWarps = 4, kConvParts = 512;

constexpr std::int64_t conv_walks(std::int64_t images, std::int64_t rows, std::int64_t columns) {
  return images * ((rows + kConvBand - 1) / kConvBand) * ((columns + kConvStrip - 1) / kConvStrip);
}
constexpr std::int64_t conv_parts(std::int64_t walks) {
  const std::int64_t parts = (walks + kConvWarps - 1) / kConvWarps;
  return parts < kConvParts ? parts : kConvParts;
}

void grid_conv_cuda(const GridConvJob& job);
void grid_conv_backward_cuda(const GridConvJob& job);

}  // namespace mhla
