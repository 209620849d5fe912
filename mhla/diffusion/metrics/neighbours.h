// Metrics by nearest neighbours. A ball lies around every image, as wide as the distance to its k-th nearest neighbour
// in its own set, itself left out.
//   precision  share of samples that lie in a ball of the reference       recall    the same with the sets exchanged
//   density    balls of the reference that a sample lies in, mean over samples, over k
//   coverage   share of the reference's balls with a sample inside
// Precision and recall take a sample on the surface as inside (ADM), density and coverage do not (prdc). Distances are
// squared, in f64, computed in blocks: memory is O(N), not O(N^2).
#pragma once

#include <cstdint>
#include <vector>

#include "mhla/core/view.h"

namespace mhla {

struct NeighbourMetrics {
  double precision = 0.0, recall = 0.0, density = 0.0, coverage = 0.0;
};

// At least k + 1 images on both sides. `k` is 3 in ADM, 5 in prdc.
NeighbourMetrics neighbour_metrics(const ConstView& samples, const ConstView& reference, std::int64_t k = 3);

// The nearest row of `reference` for every sample: what tells copies of training images from new ones.
struct Nearest {
  std::int64_t index = 0;
  double squared_distance = 0.0;
};
std::vector<Nearest> nearest_rows(const ConstView& samples, const ConstView& reference);

// Squared distance of every row to its k-th nearest other row.
std::vector<double> squared_radii(const ConstView& features, std::int64_t k);

}  // namespace mhla
