#include "mhla/kernels/mixing/mix_matrix.h"

#include <cmath>

#include "mhla/core/error.h"

namespace mhla {
namespace {

std::int64_t offset(const ConstView& mix, std::int64_t head, std::int64_t i, std::int64_t b) {
  const int r = mix.rank;
  const std::int64_t head_offset = r == 3 ? head * mix.stride[0] : 0;
  return head_offset + i * mix.stride[r - 2] + b * mix.stride[r - 1];
}

}  // namespace

MixMatrix::MixMatrix(std::int64_t heads_, std::int64_t rows_)
    : heads(heads_),
      rows(rows_),
      values(static_cast<std::size_t>(checked_product({heads_, rows_, rows_}, "mixing matrix")), 0.0) {}

MixSize check_mix_view(const ConstView& mix, const char* entry, const char* name) {
  if (mix.rank != 2 && mix.rank != 3) {
    fail(entry, ": ", name, " has shape ", shape_text(mix), ", expected [M, M] or [heads, M, M]");
  }
  const std::int64_t heads = mix.rank == 3 ? mix.shape[0] : 1;
  const std::int64_t rows = mix.shape[mix.rank - 2];
  const std::int64_t columns = mix.shape[mix.rank - 1];
  if (rows != columns || heads < 0 || rows < 0) {
    fail(entry, ": ", name, " has shape ", shape_text(mix), ", expected [M, M] or [heads, M, M]");
  }
  if (mix.dtype != DType::kF32 && mix.dtype != DType::kF64) {
    fail(entry, ": ", name, " has dtype ", name_of(mix.dtype), ", expected f32 or f64");
  }
  if (mix.device != kCpu) fail(entry, ": ", name, " is on cuda:", mix.device, ", expected host memory");
  if (mix.numel() > 0 && mix.data == nullptr) {
    fail(entry, ": ", name, " of shape ", shape_text(mix), " has null data, expected memory");
  }
  return {heads, rows};
}

MixSize check_mix_output(const ConstView& mix, const char* entry, const char* name) {
  const MixSize size = check_mix_view(mix, entry, name);
  for (int axis = 0; axis < mix.rank; ++axis) {
    if (mix.shape[axis] > 1 && mix.stride[axis] == 0) {
      fail(entry, ": ", name, " of shape ", shape_text(mix), " has stride 0 on axis ", axis,
           ", expected elements that do not overlap");
    }
  }
  return size;
}

MixMatrix load_mix(const ConstView& mix, const char* entry, const char* name) {
  const MixSize size = check_mix_view(mix, entry, name);
  MixMatrix matrix(size.heads, size.rows);
  for (std::int64_t h = 0; h < size.heads; ++h) {
    for (std::int64_t i = 0; i < size.rows; ++i) {
      double* row = matrix.row(h, i);
      for (std::int64_t b = 0; b < size.rows; ++b) row[b] = load_f64(mix.data, mix.dtype, offset(mix, h, i, b));
    }
  }
  return matrix;
}

void store_mix(const MixMatrix& matrix, const View& mix) {
  for (std::int64_t h = 0; h < matrix.heads; ++h) {
    for (std::int64_t i = 0; i < matrix.rows; ++i) {
      const double* row = matrix.row(h, i);
      for (std::int64_t b = 0; b < matrix.rows; ++b) store_f64(mix.data, mix.dtype, offset(mix, h, i, b), row[b]);
    }
  }
}

void check_finite(const MixMatrix& matrix, bool causal, const char* entry, const char* name) {
  for (std::int64_t h = 0; h < matrix.heads; ++h) {
    for (std::int64_t i = 0; i < matrix.rows; ++i) {
      const double* row = matrix.row(h, i);
      const std::int64_t end = causal ? i + 1 : matrix.rows;
      for (std::int64_t b = 0; b < end; ++b) {
        if (!std::isfinite(row[b])) {
          fail(entry, ": ", name, "[", h, ", ", i, ", ", b, "] (head, row, column) is ", row[b],
               ", expected finite entries");
        }
      }
    }
  }
}

}  // namespace mhla
