#include "mhla/analysis/head_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "mhla/analysis/spectrum.h"
#include "mhla/core/error.h"

namespace mhla {
namespace {

constexpr const char* kEntry = "HeadAttention";

std::int64_t blocks(const HeadAttention& head) { return head.mix.rows == 0 ? 1 : head.mix.rows; }
std::int64_t block_of(const HeadAttention& head, std::int64_t t) {
  return head.mix.rows == 0 ? 0 : head.block_of[static_cast<std::size_t>(t)];
}

double dot(const double* x, const double* y, std::int64_t count) {
  double sum = 0.0;
  for (std::int64_t d = 0; d < count; ++d) sum += x[d] * y[d];
  return sum;
}

// R of A = U R, [min(rows, columns), columns], by Householder reflections; A itself where it is wide.
Matrix triangle_of(Matrix a) {
  const std::int64_t rows = a.rows, columns = a.columns;
  if (rows <= columns) return a;
  std::vector<double> v(static_cast<std::size_t>(rows));
  for (std::int64_t j = 0; j < columns; ++j) {
    double norm = 0.0;
    for (std::int64_t i = j; i < rows; ++i) norm = std::hypot(norm, a.at(i, j));
    if (norm == 0.0) continue;
    double squares = 0.0;  // of v over the norm: dead features leave columns whose own squares vanish
    for (std::int64_t i = j; i < rows; ++i) {
      v[static_cast<std::size_t>(i)] = a.at(i, j) / norm + (i == j ? std::copysign(1.0, a.at(j, j)) : 0.0);
      squares += v[static_cast<std::size_t>(i)] * v[static_cast<std::size_t>(i)];
    }
    for (std::int64_t c = j; c < columns; ++c) {
      double sum = 0.0;
      for (std::int64_t i = j; i < rows; ++i) sum += v[static_cast<std::size_t>(i)] * a.at(i, c);
      const double factor = 2.0 * sum / squares;
      for (std::int64_t i = j; i < rows; ++i) a.at(i, c) -= factor * v[static_cast<std::size_t>(i)];
    }
    for (std::int64_t i = j + 1; i < rows; ++i) a.at(i, j) = 0.0;
  }
  a.rows = columns;
  a.values.resize(static_cast<std::size_t>(columns * columns));
  return a;
}

// Triangles of the blocks of x, rows divided by den where there is one.
std::vector<Matrix> block_triangles(const HeadAttention& head, const Matrix& x, const std::vector<double>& den) {
  std::vector<std::vector<std::int64_t>> tokens(static_cast<std::size_t>(blocks(head)));
  for (std::int64_t t = 0; t < x.rows; ++t) tokens[static_cast<std::size_t>(block_of(head, t))].push_back(t);
  std::vector<Matrix> result;
  for (const std::vector<std::int64_t>& inside : tokens) {
    Matrix part(static_cast<std::int64_t>(inside.size()), x.columns);
    for (std::size_t i = 0; i < inside.size(); ++i) {
      const double divisor = den.empty() ? 1.0 : den[static_cast<std::size_t>(inside[i])];
      for (std::int64_t d = 0; d < x.columns; ++d)
        part.at(static_cast<std::int64_t>(i), d) = x.at(inside[i], d) / divisor;
    }
    result.push_back(triangle_of(std::move(part)));
  }
  return result;
}

std::int64_t core_side(const HeadAttention& head) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(blocks(head)));
  for (std::int64_t t = 0; t < head.q.rows; ++t) ++sizes[static_cast<std::size_t>(block_of(head, t))];
  std::int64_t side = 0;
  for (const std::int64_t size : sizes) side += std::min(size, head.q.columns);
  return side;
}

