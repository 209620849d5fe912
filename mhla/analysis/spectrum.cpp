#include "mhla/analysis/spectrum.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "mhla/core/error.h"

namespace mhla {
namespace {

constexpr double kEps = std::numeric_limits<double>::epsilon();

}  // namespace

// LAPACK: the singular values of a column-major [m, n] matrix, which is destroyed. Arguments are 32-bit, as Debian
// builds it.
extern "C" void dgesdd_(const char* job, const int* m, const int* n, double* a, const int* lda, double* s, double* u,
                        const int* ldu, double* vt, const int* ldvt, double* work, const int* lwork, int* iwork,
                        int* info);

std::vector<double> singular_values(const Matrix& matrix) {
  check_finite(matrix, "singular_values", "matrix");
  if (std::max(matrix.rows, matrix.columns) > std::numeric_limits<int>::max())
    fail("singular_values: matrix has shape [", matrix.rows, ", ", matrix.columns, "], expected sides below 2^31");
  // Rows one after the other are the columns of the transposed matrix, whose singular values are the same.
  const int m = static_cast<int>(matrix.columns), n = static_cast<int>(matrix.rows), least = std::min(m, n), one = 1;
  std::vector<double> values(static_cast<std::size_t>(least));
  if (least == 0) return values;
  std::vector<double> a = matrix.values;
  std::vector<int> integers(static_cast<std::size_t>(8) * static_cast<std::size_t>(least));
  double size = 0.0;
  int count = -1, info = 0;  // -1 asks for the size of the workspace
  dgesdd_("N", &m, &n, a.data(), &m, values.data(), nullptr, &one, nullptr, &one, &size, &count, integers.data(),
          &info);
  std::vector<double> work(static_cast<std::size_t>(size));
  count = static_cast<int>(work.size());
  dgesdd_("N", &m, &n, a.data(), &m, values.data(), nullptr, &one, nullptr, &one, work.data(), &count, integers.data(),
          &info);
  if (info != 0) fail("singular_values: LAPACK's dgesdd ended with info ", info);
  return values;
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
