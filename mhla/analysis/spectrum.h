// Singular values of a dense matrix, and two ranks read from them.
// LAPACK computes them (dgesdd), without forming A A^T, so small values are not squared away. Every value is right to a
// small multiple of eps * sigma_max (eps = 2.2e-16); values below that are noise.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "mhla/analysis/matrix.h"
#include "mhla/core/dtype.h"

namespace mhla {

// Descending, min(rows, columns) of them. Refuses NaN and infinity.
std::vector<double> singular_values(const Matrix& matrix);

// max(rows, columns) * eps of the type the entries were computed in: what NumPy and MATLAB use, f64 for the matrices
// of attention_matrix.h. Entries that came out of f32 arithmetic need the f32 value, or their noise counts as rank.
double rank_tolerance(std::int64_t rows, std::int64_t columns, DType computed_in = DType::kF64);

// Number of values above relative_tolerance * the largest.
std::int64_t numerical_rank(std::span<const double> singular, double relative_tolerance);

// exp of the Shannon entropy of sigma / sum sigma: 1 for one direction, N for N equal ones, and smooth between.
// No threshold enters. 0 for a matrix of zeros.
double effective_rank(std::span<const double> singular);

}  // namespace mhla