// [mix[i,b] R_i T_b^T], which has the singular values of A.
Matrix core_matrix(const HeadAttention& head) {
  const std::vector<Matrix> left = block_triangles(head, head.q, head.den), right = block_triangles(head, head.k, {});
  const std::int64_t side = core_side(head);
  Matrix core(side, side);
  std::int64_t row = 0;
  for (std::size_t i = 0; i < left.size(); ++i) {
    std::int64_t column = 0;
    for (std::size_t b = 0; b < right.size(); ++b) {
      const double weight =
          head.mix.rows == 0 ? 1.0 : head.mix.at(static_cast<std::int64_t>(i), static_cast<std::int64_t>(b));
      for (std::int64_t r = 0; r < left[i].rows; ++r)
        for (std::int64_t c = 0; c < right[b].rows; ++c)
          core.at(row + r, column + c) = weight * dot(left[i].row(r), right[b].row(c), head.q.columns);
      column += right[b].rows;
    }
    row += left[i].rows;
  }
  return core;
}

}  // namespace

void check(const HeadAttention& head) {
  const std::int64_t N = head.q.rows;
  if (N < 1 || head.q.columns < 1 || head.k.rows != N || head.k.columns != head.q.columns)
    fail(kEntry, ": q is [", N, ", ", head.q.columns, "] and k [", head.k.rows, ", ", head.k.columns,
         "], expected the same shape, not empty");
  check_finite(head.q, kEntry, "q"), check_finite(head.k, kEntry, "k");
  if (head.softmax) {
    if (!std::isfinite(head.scale)) fail(kEntry, ": scale is ", head.scale, ", expected a finite number");
    return;
  }
  if (static_cast<std::int64_t>(head.den.size()) != N)
    fail(kEntry, ": den has ", head.den.size(), " entries, expected ", N, " (N)");
  for (std::size_t t = 0; t < head.den.size(); ++t)
    if (!std::isfinite(head.den[t]) || head.den[t] == 0.0)
      fail(kEntry, ": den[", t, "] is ", head.den[t], ", expected a finite number that is not 0");
  if (head.mix.rows == 0) return;
  if (head.mix.rows != head.mix.columns)
    fail(kEntry, ": mix has shape [", head.mix.rows, ", ", head.mix.columns, "], expected [M, M]");
  check_finite(head.mix, kEntry, "mix");
  if (static_cast<std::int64_t>(head.block_of.size()) != N)
    fail(kEntry, ": block_of has ", head.block_of.size(), " entries, expected ", N, " (N)");
  for (const std::int64_t b : head.block_of)
    if (b < 0 || b >= head.mix.rows) fail(kEntry, ": block_of has ", b, ", expected 0 to ", head.mix.rows - 1);
}

void attention_row(const HeadAttention& head, std::int64_t t, double* weights) {
  const std::int64_t N = head.q.rows, D = head.q.columns;
  const double* q = head.q.row(t);
  if (!head.softmax) {
    const double* mix = head.mix.rows == 0 ? nullptr : head.mix.row(block_of(head, t));
    const double den = head.den[static_cast<std::size_t>(t)];
    for (std::int64_t s = 0; s < N; ++s)
      weights[s] = dot(q, head.k.row(s), D) * (mix == nullptr ? 1.0 : mix[block_of(head, s)]) / den;
    return;
  }
  double largest = -std::numeric_limits<double>::infinity(), sum = 0.0;
  for (std::int64_t s = 0; s < N; ++s) {
    weights[s] = head.scale * dot(q, head.k.row(s), D);
    largest = std::max(largest, weights[s]);
  }
  for (std::int64_t s = 0; s < N; ++s) sum += weights[s] = std::exp(weights[s] - largest);
  for (std::int64_t s = 0; s < N; ++s) weights[s] /= sum;
}

Matrix attention_matrix(const HeadAttention& head) {
  check(head);
  Matrix A(head.q.rows, head.q.rows);
  for (std::int64_t t = 0; t < A.rows; ++t) attention_row(head, t, A.row(t));
  return A;
}

