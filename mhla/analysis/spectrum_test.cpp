// Singular values against matrices whose values are known, and the ranks read from them.
#include "mhla/analysis/spectrum.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>

#include "mhla/analysis/analysis_fixture.h"
#include "mhla/core/error.h"

namespace mhla {
namespace {

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix result(a.rows, b.columns);
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t k = 0; k < a.columns; ++k) {
      for (std::int64_t j = 0; j < b.columns; ++j) result.at(i, j) += a.at(i, k) * b.at(k, j);
    }
  }
  return result;
}

// Orthogonal transformations from both sides leave singular values alone: a few random reflections hide the diagonal.
Matrix with_singular_values(Random& random, std::int64_t rows, std::int64_t columns, const std::vector<double>& sigma) {
  Matrix matrix(rows, columns);
  for (std::size_t i = 0; i < sigma.size(); ++i) {
    matrix.at(static_cast<std::int64_t>(i), static_cast<std::int64_t>(i)) = sigma[i];
  }
  for (int round = 0; round < 6; ++round) {
    matrix = transposed(matrix);
    const Matrix u = normal(random, matrix.rows, 1);
    double squares = 0;
    for (const double value : u.values) squares += value * value;
    const Matrix projected = product(transposed(u), matrix);
    for (std::int64_t i = 0; i < matrix.rows; ++i) {
      for (std::int64_t j = 0; j < matrix.columns; ++j) {
        matrix.at(i, j) -= 2 / squares * u.at(i, 0) * projected.at(0, j);
      }
    }
  }
  return matrix;
}

void expect_values(const std::vector<double>& got, const std::vector<double>& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    EXPECT_TRUE(std::abs(got[i] - want[i]) <= tolerance) << i << ": got " << got[i] << ", want " << want[i];
  }
}

TEST(Spectrum, SmallMatricesByHand) {
  Matrix one(1, 1);
  one.at(0, 0) = -3;
  expect_values(singular_values(one), {3}, 4e-15);

  Matrix two(2, 2);  // [[3, 0], [4, 5]]: 3 sqrt 5 and sqrt 5
  two.at(0, 0) = 3, two.at(1, 0) = 4, two.at(1, 1) = 5;
  expect_values(singular_values(two), {3 * std::sqrt(5), std::sqrt(5)}, 4e-15);

  Matrix column(3, 1);
  column.values = {2, -3, 6};
  expect_values(singular_values(column), {7}, 4e-15);
  expect_values(singular_values(transposed(column)), {7}, 4e-15);

  expect_values(singular_values(Matrix(3, 2)), {0, 0}, 0);
  EXPECT_TRUE(singular_values(Matrix(0, 5)).empty());
}

// Eigenvalues of the 5x5 Hilbert matrix, known to many digits; they span six orders of magnitude.
TEST(Spectrum, HilbertMatrix) {
  Matrix hilbert(5, 5);
  for (std::int64_t i = 0; i < 5; ++i) {
    for (std::int64_t j = 0; j < 5; ++j) hilbert.at(i, j) = 1.0 / static_cast<double>(i + j + 1);
  }
  expect_values(singular_values(hilbert),
                {1.567050691098231, 0.208534218611013, 0.011407491623420, 0.000305898040151, 0.000003287928772}, 2e-15);
}

TEST(Spectrum, ChosenValuesComeBackOverSixteenOrders) {
  Random random(1);
  std::vector<double> sigma(60);
  for (int i = 0; i < 60; ++i) sigma[i] = std::pow(10.0, -i / 4.0);
  for (const auto& [rows, columns] : {std::pair{60, 60}, std::pair{90, 60}, std::pair{60, 75}}) {
    const Matrix matrix = with_singular_values(random, rows, columns, sigma);
    expect_values(singular_values(matrix), sigma, 1e-14);  // 45 eps, absolute
  }
}

TEST(Spectrum, RepeatedAndZeroValues) {
  Random random(2);
  std::vector<double> sigma(50, 0.0);
  std::fill(sigma.begin(), sigma.begin() + 20, 2.0);
  std::fill(sigma.begin() + 20, sigma.begin() + 30, 0.5);
  expect_values(singular_values(with_singular_values(random, 50, 50, sigma)), sigma, 1e-14);
}

TEST(Spectrum, ScaleCannotOverflowOrVanish) {
  Random random(3);
  for (const double scale : {1e-300, 1e-160, 1e160, 1e300}) {
    std::vector<double> sigma = {3 * scale, 2 * scale, scale, 0};
    expect_values(singular_values(with_singular_values(random, 5, 4, sigma)), sigma, 1e-14 * scale);
  }
}

