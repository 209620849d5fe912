// Resampling against a direct evaluation of the formula, its invariants, and rows it cannot scale.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>

#include "mhla/core/error.h"
#include "mhla/kernels/mixing/mixing.h"
#include "mhla/testing/tensor.h"

namespace mhla {
namespace {

Tensor resample(const Tensor& mix, const BlockGrid& from, const BlockGrid& to, bool causal = false) {
  std::vector<std::int64_t> shape = mix.shape();
  shape[shape.size() - 1] = shape[shape.size() - 2] = to.count();
  Tensor out(mix.dtype(), shape);
  resample_mix(mix.view(), from, out.view(), to, causal);
  EXPECT_TRUE(out.guards_intact());
  return out;
}

double row_sum(const Tensor& mix, std::int64_t row) {
  const std::int64_t M = mix.shape().back();
  double sum = 0;
  for (std::int64_t b = 0; b < M; ++b) sum += mix.at(row * M + b);
  return sum;
}

// The weight of source block a in new block i along one axis: a hat of width one source block around its centre,
// flat beyond the outermost centres. Written from the picture, not from the code.
double hat(std::int64_t i, std::int64_t to, std::int64_t a, std::int64_t from) {
  const double x = (static_cast<double>(i) + 0.5) / static_cast<double>(to);
  const double width = 1.0 / static_cast<double>(from);
  const double inside = std::min(std::max(x, 0.5 * width), 1.0 - 0.5 * width);
  const double centre = (static_cast<double>(a) + 0.5) * width;
  return std::max(0.0, 1.0 - std::abs(inside - centre) / width);
}

double hat(std::int64_t i, const BlockGrid& to, std::int64_t a, const BlockGrid& from) {
  double weight = 1.0;
  for (int axis = 2; axis >= 0; --axis) {
    weight *= hat(i % to.blocks[axis], to.blocks[axis], a % from.blocks[axis], from.blocks[axis]);
    i /= to.blocks[axis];
    a /= from.blocks[axis];
  }
  return weight;
}

// Positive matrices: interpolate, then one factor per row.
Tensor by_definition(const Tensor& mix, const BlockGrid& from, const BlockGrid& to) {
  const std::int64_t M = from.count();
  const std::int64_t K = to.count();
  Tensor out(DType::kF64, {K, K});
  for (std::int64_t i = 0; i < K; ++i) {
    double target = 0, own = 0;
    for (std::int64_t a = 0; a < M; ++a) target += hat(i, to, a, from) * row_sum(mix, a);
    for (std::int64_t j = 0; j < K; ++j) {
      double value = 0;
      for (std::int64_t a = 0; a < M; ++a) {
        for (std::int64_t b = 0; b < M; ++b) value += hat(i, to, a, from) * hat(j, to, b, from) * mix.at(a * M + b);
      }
      out.set(i * K + j, value);
      own += value;
    }
    for (std::int64_t j = 0; j < K; ++j) out.set(i * K + j, out.at(i * K + j) * target / own);
  }
  return out;
}

BlockGrid any_grid(int rank) {
  return {{rank > 2 ? *rc::gen::inRange<std::int64_t>(1, 4) : 1, rank > 1 ? *rc::gen::inRange<std::int64_t>(1, 5) : 1,
           *rc::gen::inRange<std::int64_t>(1, 6)}};
}

RC_GTEST_PROP(MixResample, IsTheFormula, ()) {
  const int rank = *rc::gen::inRange(1, 4);
  const BlockGrid from = any_grid(rank);
  const BlockGrid to = any_grid(rank);
  Random random(*rc::gen::arbitrary<std::uint64_t>());
  Tensor mix(DType::kF64, {from.count(), from.count()});
  mix.uniform(random, 0.01, 1.0);
  const Tensor got = resample(mix, from, to);
  const Tensor want = by_definition(mix, from, to);
  RC_ASSERT(max_error(got, want) <= 1e-12);
}

TEST(MixResample, TheSameGridReturnsTheSameBits) {
  Random random(3);
  for (const BlockGrid& grid : {BlockGrid::line(7), BlockGrid::grid2d(3, 4), BlockGrid::grid3d(3, 2, 2)}) {
    Tensor mix(DType::kF32, {2, grid.count(), grid.count()});
    mix.normal(random);
    mix.set(1, -0.0);
    mix.set(2, 3e38);  // two of them overflow a sum in f32
    mix.set(3, 3e38);
    EXPECT_TRUE(resample(mix, grid, grid).same_bits(mix)) << describe(grid);
  }
}

TEST(MixResample, DoublingALine) {
  Tensor mix(DType::kF64, {2, 2});
  for (std::int64_t i = 0; i < 4; ++i) mix.set(i, i == 0 || i == 3 ? 1.0 : 0.0);  // identity
  const Tensor got = resample(mix, BlockGrid::line(2), BlockGrid::line(4));
  // Centres 1/8, 3/8, 5/8, 7/8 among 1/4 and 3/4: weights of block 0 are 1, 3/4, 1/4, 0. All rows sum to 2 before
  // scaling and to 1 after.
  const double want[] = {1, 0.75, 0.25, 0, 0.75, 0.625, 0.375, 0.25, 0.25, 0.375, 0.625, 0.75, 0, 0.25, 0.75, 1};
  for (std::int64_t i = 0; i < 16; ++i) EXPECT_NEAR(got.at(i), want[i] / 2, 1e-15) << i;
}

TEST(MixResample, RowSumsAndUniformRowsAreKept) {
  const BlockGrid from = BlockGrid::grid2d(4, 4);
  const BlockGrid to = BlockGrid::grid2d(7, 9);
  Tensor mix(DType::kF64, {16, 16});
  init_mix({}, from, mix.view());
  const Tensor finer = resample(mix, from, to);
  for (std::int64_t i = 0; i < to.count(); ++i) EXPECT_NEAR(row_sum(finer, i), 1.0, 1e-13);

  init_mix({.transform = MixTransform::kUniform}, from, mix.view());
  const Tensor flat = resample(mix, from, to);
  for (std::int64_t i = 0; i < flat.numel(); ++i) EXPECT_NEAR(flat.at(i), 1.0 / 63, 1e-15);
}

// What resampling is for: the matrix of a finer grid looks like the initialiser of that grid, not like noise.
TEST(MixResample, ASmoothInitialiserComesBack) {
  const MixInit init{.transform = MixTransform::kCos};
  const BlockGrid from = BlockGrid::grid2d(8, 8);
  const BlockGrid to = BlockGrid::grid2d(6, 6);
  Tensor mix(DType::kF64, {64, 64});
  Tensor want(DType::kF64, {36, 36});
  init_mix(init, from, mix.view());
  init_mix(init, to, want.view());
  EXPECT_LE(max_error(resample(mix, from, to), want), 0.03);
}

TEST(MixResample, HeadsAreIndependent) {
  Random random(11);
  const BlockGrid from = BlockGrid::grid3d(2, 2, 3);
  const BlockGrid to = BlockGrid::grid3d(3, 2, 2);
  Tensor heads(DType::kF64, {3, 12, 12});
  heads.uniform(random, 0, 1);
  const Tensor all = resample(heads, from, to);
  for (std::int64_t h = 0; h < 3; ++h) {
    Tensor one(DType::kF64, {12, 12});
    for (std::int64_t i = 0; i < 144; ++i) one.set(i, heads.at(h * 144 + i));
    const Tensor alone = resample(one, from, to);
    for (std::int64_t i = 0; i < 144; ++i) EXPECT_EQ(all.at(h * 144 + i), alone.at(i));
  }
}

TEST(MixResample, MayWriteOverItsSource) {
  Random random(5);
  Tensor mix(DType::kF64, {6, 6});
  mix.uniform(random, 0, 1);
  const Tensor want = resample(mix, BlockGrid::grid2d(2, 3), BlockGrid::grid2d(3, 2));
  resample_mix(mix.view(), BlockGrid::grid2d(2, 3), mix.view(), BlockGrid::grid2d(3, 2));
  EXPECT_TRUE(mix.same_bits(want));
}

TEST(MixResample, AnImageMatrixServesEveryFrame) {
  Random random(13);
  const BlockGrid from = BlockGrid::grid2d(2, 2);
  const BlockGrid to = BlockGrid::grid3d(3, 2, 2);
  Tensor mix(DType::kF64, {4, 4});
  mix.uniform(random, 0, 1);
  const Tensor video = resample(mix, from, to);
  for (std::int64_t i = 0; i < 12; ++i) {
    for (std::int64_t j = 0; j < 12; ++j) {
      EXPECT_NEAR(video.at(i * 12 + j), mix.at((i % 4) * 4 + j % 4) / 3, 1e-15);  // its sum, shared by three frames
    }
  }
}

// ---- Rows that one factor cannot bring to their sum

TEST(MixResample, MixedSignsScaleWhileTheSumIsMeaningful) {
  Tensor mix(DType::kF64, {2, 2});
  for (std::int64_t i = 0; i < 4; ++i) mix.set(i, i % 2 == 0 ? 3.0 : -1.0);
  const Tensor got = resample(mix, BlockGrid::line(2), BlockGrid::line(4));
  const double row[] = {3, 2, 0, -1};  // sums to 4, the source to 2
  for (std::int64_t i = 0; i < 16; ++i) EXPECT_NEAR(got.at(i), row[i % 4] / 2, 1e-15) << i;
}

TEST(MixResample, ACancelledRowKeepsItsPattern) {
  Tensor mix(DType::kF64, {2, 2});
  for (std::int64_t i = 0; i < 4; ++i) mix.set(i, i % 2 == 0 ? 1.0 : -1.0);
  const Tensor got = resample(mix, BlockGrid::line(2), BlockGrid::line(4));
  const double row[] = {1, 0.5, -0.5, -1};  // sums to 0 like the source: only the area factor 2 / 4 is left
  for (std::int64_t i = 0; i < 16; ++i) EXPECT_NEAR(got.at(i), row[i % 4] / 2, 1e-15) << i;
}

TEST(MixResample, AMissingSumIsSharedInProportionToMagnitude) {
  Tensor mix(DType::kF64, {3, 3});
  for (std::int64_t i = 0; i < 9; ++i) mix.set(i, i % 3 == 1 ? 2.0 : -1.0);  // row -1, 2, -1: sum 0
  // Four columns at 0 (clamped), 5/8, 11/8, 2: -1, 7/8, 7/8, -1, sum -1/4 and target 0: the rule of opposite or
  // vanishing sums, not a factor 0 that would wipe the row out.
  const Tensor got = resample(mix, BlockGrid::line(3), BlockGrid::line(4));
  const double area = 0.75;
  const double missing = (0 - area * -0.25) / 3.75;
  const double row[] = {-area + missing, area * 0.875 + missing * 0.875, area * 0.875 + missing * 0.875,
                        -area + missing};
  for (std::int64_t i = 0; i < 16; ++i) EXPECT_NEAR(got.at(i), row[i % 4], 1e-15) << i;
  EXPECT_NEAR(row_sum(got, 0), 0.0, 1e-15);
}

TEST(MixResample, ARowThatFallsBetweenTheTapsIsSpreadEvenly) {
  Tensor mix(DType::kF64, {9, 9});
  mix.fill(0);
  for (std::int64_t i = 0; i < 9; ++i) mix.set(i * 9 + 3, 0.9);  // three blocks read columns 1, 4 and 7 only
  const Tensor got = resample(mix, BlockGrid::line(9), BlockGrid::line(3));
  for (std::int64_t i = 0; i < 9; ++i) EXPECT_NEAR(got.at(i), 0.3, 1e-15);

  mix.fill(0);
  const Tensor zero = resample(mix, BlockGrid::line(9), BlockGrid::line(3));
  for (std::int64_t i = 0; i < 9; ++i) EXPECT_EQ(zero.at(i), 0.0);
}

RC_GTEST_PROP(MixResample, SignedMatricesKeepTheirSums, ()) {
  const BlockGrid from = any_grid(3);
  const BlockGrid to = any_grid(3);
  Random random(*rc::gen::arbitrary<std::uint64_t>());
  const std::int64_t M = from.count();
  Tensor mix(DType::kF64, {M, M});
  mix.normal(random);
  const Tensor got = resample(mix, from, to);
  for (std::int64_t i = 0; i < to.count(); ++i) {
    double target = 0;
    for (std::int64_t a = 0; a < M; ++a) target += hat(i, to, a, from) * row_sum(mix, a);
    RC_ASSERT(std::abs(row_sum(got, i) - target) <= 1e-9);
  }
}

// ---- Causal

TEST(MixResample, CausalStaysCausalAndKeepsUniformPrefixes) {
  for (const std::int64_t rows : {3, 11, 16, 29}) {
    Tensor mix(DType::kF64, {8, 8});
    init_causal_mix(CausalInit::kPrefix, mix.view());
    for (std::int64_t i = 0; i < 8; ++i) {
      for (std::int64_t b = i + 1; b < 8; ++b) mix.set(i * 8 + b, NAN);  // never read
    }
    const Tensor got = resample(mix, BlockGrid::line(8), BlockGrid::line(rows), true);
    for (std::int64_t i = 0; i < rows; ++i) {
      EXPECT_NEAR(row_sum(got, i), 1.0, 1e-13);
      for (std::int64_t b = 0; b < rows; ++b) {
        if (b > i) {
          EXPECT_EQ(got.at(i * rows + b), 0.0);
        } else {
          EXPECT_GT(got.at(i * rows + b), 0.0);
        }
      }
    }
  }
}

TEST(MixResample, CausalByHand) {
  Tensor mix(DType::kF64, {2, 2});
  const double values[] = {1, 99, 0.25, 0.75};
  for (std::int64_t i = 0; i < 4; ++i) mix.set(i, values[i]);
  const Tensor got = resample(mix, BlockGrid::line(2), BlockGrid::line(4), true);
  // Row 1 takes 3/4 of row 0 and 1/4 of row 1. Its entry (1,1) sees (0,0), (1,0), (1,1) with 9/16, 3/16, 1/16.
  const double e10 = 0.75 * 1 + 0.25 * 0.25;
  const double e11 = (9 * 1 + 3 * 0.25 + 1 * 0.75) / 13;
  EXPECT_NEAR(got.at(0), 1.0, 1e-15);
  EXPECT_NEAR(got.at(4), e10 / (e10 + e11), 1e-15);
  EXPECT_NEAR(got.at(5), e11 / (e10 + e11), 1e-15);
  EXPECT_EQ(got.at(6), 0.0);
}

TEST(MixResample, RefusesBadInput) {
  Tensor mix(DType::kF64, {4, 4});
  mix.fill(0.25);
  Tensor out(DType::kF64, {9, 9});
  const BlockGrid from = BlockGrid::grid2d(2, 2);
  const BlockGrid to = BlockGrid::grid2d(3, 3);
  EXPECT_THROW(resample_mix(mix.view(), BlockGrid::grid2d(2, 3), out.view(), to), Error);
  EXPECT_THROW(resample_mix(mix.view(), from, out.view(), BlockGrid::grid2d(3, 2)), Error);
  EXPECT_THROW(resample_mix(mix.view(), from, out.view(), to, true), Error) << "a 2D grid is not causal";
  EXPECT_THROW(resample_mix(mix.view(), from, Tensor(DType::kF64, {2, 9, 9}).view(), to), Error);
  mix.set(5, NAN);
  EXPECT_THROW(resample_mix(mix.view(), from, out.view(), to), Error);
  for (std::int64_t i = 0; i < out.numel(); ++i) EXPECT_TRUE(std::isnan(out.at(i)));
}

}  // namespace
}  // namespace mhla
