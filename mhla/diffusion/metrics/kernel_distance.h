// KID: the unbiased squared maximum mean discrepancy under k(x, y) = (x . y / d + 1)^3,
//   sum_{i != j} k(x_i, x_j) / (n (n - 1)) + sum_{i != j} k(y_i, y_j) / (m (m - 1)) - 2 sum_{i, j} k(x_i, y_j) / (n m).
// It is unbiased for every N, so numbers of different N may be compared, which FID's may not.
#pragma once

#include <cstdint>

#include "mhla/core/view.h"

namespace mhla {

// Over all images, at least two of each.
double kernel_distance(const ConstView& samples, const ConstView& reference);

struct KernelSubsets {
  std::int64_t subsets = 100;
  std::int64_t size = 1000;   // images of each side in a subset
  std::uint32_t seed = 2020;  // numpy's order, as in torch-fidelity
};
struct KernelDistance {
  double mean = 0.0;
  double deviation = 0.0;  // of the subsets, over their number
};
// torch-fidelity's estimate: the mean over random subsets.
KernelDistance subset_kernel_distance(const ConstView& samples, const ConstView& reference,
                                      const KernelSubsets& options = {});

}  // namespace mhla