std::int64_t rank_bound(const HeadAttention& head) {
  check(head);
  const std::int64_t N = head.q.rows, D = head.q.columns;
  if (head.softmax) return N;
  if (head.mix.rows == 0) return std::min(N, D);
  const std::vector<double> sigma = singular_values(head.mix);
  const std::int64_t rank = numerical_rank(sigma, rank_tolerance(head.mix.rows, head.mix.columns, DType::kF32));
  return std::min({N, D * rank, core_side(head)});
}

const char* name_of(SpectrumMethod method) {
  constexpr const char* kNames[] = {"dense", "blocks", "rows"};
  return kNames[static_cast<int>(method)];
}

std::vector<double> attention_spectrum(const HeadAttention& head, std::int64_t largest, SpectrumMethod& method) {
  check(head);
  method = SpectrumMethod::kNone;
  const std::int64_t side = head.softmax ? head.q.rows : core_side(head);
  if (side > largest) return {};
  method = side < head.q.rows ? SpectrumMethod::kBlocks : SpectrumMethod::kDense;
  return singular_values(method == SpectrumMethod::kBlocks ? core_matrix(head) : attention_matrix(head));
}

double stable_rank_by_rows(const HeadAttention& head) {
  check(head);
  const auto N = static_cast<std::size_t>(head.q.rows);
  std::vector<double> row(N), x(N, 1.0 / std::sqrt(static_cast<double>(N))), y(N);
  double squares = 0.0, sigma = 0.0;
  constexpr int kMost = 500;                  // a gap of 1 % between the largest two needs about that many
  for (int step = 0; step < kMost; ++step) {  // y = A^T A x: its length goes to sigma_max^2
    std::fill(y.begin(), y.end(), 0.0);
    double frobenius = 0.0;
    for (std::size_t t = 0; t < N; ++t) {
      attention_row(head, static_cast<std::int64_t>(t), row.data());
      const double seen = dot(row.data(), x.data(), head.q.rows);
      for (std::size_t s = 0; s < N; ++s) y[s] += seen * row[s];
      if (step == 0) frobenius += dot(row.data(), row.data(), head.q.rows);
    }
    if (step == 0) squares = frobenius;
    const double length = std::sqrt(dot(y.data(), y.data(), head.q.rows));
    if (length == 0.0) return 0.0;
    for (std::size_t s = 0; s < N; ++s) x[s] = y[s] / length;
    const bool settled = std::abs(length - sigma) <= 1e-12 * length;
    sigma = length;
    if (settled) break;
  }
  return squares / sigma;
}

HeadSummary summarize(const HeadAttention& head, std::int64_t largest) {
  HeadSummary summary;
  const std::vector<double> sigma = attention_spectrum(head, largest, summary.method);
  if (summary.method == SpectrumMethod::kNone) {
    summary.stable_rank = stable_rank_by_rows(head);
  } else {
    // q, k and mix were computed in f32: below its noise there is no rank, in the bound neither.
    summary.rank = numerical_rank(sigma, rank_tolerance(head.q.rows, head.q.rows, DType::kF32));
    summary.rank_1pc = numerical_rank(sigma, 0.01);
    summary.effective_rank = effective_rank(sigma);
    if (!sigma.empty() && sigma[0] > 0.0) {
      for (const double value : sigma) summary.stable_rank += value / sigma[0] * (value / sigma[0]);
    }
  }
  Matrix row(1, head.q.rows);
  double nats = 0.0;
  for (std::int64_t t = 0; t < head.q.rows; ++t) {
    attention_row(head, t, row.row(0));
    const RowEntropy one = row_entropy(row);
    nats += one.mean_nats;
    summary.entropy.rows += one.rows;
  }
  if (summary.entropy.rows > 0) summary.entropy.mean_nats = nats / static_cast<double>(summary.entropy.rows);
  if (head.q.rows > 1)
    summary.entropy.normalized = summary.entropy.mean_nats / std::log(static_cast<double>(head.q.rows));
  return summary;
}

}  // namespace mhla