TEST(Spectrum, ColumnsOfNothingBesideOthers) {
  for (double tiny = 1e-150; tiny > 1e-165; tiny /= 2) {
    Matrix matrix(3, 3);
    matrix.at(0, 0) = 1, matrix.at(1, 1) = tiny, matrix.at(2, 1) = tiny, matrix.at(1, 2) = tiny;
    expect_values(singular_values(matrix), {1, 0, 0}, 1e-15);
  }
}

RC_GTEST_PROP(Spectrum, FrobeniusNormAndTranspose, ()) {
  Random random(*rc::gen::arbitrary<std::uint64_t>());
  const Matrix matrix = normal(random, *rc::gen::inRange<std::int64_t>(1, 30), *rc::gen::inRange<std::int64_t>(1, 30));
  const std::vector<double> sigma = singular_values(matrix);
  const std::vector<double> of_transpose = singular_values(transposed(matrix));
  double squares = 0, want = 0;
  for (const double value : sigma) squares += value * value;
  for (const double value : matrix.values) want += value * value;
  RC_ASSERT(std::abs(squares - want) <= 1e-13 * want);
  RC_ASSERT(std::is_sorted(sigma.rbegin(), sigma.rend()));
  for (std::size_t i = 0; i < sigma.size(); ++i) RC_ASSERT(std::abs(sigma[i] - of_transpose[i]) <= 1e-14 * sigma[0]);
}

TEST(Spectrum, ProductsOfThinFactorsHaveTheRankOfTheFactor) {
  Random random(4);
  for (const std::int64_t rank : {1, 7, 64, 100}) {
    const Matrix matrix = product(normal(random, 200, rank), normal(random, rank, 200));
    const std::vector<double> sigma = singular_values(matrix);
    EXPECT_EQ(numerical_rank(sigma, rank_tolerance(200, 200)), rank);
    EXPECT_LE(sigma[rank], 1e-14 * sigma[0]) << "noise stays near eps, far below the tolerance";
  }
  EXPECT_EQ(numerical_rank(singular_values(normal(random, 200, 200)), rank_tolerance(200, 200)), 200);
}

TEST(Spectrum, RankOfRoundedEntriesNeedsTheirTolerance) {
  Random random(5);
  Matrix matrix = product(normal(random, 128, 16), normal(random, 16, 128));
  for (double& value : matrix.values) value = static_cast<float>(value);
  const std::vector<double> sigma = singular_values(matrix);
  EXPECT_EQ(numerical_rank(sigma, rank_tolerance(128, 128, DType::kF32)), 16);
  EXPECT_EQ(numerical_rank(sigma, rank_tolerance(128, 128)), 128) << "rounding to f32 is full rank at f64's tolerance";
}

TEST(Spectrum, ThousandTokens) {
  Random random(6);
  Matrix matrix = product(normal(random, 1024, 64), normal(random, 64, 1024));
  EXPECT_EQ(numerical_rank(singular_values(matrix), rank_tolerance(1024, 1024)), 64);
  for (std::int64_t i = 0; i < 1024; ++i) matrix.at(i, i) += 100.0;
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(numerical_rank(singular_values(matrix), rank_tolerance(1024, 1024)), 1024);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::cout << "1024 x 1024 of full rank: " << seconds.count() << " s\n";
}

TEST(Spectrum, EffectiveRank) {
  EXPECT_DOUBLE_EQ(effective_rank(std::vector<double>{5, 0, 0}), 1.0);
  EXPECT_NEAR(effective_rank(std::vector<double>(12, 0.3)), 12.0, 1e-13);
  EXPECT_EQ(effective_rank(std::vector<double>(3, 0.0)), 0.0);
  // 3/4 and 1/4: exp(3/4 log 4/3 + 1/4 log 4) = (4/3)^(3/4) 4^(1/4)
  EXPECT_NEAR(effective_rank(std::vector<double>{3, 1}), std::pow(4.0 / 3, 0.75) * std::pow(4.0, 0.25), 1e-15);
}

TEST(Spectrum, RefusesBadInput) {
  Matrix matrix(2, 2);
  matrix.at(1, 0) = NAN;
  EXPECT_THROW(singular_values(matrix), Error);
  matrix.at(1, 0) = INFINITY;
  EXPECT_THROW(singular_values(matrix), Error);
  EXPECT_THROW(numerical_rank(std::vector<double>{1}, NAN), Error);
  EXPECT_THROW(numerical_rank(std::vector<double>{1}, -1), Error);
  EXPECT_THROW(rank_tolerance(4, 4, DType::kI32), Error);
}

}  // namespace
}  // namespace mhla
