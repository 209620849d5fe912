// A dense matrix in f64, row-major: what the analysis tools compute on.
#pragma once

#include <cstdint>
#include <vector>

#include "mhla/core/view.h"

namespace mhla {

struct Matrix {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::vector<double> values;  // [rows, columns]

  Matrix() = default;
  Matrix(std::int64_t rows, std::int64_t columns);  // zeros
  explicit Matrix(const ConstView& view);           // a copy of a rank 2 view: any float dtype, any strides, CPU

  [[nodiscard]] double* row(std::int64_t i) { return values.data() + i * columns; }
  [[nodiscard]] const double* row(std::int64_t i) const { return values.data() + i * columns; }
  [[nodiscard]] double& at(std::int64_t i, std::int64_t j) { return values[i * columns + j]; }
  [[nodiscard]] double at(std::int64_t i, std::int64_t j) const { return values[i * columns + j]; }
};

Matrix transposed(const Matrix& matrix);

// Throws mhla::Error naming `entry`, `name` and the first entry that is NaN or infinite.
void check_finite(const Matrix& matrix, const char* entry, const char* name);

}  // namespace mhla
