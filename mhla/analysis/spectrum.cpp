#include "mhla/analysis/spectrum.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "mhla/core/error.h"

namespace mhla {
namespace {

constexpr double kEps = std::numeric_limits<double>::epsilon();
constexpr int kMaxSweeps = 100;      // QL needs about 1.7 per eigenvalue
constexpr double kNothing = 1e-280;  // squares of a vector in a matrix whose largest element is 1; 1 / them is finite

// H = I - beta u u^T maps x to (alpha, 0, ..., 0).
struct Reflector {
  double alpha = 0.0;
  double beta = 0.0;
};

// Overwrites x, of `count` elements `stride` apart, by u. A vector of nothing needs no reflection: beta = 0.
Reflector reflect(double* x, std::int64_t count, std::int64_t stride) {
  double squares = 0.0;
  for (std::int64_t i = 0; i < count; ++i) squares += x[i * stride] * x[i * stride];
  if (squares < kNothing) return {};
  const double norm = std::sqrt(squares);
  const double first = x[0];
  const double alpha = first > 0.0 ? -norm : norm;  // away from x[0]: no cancellation in u[0]
  x[0] = first - alpha;
  return {alpha, 1.0 / (norm * (norm + std::abs(first)))};
}

double dot(const double* x, const double* y, std::int64_t count) {
  double sums[4] = {};  // four chains: additions overlap
  std::int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    for (int lane = 0; lane < 4; ++lane) sums[lane] += x[i + lane] * y[i + lane];
  }
  for (; i < count; ++i) sums[0] += x[i] * y[i];
  return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}

void add_scaled(double* x, double factor, const double* y, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) x[i] += factor * y[i];
}

struct Bidiagonal {
  std::vector<double> diagonal;  // n
  std::vector<double> above;     // n - 1
};

// Q^T A P with rows >= columns. Each step reads the trailing matrix once for w = beta A^T u, and once more to apply
// the left and the right reflector together: row by row, while the row is in the first-level cache.
Bidiagonal bidiagonalize(Matrix a) {
  const std::int64_t m = a.rows;
  const std::int64_t n = a.columns;
  Bidiagonal result;
  std::vector<double> w(static_cast<std::size_t>(n));
  for (std::int64_t k = 0; k < n; ++k) {
    const Reflector left = reflect(&a.at(k, k), m - k, n);
    result.diagonal.push_back(left.alpha);
    const std::int64_t rest = n - k - 1;
    if (rest == 0) break;
    std::fill(w.begin(), w.begin() + rest, 0.0);
    for (std::int64_t r = k; r < m; ++r) add_scaled(w.data(), left.beta * a.at(r, k), a.row(r) + k + 1, rest);
    double* top = a.row(k) + k + 1;
    add_scaled(top, -a.at(k, k), w.data(), rest);
    const Reflector right = reflect(top, rest, 1);
    result.above.push_back(right.alpha);
    for (std::int64_t r = k + 1; r < m; ++r) {
      double* row = a.row(r) + k + 1;
      add_scaled(row, -a.at(r, k), w.data(), rest);
      add_scaled(row, -right.beta * dot(row, top, rest), top, rest);
    }
  }
  return result;
}

