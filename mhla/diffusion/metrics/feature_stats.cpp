#include "mhla/diffusion/metrics/feature_stats.h"

#include <algorithm>
#include <cmath>

#include "mhla/core/error.h"
#include "mhla/diffusion/metrics/blas.h"
#include "mhla/diffusion/metrics/features.h"

namespace mhla {
namespace {

// Copies one triangle over the other: dsyrk fills the upper one of row-major storage ("L" of column-major).
void mirror(Matrix& square) {
  for (std::int64_t i = 0; i < square.rows; ++i)
    for (std::int64_t j = 0; j < i; ++j) square.at(i, j) = square.at(j, i);
}

void check_dim(std::int64_t dim, const char* entry) {
  if (dim < 1 || dim > kMaxFeatureSize) fail(entry, ": ", dim, " features, expected 1 to ", kMaxFeatureSize);
}

std::vector<double> mean_of_rows(const double* rows, std::int64_t count, std::int64_t dim) {
  std::vector<double> mean(static_cast<std::size_t>(dim), 0.0);
  for (std::int64_t i = 0; i < count; ++i)
    for (std::int64_t j = 0; j < dim; ++j) mean[static_cast<std::size_t>(j)] += rows[i * dim + j];
  for (double& value : mean) value /= static_cast<double>(count);
  return mean;
}

Matrix gram_of_columns(const Matrix& factor) {  // F^T F
  const int d = static_cast<int>(factor.columns), r = static_cast<int>(factor.rows);
  const double one = 1.0, zero = 0.0;
  Matrix gram(d, d);
  if (r > 0) dsyrk_("L", "N", &d, &r, &one, factor.values.data(), &d, &zero, gram.values.data(), &d);
  mirror(gram);
  return gram;
}

}  // namespace

FeatureStats::FeatureStats(std::int64_t dim) : dim_(dim) {
  check_dim(dim, "FeatureStats");
  mean_.assign(static_cast<std::size_t>(dim), 0.0);
}

FeatureStats FeatureStats::from_moments(std::vector<double> mean, Matrix covariance, std::int64_t images) {
  constexpr const char* kEntry = "FeatureStats";
  const auto dim = static_cast<std::int64_t>(mean.size());
  FeatureStats stats(dim);
  if (covariance.rows != dim || covariance.columns != dim)
    fail(kEntry, ": covariance has shape [", covariance.rows, ", ", covariance.columns, "], expected [", dim, ", ", dim,
         "]");
  if (images < 0 || images == 1) fail(kEntry, ": covariance of ", images, " images, expected at least 2");
  for (const double value : mean) {
    if (!std::isfinite(value)) fail(kEntry, ": the mean has a value that is NaN or infinite");
  }
  check_finite(covariance, kEntry, "covariance");
  double largest = 0.0;
  for (std::int64_t i = 0; i < dim; ++i) {
    if (covariance.at(i, i) < 0.0)
      fail(kEntry, ": covariance[", i, ", ", i, "] is ", covariance.at(i, i), ", expected at least 0");
    largest = std::max(largest, covariance.at(i, i));
  }
  for (std::int64_t i = 0; i < dim; ++i) {
    for (std::int64_t j = 0; j < i; ++j) {
      const double lower = covariance.at(i, j), upper = covariance.at(j, i);
      if (!(std::abs(lower - upper) <= 1e-5 * largest))  // files of f32 are symmetric to 1e-7
        fail(kEntry, ": covariance[", i, ", ", j, "] is ", lower, " and covariance[", j, ", ", i, "] is ", upper,
             ", expected a symmetric matrix");
      covariance.at(i, j) = covariance.at(j, i) = 0.5 * (lower + upper);
    }
  }
  stats.mean_ = std::move(mean);
  stats.scatter_ = std::move(covariance);
  // An unknown N cannot be added to: absorbed_ is only the factor between scatter and covariance then.
  stats.images_ = images;
  stats.absorbed_ = std::max<std::int64_t>(images, 2);
  for (double& value : stats.scatter_.values) value *= static_cast<double>(stats.absorbed_ - 1);
  return stats;
}

FeatureStats FeatureStats::from_factor(std::vector<double> mean, Matrix factor, std::int64_t images) {
  constexpr const char* kEntry = "FeatureStats";
  const auto dim = static_cast<std::int64_t>(mean.size());
  FeatureStats stats(dim);
  if (factor.rows < 1 || factor.rows > dim || factor.columns != dim)
    fail(kEntry, ": factor has shape [", factor.rows, ", ", factor.columns, "], expected [1 to ", dim, ", ", dim, "]");
  if (images < 2) fail(kEntry, ": factor of the covariance of ", images, " images, expected at least 2");
  for (const double value : mean) {
    if (!std::isfinite(value)) fail(kEntry, ": the mean has a value that is NaN or infinite");
  }
  check_finite(factor, kEntry, "factor");
  stats.mean_ = std::move(mean);
  stats.factor_ = std::move(factor);
  stats.images_ = images;
  return stats;
}

void FeatureStats::add(const ConstView& features, const std::string& name) {
  constexpr const char* kEntry = "FeatureStats";
  check_features(features, kEntry, name);
  if (features.shape[1] != dim_) fail(kEntry, ": ", name, " has ", features.shape[1], " features, expected ", dim_);
  if (factor_.rows != 0 || (scatter_.rows != 0 && images_ == 0))
    fail(kEntry, ": statistics that come from a file cannot be added to");
  std::vector<double> rows(static_cast<std::size_t>(kBlock * dim_));
  for (std::int64_t first = 0; first < features.shape[0]; first += kBlock) {
    const std::int64_t count = std::min(kBlock, features.shape[0] - first);
    widen_rows(features, first, count, rows.data(), kEntry, name);
    for (std::int64_t i = 0; i < count; ++i) {
      pending_.insert(pending_.end(), rows.begin() + i * dim_, rows.begin() + (i + 1) * dim_);
      ++images_;
      const auto waiting = static_cast<std::int64_t>(pending_.size()) / dim_;
      if (images_ > dim_ && waiting >= kBlock) absorb_pending();
    }
  }
}

void FeatureStats::absorb_pending() {
  const auto count = static_cast<std::int64_t>(pending_.size()) / dim_;
  for (std::int64_t first = 0; first < count; first += kBlock)
    absorb(pending_.data() + first * dim_, std::min(kBlock, count - first));
  pending_.clear();
}

// Chan, Golub and LeVeque: the scatter of two sets together is the sum of theirs and of what separates their means.
void FeatureStats::absorb(const double* rows, std::int64_t count) {
  if (scatter_.rows == 0) scatter_ = Matrix(dim_, dim_);
  const std::vector<double> mean = mean_of_rows(rows, count, dim_);
  // One more row than the block: sqrt(n n' / (n + n')) (mean' - mean).
  std::vector<double> centred(static_cast<std::size_t>((count + 1) * dim_));
  const double total = static_cast<double>(absorbed_ + count);
  const double between = std::sqrt(static_cast<double>(absorbed_) * static_cast<double>(count) / total);
  for (std::int64_t j = 0; j < dim_; ++j) {
    const double middle = mean[static_cast<std::size_t>(j)];
    for (std::int64_t i = 0; i < count; ++i)
      centred[static_cast<std::size_t>(i * dim_ + j)] = rows[i * dim_ + j] - middle;
    double& own = mean_[static_cast<std::size_t>(j)];
    centred[static_cast<std::size_t>(count * dim_ + j)] = between * (middle - own);
    own += (middle - own) * static_cast<double>(count) / total;
  }
  const int d = static_cast<int>(dim_), n = static_cast<int>(count + 1);
  const double one = 1.0;
  dsyrk_("L", "N", &d, &n, &one, centred.data(), &d, &one, scatter_.values.data(), &d);
  absorbed_ += count;
}

FeatureStats FeatureStats::settled() const {
  FeatureStats stats = *this;
  if (images_ > dim_ && !pending_.empty()) stats.absorb_pending();
  if (stats.scatter_.rows != 0) mirror(stats.scatter_);
  return stats;
}

std::vector<double> FeatureStats::mean() const {
  if (factor_.rows != 0 || (scatter_.rows != 0 && pending_.empty())) return mean_;
  check_enough(images_, 1, "FeatureStats", "the set");
  if (images_ <= dim_) return mean_of_rows(pending_.data(), images_, dim_);
  return settled().mean_;
}

Matrix FeatureStats::covariance() const {
  if (factor_.rows != 0 || (scatter_.rows == 0 && images_ <= dim_)) return gram_of_columns(factor());
  FeatureStats stats = settled();
  for (double& value : stats.scatter_.values) value /= static_cast<double>(stats.absorbed_ - 1);
  return std::move(stats.scatter_);
}

Matrix FeatureStats::factor() const {
  if (factor_.rows != 0) return factor_;
  if (scatter_.rows == 0 && images_ <= dim_) {
    check_enough(images_, 2, "FeatureStats", "the set");
    const std::vector<double> middle = mean();
    Matrix rows(images_, dim_);
    const double scale = 1.0 / std::sqrt(static_cast<double>(images_ - 1));
    for (std::int64_t i = 0; i < images_; ++i)
      for (std::int64_t j = 0; j < dim_; ++j)
        rows.at(i, j) =
            (pending_[static_cast<std::size_t>(i * dim_ + j)] - middle[static_cast<std::size_t>(j)]) * scale;
    return rows;
  }
  Matrix square = covariance();
  const int d = static_cast<int>(dim_);
  std::vector<int> pivots(static_cast<std::size_t>(dim_));
  std::vector<double> work(static_cast<std::size_t>(2 * dim_));
  const double automatic = -1.0;  // stops at d * eps * the largest variance: below that the matrix is rounding
  int rank = 0, info = 0;
  dpstrf_("L", &d, square.values.data(), &d, pivots.data(), &rank, &automatic, work.data(), &info);
  if (info < 0) fail("FeatureStats: LAPACK's dpstrf ended with info ", info);
  // Row k of the factor is column k of l, at the places that the pivots name.
  Matrix factor(rank, dim_);
  for (std::int64_t k = 0; k < rank; ++k)
    for (std::int64_t i = k; i < dim_; ++i) factor.at(k, pivots[static_cast<std::size_t>(i)] - 1) = square.at(k, i);
  return factor;
}

}  // namespace mhla
