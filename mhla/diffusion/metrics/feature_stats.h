// Mean and covariance (over N - 1) of features, added batch by batch in f64.
// While N <= d the rows themselves are kept: fewer numbers than a covariance, which would be singular. After that a
// [d, d] matrix is all that is kept, so memory stays below d * (d + kBlock) numbers for any N. Rows are taken in blocks
// of kBlock, whatever the sizes of the batches were: equal rows in equal order give equal bits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mhla/analysis/matrix.h"

namespace mhla {

class FeatureStats {
 public:
  explicit FeatureStats(std::int64_t dim);
  // What a file holds. `images` is 0 where the file does not say. Refuses what is no covariance: other shapes, NaN,
  // a matrix that is not symmetric or has a negative diagonal.
  static FeatureStats from_moments(std::vector<double> mean, Matrix covariance, std::int64_t images);
  static FeatureStats from_factor(std::vector<double> mean, Matrix factor, std::int64_t images);

  // [n, dim] of any float type. NaN and infinities are refused; `name` is the set's name in errors.
  void add(const ConstView& features, const std::string& name = "features");

  [[nodiscard]] std::int64_t dim() const { return dim_; }
  [[nodiscard]] std::int64_t images() const { return images_; }
  [[nodiscard]] std::vector<double> mean() const;
  [[nodiscard]] Matrix covariance() const;  // [dim, dim]
  // F [r, dim] with F^T F the covariance: the centred rows over sqrt(N - 1) while N <= d, a pivoted Cholesky factor
  // after that.
  [[nodiscard]] Matrix factor() const;
  [[nodiscard]] bool has_covariance() const { return scatter_.rows != 0; }

 private:
  static constexpr std::int64_t kBlock = 512;
  void absorb(const double* rows, std::int64_t count);  // into mean_ and scatter_
  void absorb_pending();
  [[nodiscard]] FeatureStats settled() const;  // nothing pending; rows only while images_ <= dim_

  std::int64_t dim_ = 0, images_ = 0;
  std::vector<double> pending_;  // rows that are not in the scatter yet, [n, dim]
  std::vector<double> mean_;     // of the rows in the scatter
  Matrix scatter_;               // sum of (x - mean)(x - mean)^T, both triangles; empty while images_ <= dim_
  std::int64_t absorbed_ = 0;    // rows in it
  Matrix factor_;                // from_factor(), empty else
};

}  // namespace mhla
