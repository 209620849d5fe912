// The Fréchet distance of two Gaussians, of which FID (pool features) and sFID (spatial features) are cases:
//   |m - m'|^2 + tr(S + S' - 2 (S S')^1/2),   tr (S S')^1/2 = |F F'^T|_*   for S = F^T F, S' = F'^T F'
// The nuclear norm is a sum of singular values: no root of a matrix that is not symmetric, no complex numbers, and
// exact for singular covariances too.
#pragma once

#include "mhla/diffusion/metrics/feature_stats.h"

namespace mhla {

// Of the same number of features, from at least two images each.
double frechet_distance(const FeatureStats& samples, const FeatureStats& reference);

}  // namespace mhla
