// Matrices whose every element is a value of the type T, and the few operations plain code is made of.
// An operation computes in f32 (f64 for f64) and rounds its result to T once, as eager PyTorch does.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "mhla/core/dtype.h"

namespace mhla::eager {

template <class T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class T>
Wide<T> rounded(Wide<T> x) {
  if constexpr (std::is_same_v<T, bf16>) return to_f32(to_bf16(x));
  if constexpr (std::is_same_v<T, f16>) return to_f32(to_f16(x));
  return x;
}

template <class T>
struct Matrix {
  std::int64_t rows = 0, columns = 0;
  std::vector<Wide<T>> data;

  Matrix() = default;
  Matrix(std::int64_t r, std::int64_t c) : rows(r), columns(c), data(static_cast<std::size_t>(r * c)) {}
  Wide<T>* row(std::int64_t r) { return data.data() + r * columns; }
  const Wide<T>* row(std::int64_t r) const { return data.data() + r * columns; }
  Wide<T>& operator()(std::int64_t r, std::int64_t c) { return data[static_cast<std::size_t>(r * columns + c)]; }
  Wide<T> operator()(std::int64_t r, std::int64_t c) const { return data[static_cast<std::size_t>(r * columns + c)]; }

  [[nodiscard]] Matrix slice(std::int64_t begin, std::int64_t end) const {  // rows [begin, end)
    Matrix part(end - begin, columns);
    std::copy(row(begin), row(end), part.data.begin());
    return part;
  }
  void put(std::int64_t begin, const Matrix& part) { std::copy(part.data.begin(), part.data.end(), row(begin)); }
  [[nodiscard]] Matrix reshaped(std::int64_t r, std::int64_t c) const {
    Matrix other = *this;
    other.rows = r, other.columns = c;
    return other;
  }
  [[nodiscard]] Matrix transposed() const {
    Matrix other(columns, rows);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < columns; ++c) other(c, r) = (*this)(r, c);
    }
    return other;
  }
};

// a b, summed like a BLAS: fused multiply-adds in order inside stretches of 256, stretches added in order.
template <class T>
Matrix<T> matmul(const Matrix<T>& a, const Matrix<T>& b) {
  using W = Wide<T>;
  constexpr std::int64_t kStretch = 256;
  Matrix<T> out(a.rows, b.columns);
  std::vector<W> stretch(static_cast<std::size_t>(b.columns));
  for (std::int64_t r = 0; r < a.rows; ++r) {
    W* const total = out.row(r);
    for (std::int64_t begin = 0; begin < a.columns; begin += kStretch) {
      std::fill(stretch.begin(), stretch.end(), W{0});
      for (std::int64_t k = begin; k < std::min(begin + kStretch, a.columns); ++k) {
        const double factor = a(r, k);
        const W* const from = b.row(k);
        // f32: the product is exact in f64, so this rounds like a fused multiply-add.
        for (std::int64_t c = 0; c < b.columns; ++c) stretch[c] = static_cast<W>(stretch[c] + factor * from[c]);
      }
      for (std::int64_t c = 0; c < b.columns; ++c) total[c] += stretch[c];
    }
    for (std::int64_t c = 0; c < b.columns; ++c) total[c] = rounded<T>(total[c]);
  }
  return out;
}

template <class T, class F>
Matrix<T> map(const Matrix<T>& a, const F& f) {
  Matrix<T> out(a.rows, a.columns);
  for (std::size_t j = 0; j < a.data.size(); ++j) out.data[j] = rounded<T>(f(a.data[j]));
  return out;
}

template <class T, class F>
Matrix<T> zip(const Matrix<T>& a, const Matrix<T>& b, const F& f) {
  Matrix<T> out(a.rows, a.columns);
  for (std::size_t j = 0; j < a.data.size(); ++j) out.data[j] = rounded<T>(f(a.data[j], b.data[j]));
  return out;
}

template <class T>
Matrix<T> add(const Matrix<T>& a, const Matrix<T>& b) {
  return zip(a, b, [](auto x, auto y) { return x + y; });
}

template <class T>
Matrix<T> scaled(const Matrix<T>& a, Wide<T> factor) {
  return map(a, [factor](auto x) { return x * factor; });
}

// Column b [rows, 1] beside every column of a.
template <class T>
Matrix<T> times_column(const Matrix<T>& a, const Matrix<T>& b) {
  Matrix<T> out(a.rows, a.columns);
  for (std::int64_t r = 0; r < a.rows; ++r) {
    for (std::int64_t c = 0; c < a.columns; ++c) out(r, c) = rounded<T>(a(r, c) * b(r, 0));
  }
  return out;
}

template <class T>
Matrix<T> over_column(const Matrix<T>& a, const Matrix<T>& b) {
  Matrix<T> out(a.rows, a.columns);
  for (std::int64_t r = 0; r < a.rows; ++r) {
    for (std::int64_t c = 0; c < a.columns; ++c) out(r, c) = rounded<T>(a(r, c) / b(r, 0));
  }
  return out;
}

// Sum over rows: [1, columns]. In partial sums of 16, like the cascade of torch.sum.
template <class T>
Matrix<T> sum_rows(const Matrix<T>& a) {
  Matrix<T> out(1, a.columns);
  for (std::int64_t c = 0; c < a.columns; ++c) {
    Wide<T> total = 0;
    for (std::int64_t begin = 0; begin < a.rows; begin += 16) {
      Wide<T> part = 0;
      for (std::int64_t r = begin; r < std::min(begin + 16, a.rows); ++r) part += a(r, c);
      total += part;
    }
    out(0, c) = rounded<T>(total);
  }
  return out;
}

template <class T>
Matrix<T> sum_columns(const Matrix<T>& a) {  // [rows, 1]
  return sum_rows(a.transposed()).transposed();
}

}  // namespace mhla::eager
