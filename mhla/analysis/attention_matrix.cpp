#include "mhla/analysis/attention_matrix.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "mhla/core/error.h"

namespace mhla {
namespace {

void check_qk(const Matrix& q, const Matrix& k, const char* entry) {
  if (q.rows != k.rows || q.columns != k.columns) {
    fail(entry, ": k has shape [", k.rows, ", ", k.columns, "], expected [", q.rows, ", ", q.columns, "] as q has");
  }
}

Matrix apply(const Matrix& x, FeatureFunction feature, const char* entry) {
  if (feature == nullptr) fail(entry, ": feature is null, expected a function");
  Matrix result = x;
  for (double& value : result.values) value = feature(value);
  return result;
}

// q k^T; with `causal` only s <= t, zeros elsewhere.
Matrix products(const Matrix& q, const Matrix& k, bool causal) {
  Matrix result(q.rows, q.rows);
  for (std::int64_t t = 0; t < q.rows; ++t) {
    const double* x = q.row(t);
    for (std::int64_t s = 0; s < (causal ? t + 1 : q.rows); ++s) {
      const double* y = k.row(s);
      double sum = 0.0;
      for (std::int64_t d = 0; d < q.columns; ++d) sum += x[d] * y[d];
      result.at(t, s) = sum;
    }
  }
  return result;
}

void normalize_rows(Matrix& weights, double eps, const char* entry) {
  if (!std::isfinite(eps)) fail(entry, ": eps is ", eps, ", expected a finite number");
  for (std::int64_t t = 0; t < weights.rows; ++t) {
    double* row = weights.row(t);
    double sum = 0.0;
    for (std::int64_t s = 0; s < weights.columns; ++s) sum += row[s];
    for (std::int64_t s = 0; s < weights.columns; ++s) row[s] /= eps + sum;
  }
}

}  // namespace

double feature::relu(double x) { return x < 0.0 ? 0.0 : x; }
double feature::relu_eps(double x) { return relu(x) + 1e-6; }
double feature::elu1(double x) { return x > 0.0 ? x + 1.0 : std::exp(x); }
double feature::identity(double x) { return x; }

Matrix softmax_attention(const Matrix& q, const Matrix& k, const AttentionOptions& options) {
  check_qk(q, k, "softmax_attention");
  const double scale =
      options.scale.value_or(1.0 / std::sqrt(static_cast<double>(std::max<std::int64_t>(q.columns, 1))));
  if (!std::isfinite(scale)) fail("softmax_attention: scale is ", scale, ", expected a finite number");
  Matrix weights = products(q, k, options.causal);
  for (std::int64_t t = 0; t < weights.rows; ++t) {
    double* row = weights.row(t);
    const std::int64_t end = options.causal ? t + 1 : weights.columns;
    double largest = -std::numeric_limits<double>::infinity();
    for (std::int64_t s = 0; s < end; ++s) largest = std::max(largest, scale * row[s]);
    double sum = 0.0;
    for (std::int64_t s = 0; s < end; ++s) {
      row[s] = std::exp(scale * row[s] - largest);
      sum += row[s];
    }
    for (std::int64_t s = 0; s < end; ++s) row[s] /= sum;
  }
  return weights;
}

Matrix linear_attention(const Matrix& q, const Matrix& k, const AttentionOptions& options) {
  constexpr const char* kEntry = "linear_attention";
  check_qk(q, k, kEntry);
  Matrix weights = products(apply(q, options.feature, kEntry), apply(k, options.feature, kEntry), options.causal);
  if (options.normalize) normalize_rows(weights, options.eps, kEntry);
  return weights;
}

Matrix mhla_attention(const Matrix& q, const Matrix& k, std::span<const std::int64_t> block_of, const Matrix& mix,
                      const AttentionOptions& options) {
  constexpr const char* kEntry = "mhla_attention";
  check_qk(q, k, kEntry);
  if (static_cast<std::int64_t>(block_of.size()) != q.rows) {
    fail(kEntry, ": block_of has ", block_of.size(), " entries, expected ", q.rows, " (N)");
  }
  if (mix.rows != mix.columns) {
    fail(kEntry, ": mix has shape [", mix.rows, ", ", mix.columns, "], expected [M, M]");
  }
  for (std::size_t t = 0; t < block_of.size(); ++t) {
    if (block_of[t] < 0 || block_of[t] >= mix.rows) {
      fail(kEntry, ": block_of[", t, "] is ", block_of[t], ", expected 0 to ", mix.rows - 1, " (M = ", mix.rows, ")");
    }
  }
  Matrix weights = products(apply(q, options.feature, kEntry), apply(k, options.feature, kEntry), options.causal);
  for (std::int64_t t = 0; t < weights.rows; ++t) {
    double* row = weights.row(t);
    const double* coefficients = mix.row(block_of[t]);
    // Entries above the diagonal stay untouched: a causal mix may hold anything there.
    const std::int64_t end = options.causal ? t + 1 : weights.columns;
    for (std::int64_t s = 0; s < end; ++s) row[s] *= coefficients[block_of[s]];
  }
  if (options.normalize) normalize_rows(weights, options.eps, kEntry);
  return weights;
}

}  // namespace mhla
