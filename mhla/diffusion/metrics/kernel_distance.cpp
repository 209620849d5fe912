#include "mhla/diffusion/metrics/kernel_distance.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "mhla/core/error.h"
#include "mhla/diffusion/metrics/blas.h"
#include "mhla/diffusion/metrics/features.h"
#include "mhla/diffusion/metrics/numpy_shuffle.h"

namespace mhla {
namespace {

constexpr const char* kKid = "kid";
constexpr std::int64_t kBlock = 1024;  // rows of both sides at a time: 8 MiB of products

// The rows of a set, some or all, in blocks of f64.
class RowBlocks {
 public:
  RowBlocks(const ConstView& features, const char* name, std::span<const std::int64_t> chosen = {})
      : features_(features), name_(name), chosen_(chosen) {}
  [[nodiscard]] std::int64_t rows() const {
    return chosen_.empty() ? features_.shape[0] : static_cast<std::int64_t>(chosen_.size());
  }
  [[nodiscard]] std::int64_t dim() const { return features_.shape[1]; }
  std::int64_t read(std::int64_t first, std::vector<double>& out) const {  // rows that came
    const std::int64_t count = std::min(kBlock, rows() - first);
    out.resize(static_cast<std::size_t>(count * dim()));
    if (chosen_.empty()) {
      widen_rows(features_, first, count, out.data(), kKid, name_);
      return count;
    }
    for (std::int64_t i = 0; i < count; ++i)
      widen_rows(features_, chosen_[static_cast<std::size_t>(first + i)], 1, out.data() + i * dim(), kKid, name_);
    return count;
  }

 private:
  ConstView features_;
  const char* name_;
  std::span<const std::int64_t> chosen_;
};

// sum of k over all pairs; of one set with itself, over pairs of different rows.
double kernel_sum(const RowBlocks& a, const RowBlocks& b, bool same) {
  std::vector<double> rows, others, products;
  const int d = static_cast<int>(a.dim());
  double total = 0.0;
  for (std::int64_t i = 0; i < a.rows(); i += kBlock) {
    const auto m = static_cast<int>(a.read(i, rows));
    for (std::int64_t j = same ? i : 0; j < b.rows(); j += kBlock) {
      const auto n = static_cast<int>(b.read(j, others));
      products.resize(static_cast<std::size_t>(m) * static_cast<std::size_t>(n));
      row_products(rows.data(), m, others.data(), n, d, products.data());
      double sum = 0.0;
      for (int r = 0; r < m; ++r) {
        double line = 0.0;
        for (int c = 0; c < n; ++c) {
          if (same && i == j && r == c) continue;
          const double base =
              products[static_cast<std::size_t>(r) * static_cast<std::size_t>(n) + static_cast<std::size_t>(c)] / d +
              1.0;
          line += base * base * base;
        }
        sum += line;
      }
      total += same && j > i ? 2.0 * sum : sum;  // the block below the diagonal is the same
    }
  }
  return total;
}

double distance(const RowBlocks& x, const RowBlocks& y) {
  const auto n = static_cast<double>(x.rows()), m = static_cast<double>(y.rows());
  return kernel_sum(x, x, true) / (n * (n - 1)) + kernel_sum(y, y, true) / (m * (m - 1)) -
         2.0 * kernel_sum(x, y, false) / (n * m);
}

}  // namespace

double kernel_distance(const ConstView& samples, const ConstView& reference) {
  check_sets(samples, reference, 2, kKid);
  return distance({samples, "samples"}, {reference, "reference"});
}

KernelDistance subset_kernel_distance(const ConstView& samples, const ConstView& reference,
                                      const KernelSubsets& options) {
  if (options.subsets < 1 || options.size < 2)
    fail(kKid, ": ", options.subsets, " subsets of ", options.size, ", expected at least one, of at least 2 images");
  check_sets(samples, reference, options.size, kKid);
  NumpyShuffle shuffle(options.seed);
  std::vector<double> values;
  for (std::int64_t i = 0; i < options.subsets; ++i) {
    std::vector<std::int64_t> x = shuffle.permutation(samples.shape[0]), y = shuffle.permutation(reference.shape[0]);
    x.resize(static_cast<std::size_t>(options.size));
    y.resize(static_cast<std::size_t>(options.size));
    values.push_back(distance({samples, "samples", x}, {reference, "reference", y}));
  }
  KernelDistance result;
  const auto count = static_cast<double>(values.size());
  for (const double value : values) result.mean += value / count;
  for (const double value : values) result.deviation += (value - result.mean) * (value - result.mean) / count;
  result.deviation = std::sqrt(result.deviation);
  return result;
}

}  // namespace mhla
