#include "mhla/analysis/matrix.h"

#include <cmath>

#include "mhla/core/error.h"

namespace mhla {

Matrix::Matrix(std::int64_t rows_, std::int64_t columns_)
    : rows(rows_),
      columns(columns_),
      values(static_cast<std::size_t>(checked_product({rows_, columns_}, "matrix")), 0.0) {}

Matrix::Matrix(const ConstView& view) {
  if (view.rank != 2) fail("Matrix: view has shape ", shape_text(view), ", expected [rows, columns]");
  if (!is_float(view.dtype)) fail("Matrix: view has dtype ", name_of(view.dtype), ", expected a float type");
  if (view.device != kCpu) fail("Matrix: view is on cuda:", view.device, ", expected host memory");
  if (view.numel() > 0 && view.data == nullptr) {
    fail("Matrix: view of shape ", shape_text(view), " has null data, expected memory");
  }
  *this = Matrix(view.shape[0], view.shape[1]);
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) {
      at(i, j) = load_f64(view.data, view.dtype, i * view.stride[0] + j * view.stride[1]);
    }
  }
}

Matrix transposed(const Matrix& matrix) {
  Matrix result(matrix.columns, matrix.rows);
  for (std::int64_t i = 0; i < matrix.rows; ++i) {
    for (std::int64_t j = 0; j < matrix.columns; ++j) result.at(j, i) = matrix.at(i, j);
  }
  return result;
}

void check_finite(const Matrix& matrix, const char* entry, const char* name) {
  for (std::int64_t i = 0; i < matrix.rows; ++i) {
    for (std::int64_t j = 0; j < matrix.columns; ++j) {
      if (!std::isfinite(matrix.at(i, j))) {
        fail(entry, ": ", name, "[", i, ", ", j, "] is ", matrix.at(i, j), ", expected finite entries");
      }
    }
  }
}

}  // namespace mhla
