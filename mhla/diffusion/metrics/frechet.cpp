#include "mhla/diffusion/metrics/frechet.h"

#include <algorithm>

#include "mhla/analysis/spectrum.h"
#include "mhla/diffusion/metrics/blas.h"
#include "mhla/diffusion/metrics/features.h"

namespace mhla {
namespace {

double squared_sum(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double value : values) sum += value * value;
  return sum;
}

}  // namespace

double frechet_distance(const FeatureStats& samples, const FeatureStats& reference) {
  check_same_size(samples.dim(), reference.dim(), "frechet_distance");
  check_enough(samples.images(), samples.has_covariance() ? 0 : 2, "frechet_distance", "samples");
  check_enough(reference.images(), reference.has_covariance() ? 0 : 2, "frechet_distance", "reference");
  const Matrix a = samples.factor(), b = reference.factor();
  Matrix products(a.rows, b.rows);
  if (a.rows > 0 && b.rows > 0)
    row_products(a.values.data(), static_cast<int>(a.rows), b.values.data(), static_cast<int>(b.rows),
                 static_cast<int>(samples.dim()), products.values.data());
  double nuclear = 0.0;
  for (const double sigma : singular_values(products)) nuclear += sigma;
  std::vector<double> shift = samples.mean();
  const std::vector<double> other = reference.mean();
  for (std::size_t i = 0; i < shift.size(); ++i) shift[i] -= other[i];
  // tr(F^T F) is the sum of the squares of F. A distance is not negative: what is below 0 is rounding.
  return std::max(0.0, squared_sum(shift) + squared_sum(a.values) + squared_sum(b.values) - 2.0 * nuclear);
}

}  // namespace mhla
