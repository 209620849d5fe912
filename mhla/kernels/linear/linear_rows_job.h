// A checked call of linear_rows as the kernel takes it, and how it is cut: K into slices, one for each block of threads
// of a cluster, whose sums are added up in the order of slices; outputs into tiles of columns.
#pragma once

#include "mhla/kernels/linear/linear_rows.h"

namespace mhla {

inline constexpr int kRowsSlice = 384;  // of K, at most
inline constexpr int kRowsMostSlices = 8;

// Slices of K: as few as are short enough; they are whole heads where these are normed.
struct RowsCut {
  int slices = 0, slice = 0;  // slice: a multiple of 16; 0 slices: too long
};
constexpr RowsCut rows_cut(std::int64_t K, std::int64_t head) {
  for (int slices = 1; slices <= kRowsMostSlices; slices *= 2) {
    const std::int64_t slice = (K + 16 * slices - 1) / (16 * slices) * 16;
    if (slice > kRowsSlice) continue;
    if (head > 0 && (slice * slices != K || slice % head != 0)) continue;
    return {slices, static_cast<int>(slice)};
  }
  return {};
}

struct LinearRowsJob {
  const void* x = nullptr;
  const void *weight = nullptr, *second = nullptr;  // bf16
  const void *scale = nullptr, *gate = nullptr;     // bf16
  const float* add = nullptr;
  void *out = nullptr, *second_out = nullptr;
  std::int64_t x_stride = 0, weight_stride = 0, second_stride = 0, gate_stride = 0, add_stride = 0, out_stride = 0,
               second_out_stride = 0;  // elements
  int R = 0, K = 0, O = 0, O2 = 0, head = 0, slice = 0;
  float eps = 0;
};

void linear_rows_cuda(const LinearRowsParams& params, const LinearRowsJob& job, int slices, void* stream);

}  // namespace mhla
