// Initial matrices against the worked values of the paper and of the published code, and their properties.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "mhla/core/error.h"
#include "mhla/kernels/mixing/mixing.h"
#include "mhla/testing/tensor.h"

namespace mhla {
namespace {

constexpr double kRounded = 5.1e-7;  // worked values are given to six places

Tensor make_mix(const MixInit& init, const BlockGrid& grid, DType dtype = DType::kF64) {
  Tensor mix(dtype, {grid.count(), grid.count()});
  init_mix(init, grid, mix.view());
  return mix;
}

void expect_row(const Tensor& mix, std::int64_t row, const std::vector<double>& want, const std::string& what) {
  const std::int64_t M = mix.shape()[0];
  for (std::size_t b = 0; b < want.size(); ++b) {
    const double got = mix.at(row * M + static_cast<std::int64_t>(b));
    EXPECT_TRUE(std::abs(got - want[b]) <= kRounded)
        << what << " [" << row << ", " << b << "]: " << got << " for " << want[b];
  }
}

struct Worked {
  BlockGrid grid;
  MixInit init;
  std::int64_t row;
  std::vector<double> want;
};

TEST(MixInit, WorkedValues) {
  const auto faithful = [](MixTransform t) { return MixInit{.transform = t}; };
  const auto official = [](MixTransform t) { return MixInit{.transform = t, .official = true}; };
  const auto linear = MixTransform::kLinear;
  const BlockGrid g22 = BlockGrid::grid2d(2, 2);
  const BlockGrid g33 = BlockGrid::grid2d(3, 3);
  const BlockGrid g14 = BlockGrid::grid2d(1, 4);
  const BlockGrid wan = BlockGrid::grid3d(3, 5, 10);
  const std::vector<Worked> table = {
      {g22, faithful(linear), 0, {.630602, .184699, .184699, 0}},
      {g22, official(linear), 0, {.630602, .184699, .184699, 0}},
      {g33, faithful(linear), 0, {.263328, .170228, .077127, .170228, .131664, .055149, .077127, .055149, 0}},
      {g33, official(linear), 0, {.263328, .138988, .077127, .138988, .089513, .045028, .077127, .045028, 0}},
      {g33, faithful(linear), 4, {0, .134876, 0, .134876, .460496, .134876, 0, .134876, 0}},
      {g33, official(linear), 4, {.131664, .138988, .131664, .138988, .179026, .138988, .131664, .138988, .131664}},
      {g14, faithful(linear), 1, {.25, .5, .25, 0}},
      {g14, official(linear), 1, {.333333, .375, .25, .166667}},
      {wan, faithful(linear), 0, {.014732, .013266}},
      {wan, official(linear), 0, {.014732, .011569}},
      {g33,
       official(MixTransform::kCos),
       0,
       {.126896, .117148, .107825, .117148, .108154, .099077, .107825, .099077, .089729}},
      {g33,
       official(MixTransform::kExp),
       0,
       {.184410, .122267, .094680, .122267, .098092, .080978, .094680, .080978, .071834}},
      {g33,
       official(MixTransform::kGaussian),
       0,
       {1, .569783, .105399, .569783, .324652, .060055, .105399, .060055, .011109}},
      {g33, official(MixTransform::kLocal), 0, {.25, .166667, 0, .166667, .111111, 0, 0, 0, 0}},
      {g33, faithful(MixTransform::kLocal), 0, {.25, .25, 0, .25, .25, 0, 0, 0, 0}},
      {g33, faithful(MixTransform::kLocal), 4, std::vector<double>(9, 1.0 / 9.0)},
      {g33, faithful(MixTransform::kUniform), 2, std::vector<double>(9, 1.0 / 9.0)},
      {g33, official(MixTransform::kUniform), 2, std::vector<double>(9, 1.0 / 9.0)},
  };
  for (const Worked& worked : table) {
    const std::string what = std::string(name_of(worked.init.transform)) +
                             (worked.init.official ? " official " : " faithful ") + describe(worked.grid);
    expect_row(make_mix(worked.init, worked.grid), worked.row, worked.want, what);
  }
}

// Row sums of the published 4x4 matrix run from 0.828 in the corner to 1.180 inside.
TEST(MixInit, OfficialRowSumsAreNotOne) {
  const Tensor mix = make_mix({.official = true}, BlockGrid::grid2d(4, 4));
  const auto row_sum = [&](std::int64_t row) {
    double sum = 0;
    for (std::int64_t b = 0; b < 16; ++b) sum += mix.at(row * 16 + b);
    return sum;
  };
  EXPECT_NEAR(row_sum(0), 0.828, 5e-4);
  EXPECT_NEAR(row_sum(5), 1.180, 5e-4);
}

TEST(MixInit, GoldenMatricesOfThePublishedModules) {
  std::ifstream file(MHLA_SOURCE_DIR "/tests/golden/mixing_init.txt");
  ASSERT_TRUE(file) << "tests/golden/mixing_init.txt is missing";
  int cases = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    std::string name, transform;
    BlockGrid grid;
    words >> name >> transform >> grid.blocks[0] >> grid.blocks[1] >> grid.blocks[2];
    const std::int64_t M = grid.count();
    Tensor want(DType::kF64, {M, M});
    for (std::int64_t i = 0; i < M * M; ++i) {
      double value = NAN;
      words >> value;
      want.set(i, value);
    }
    ASSERT_TRUE(words) << name;
    const MixInit init{.transform = parse_mix_transform(transform), .official = true};
    const Tensor got = make_mix(init, grid, DType::kF32);
    EXPECT_TRUE(max_error(got.to(DType::kF64), want) <= 1e-6) << name << ": " << worst_element(got, want);
    ++cases;
  }
  EXPECT_EQ(cases, 8);
}

TEST(MixInit, OneBlockIsOne) {
  for (int t = 0; t < 6; ++t) {
    for (const bool official : {false, true}) {
      const MixInit init{.transform = static_cast<MixTransform>(t), .official = official};
      EXPECT_EQ(make_mix(init, BlockGrid::line(1)).at(0), 1.0) << name_of(init.transform);
    }
  }
}

RC_GTEST_PROP(MixInit, SumsAndReach, ()) {
  const BlockGrid grid = BlockGrid::grid3d(*rc::gen::inRange(1, 5), *rc::gen::inRange(1, 6), *rc::gen::inRange(1, 7));
  const MixInit init{.transform = static_cast<MixTransform>(*rc::gen::inRange(0, 6)),
                     .official = *rc::gen::arbitrary<bool>(),
                     .exp_sigma = 0.25 * *rc::gen::inRange(1, 20),
                     .local_threshold = 0.5 * *rc::gen::inRange(0, 6)};
  const Tensor mix = make_mix(init, grid);
  const std::int64_t M = grid.count();
  for (std::int64_t i = 0; i < M; ++i) {
    double row = 0, column = 0;
    for (std::int64_t b = 0; b < M; ++b) {
      const double value = mix.at(i * M + b);
      RC_ASSERT(value >= 0.0 && value <= 1.0);
      RC_ASSERT(value <= mix.at(i * M + i) || init.official);  // nothing weighs more than the block itself
      row += value;
      column += mix.at(b * M + i);
    }
    if (!init.official) RC_ASSERT(std::abs(row - 1.0) <= 1e-12);
    if (init.official && init.transform != MixTransform::kGaussian) RC_ASSERT(std::abs(column - 1.0) <= 1e-12);
    if (init.official && init.transform == MixTransform::kGaussian) RC_ASSERT(mix.at(i * M + i) == 1.0);
  }
}

TEST(MixInit, FaithfulIsTheOfficialTransformWithRowsNormalised) {
  for (const MixTransform t : {MixTransform::kCos, MixTransform::kExp, MixTransform::kGaussian, MixTransform::kLocal}) {
    const BlockGrid grid = BlockGrid::grid2d(3, 4);
    const Tensor faithful = make_mix({.transform = t}, grid);
    const Tensor official = make_mix({.transform = t, .official = true}, grid);
    // Column normalisation multiplies entry (i, b) by a factor of b; the transforms are symmetric, so the factors
    // drop out of w[i,b] = f[i,b] / f[i,i] * w[i,i] with w[i,i] = 1.
    for (std::int64_t i = 0; i < 12; ++i) {
      for (std::int64_t b = 0; b < 12; ++b) {
        const double from_rows = faithful.at(i * 12 + b) / faithful.at(i * 12 + i);
        const double from_columns = official.at(i * 12 + b) / official.at(b * 12 + b);
        EXPECT_NEAR(from_rows, from_columns, 1e-13) << name_of(t);
      }
    }
  }
}

TEST(MixInit, HeadsStridesAndF32) {
  const BlockGrid grid = BlockGrid::grid2d(2, 3);
  const Tensor want = make_mix({}, grid);
  Tensor heads(DType::kF32, {3, 6, 6});
  init_mix({}, grid, heads.view());
  for (std::int64_t i = 0; i < heads.numel(); ++i) {
    EXPECT_EQ(heads.at(i), static_cast<double>(static_cast<float>(want.at(i % 36))));
  }
  EXPECT_TRUE(heads.guards_intact());

  Tensor wide(DType::kF64, {6, 10});
  View left = wide.view();
  left.shape[1] = 6;
  init_mix({}, grid, left);
  for (std::int64_t i = 0; i < 6; ++i) {
    for (std::int64_t b = 0; b < 10; ++b) {
      if (b < 6) {
        EXPECT_EQ(wide.at(i * 10 + b), want.at(i * 6 + b));
      } else {
        EXPECT_TRUE(std::isnan(wide.at(i * 10 + b)));
      }
    }
  }
}

TEST(MixInit, GridOfALayout) {
  EXPECT_EQ(BlockGrid::of(Layout::line(64), 2048), BlockGrid::line(32));
  EXPECT_EQ(BlockGrid::of(Layout::line(64), 65), BlockGrid::line(2));
  EXPECT_EQ(BlockGrid::of(Layout::grid2d(16, 12, 4, 3), 192), BlockGrid::grid2d(4, 3));
  EXPECT_EQ(BlockGrid::of(Layout::grid3d({21, 30, 50}, {7, 3, 5}), 31500).count(), 105);
}

TEST(CausalInit, PrefixIsUniformAndLinearLeansToThePresent) {
  Tensor prefix(DType::kF64, {32, 32});
  Tensor linear(DType::kF64, {32, 32});
  init_causal_mix(CausalInit::kPrefix, prefix.view());
  init_causal_mix(CausalInit::kLinear, linear.view());
  for (std::int64_t i = 0; i < 32; ++i) {
    for (std::int64_t b = 0; b < 32; ++b) {
      const auto di = static_cast<double>(i);
      const auto db = static_cast<double>(b);
      EXPECT_DOUBLE_EQ(prefix.at(i * 32 + b), b <= i ? 1.0 / (di + 1) : 0.0);
      EXPECT_DOUBLE_EQ(linear.at(i * 32 + b), b <= i ? 2 * (db + 1) / ((di + 1) * (di + 2)) : 0.0);
    }
  }
}

TEST(CausalInit, RowsSumToOneAndDoNotDependOnTheLength) {
  for (const CausalInit init : {CausalInit::kPrefix, CausalInit::kLinear, CausalInit::kExp}) {
    Tensor large(DType::kF64, {40, 40});
    Tensor small(DType::kF64, {7, 7});
    init_causal_mix(init, large.view(), 2.5);
    init_causal_mix(init, small.view(), 2.5);
    for (std::int64_t i = 0; i < 40; ++i) {
      double sum = 0;
      for (std::int64_t b = 0; b < 40; ++b) sum += large.at(i * 40 + b);
      EXPECT_NEAR(sum, 1.0, 1e-13) << name_of(init);
      for (std::int64_t b = 0; i < 7 && b < 7; ++b) EXPECT_EQ(small.at(i * 7 + b), large.at(i * 40 + b));
    }
  }
  Tensor mix(DType::kF64, {5, 5});
  init_causal_mix(CausalInit::kExp, mix.view(), 2.5);
  EXPECT_NEAR(mix.at(4 * 5 + 1) / mix.at(4 * 5 + 4), std::exp(-3 / 2.5), 1e-15);
}

TEST(MixInit, NamesGoRound) {
  for (int t = 0; t < 6; ++t) {
    EXPECT_EQ(parse_mix_transform(name_of(static_cast<MixTransform>(t))), static_cast<MixTransform>(t));
  }
  for (int t = 0; t < 3; ++t) {
    EXPECT_EQ(parse_causal_init(name_of(static_cast<CausalInit>(t))), static_cast<CausalInit>(t));
  }
  EXPECT_THROW(parse_mix_transform("Linear"), Error);
  EXPECT_THROW(parse_causal_init("uniform"), Error);
}

TEST(MixInit, RefusesBadInput) {
  Tensor mix(DType::kF64, {4, 4});
  const View view = mix.view();
  const BlockGrid grid = BlockGrid::grid2d(2, 2);
  EXPECT_THROW(init_mix({}, BlockGrid::grid2d(2, 3), view), Error);
  EXPECT_THROW(init_mix({}, BlockGrid::grid2d(0, 3), view), Error);
  EXPECT_THROW(init_mix({}, BlockGrid::grid3d(1L << 31, 1L << 31, 4), view), Error);
  EXPECT_THROW(init_mix({.exp_sigma = 0}, grid, view), Error);
  EXPECT_THROW(init_mix({.exp_sigma = NAN}, grid, view), Error);
  EXPECT_THROW(init_mix({.local_threshold = -1}, grid, view), Error);
  EXPECT_THROW(init_mix({.local_threshold = NAN}, grid, view), Error);
  EXPECT_THROW(init_causal_mix(CausalInit::kExp, view, -1.0), Error);
  EXPECT_THROW(init_mix({}, grid, View(nullptr, DType::kF32, {4, 4})), Error);
  EXPECT_THROW(init_mix({}, grid, Tensor(DType::kBF16, {4, 4}).view()), Error);
  EXPECT_THROW(init_mix({}, grid, Tensor(DType::kF32, {4, 5}).view()), Error);
  EXPECT_THROW(init_mix({}, grid, Tensor(DType::kF32, {16}).view()), Error);
  View broadcast = view;
  broadcast.stride[0] = 0;
  EXPECT_THROW(init_mix({}, grid, broadcast), Error);
  for (std::int64_t i = 0; i < mix.numel(); ++i) EXPECT_TRUE(std::isnan(mix.at(i))) << "written before the check";
}

}  // namespace
}  // namespace mhla