// Eigenvalues of the symmetric tridiagonal matrix with diagonal d and off-diagonal e (same length, last unused), in
// place, unordered: implicit QL with Wilkinson's shift. Off-diagonals below eps * norm are dropped; they would
// otherwise be chased to zero through blocks of zero eigenvalues, which a matrix of low rank is full of.
void tridiagonal_eigenvalues(std::vector<double>& d, std::vector<double>& e, double norm) {
  const auto n = static_cast<std::int64_t>(d.size());
  const double negligible = 0.5 * kEps * norm;
  for (std::int64_t l = 0; l < n; ++l) {
    for (int sweep = 0;; ++sweep) {
      std::int64_t m = l;
      while (m < n - 1 && std::abs(e[m]) > negligible) ++m;
      if (m == l) break;
      if (sweep == kMaxSweeps) fail("singular_values: no convergence after ", kMaxSweeps, " sweeps at value ", l);
      const double slope = (d[l + 1] - d[l]) / (2.0 * e[l]);
      double g = d[m] - d[l] + e[l] / (slope + std::copysign(std::hypot(slope, 1.0), slope));
      double sine = 1.0, cosine = 1.0, shift = 0.0;
      std::int64_t i = m - 1;
      for (; i >= l; --i) {
        const double f = sine * e[i];
        const double b = cosine * e[i];
        const double r = std::sqrt(f * f + g * g);
        e[i + 1] = r;
        if (r == 0.0) {  // the chase ended early: the block splits here
          d[i + 1] -= shift;
          e[m] = 0.0;
          break;
        }
        sine = f / r;
        cosine = g / r;
        g = d[i + 1] - shift;
        const double turned = (d[i] - g) * sine + 2.0 * cosine * b;
        shift = sine * turned;
        d[i + 1] = g + shift;
        g = cosine * turned - b;
      }
      if (i >= l) continue;
      d[l] -= shift;
      e[l] = g;
      e[m] = 0.0;
    }
  }
}

}  // namespace

std::vector<double> singular_values(const Matrix& matrix) {
  check_finite(matrix, "singular_values", "matrix");
  Matrix a = matrix.rows >= matrix.columns ? matrix : transposed(matrix);
  const std::int64_t n = a.columns;
  double largest = 0.0;
  for (const double value : a.values) largest = std::max(largest, std::abs(value));
  if (largest == 0.0) return std::vector<double>(static_cast<std::size_t>(n), 0.0);
  for (double& value : a.values) value /= largest;  // squares can neither overflow nor vanish together

  // The eigenvalues of [0 B; B^T 0] are +-sigma. Reordered, it is tridiagonal with a zero diagonal and
  // d_0, e_0, d_1, e_1, ... beside it.
  const Bidiagonal b = bidiagonalize(std::move(a));
  std::vector<double> diagonal(static_cast<std::size_t>(2 * n), 0.0);
  std::vector<double> beside(static_cast<std::size_t>(2 * n), 0.0);
  double norm = 0.0;
  for (std::int64_t k = 0; k < n; ++k) {
    beside[2 * k] = b.diagonal[k];
    if (k + 1 < n) beside[2 * k + 1] = b.above[k];
    norm = std::max(norm, std::abs(beside[2 * k]) + std::abs(beside[2 * k + 1]));
  }
  tridiagonal_eigenvalues(diagonal, beside, norm);
  std::sort(diagonal.begin(), diagonal.end(), std::greater<>());
  diagonal.resize(static_cast<std::size_t>(n));  // the upper half; zeros come as pairs of rounding errors
  for (double& sigma : diagonal) sigma = std::max(sigma, 0.0) * largest;
  return diagonal;
}

double rank_tolerance(std::int64_t rows, std::int64_t columns, DType computed_in) {
  double eps = kEps;
  switch (computed_in) {
    case DType::kF64: break;
    case DType::kF32: eps = std::numeric_limits<float>::epsilon(); break;
    case DType::kF16: eps = 0x1p-10; break;
    case DType::kBF16: eps = 0x1p-7; break;
    default: fail("rank_tolerance: dtype ", name_of(computed_in), ", expected a float type");
  }
  return static_cast<double>(std::max(rows, columns)) * eps;
}

std::int64_t numerical_rank(std::span<const double> singular, double relative_tolerance) {
  if (!(relative_tolerance >= 0.0)) {
    fail("numerical_rank: relative_tolerance is ", relative_tolerance, ", expected at least 0");
  }
  double largest = 0.0;
  for (const double sigma : singular) largest = std::max(largest, sigma);
  return std::count_if(singular.begin(), singular.end(),
                       [&](double sigma) { return sigma > relative_tolerance * largest; });
}

double effective_rank(std::span<const double> singular) {
  double sum = 0.0;
  for (const double sigma : singular) sum += sigma;
  if (sum == 0.0) return 0.0;
  double entropy = 0.0;
  for (const double sigma : singular) {
    if (sigma != 0.0) entropy -= sigma / sum * std::log(sigma / sum);
  }
  return std::exp(entropy);
}

}  // namespace mhla
