// Tables of rotary positions, number by number through the operator, and what they are for: products that know
// distances alone.
#include <complex>

#include "mhla/modules/modules_fixture.h"
#include "mhla/modules/rope.h"

namespace mhla {
namespace {

// Turns one head of `size` channels at token t: pair j by angle(j), pairs being (j, j + size/2) or (2j, 2j + 1).
std::vector<double> turned(const torch::Tensor& x, std::int64_t t, bool halves,
                           const std::function<double(int)>& angle) {
  const auto size = static_cast<int>(x.size(-1));
  std::vector<double> out(static_cast<std::size_t>(size));
  for (int j = 0; j < size / 2; ++j) {
    const int a = halves ? j : 2 * j, b = halves ? j + size / 2 : 2 * j + 1;
    const std::complex<double> value(x[0][t][0][a].item<double>(), x[0][t][0][b].item<double>());
    const std::complex<double> result = value * std::polar(1.0, angle(j));
    out[static_cast<std::size_t>(a)] = result.real(), out[static_cast<std::size_t>(b)] = result.imag();
  }
  return out;
}

void expect_turned(const torch::Tensor& x, const torch::Tensor& got, bool halves,
                   const std::function<double(std::int64_t, int)>& angle) {
  for (std::int64_t t = 0; t < x.size(1); ++t) {
    const std::vector<double> want = turned(x, t, halves, [&](int j) { return angle(t, j); });
    for (std::size_t c = 0; c < want.size(); ++c)
      ASSERT_NEAR(got[0][t][0][static_cast<std::int64_t>(c)].item<double>(), want[c], 1e-12) << t << " " << c;
  }
}

RopeTable table_of(const torch::Tensor& angles, bool halves) { return {angles.cos(), angles.sin(), halves}; }

torch::Tensor rotate(const torch::Tensor& x, const RopeTable& table) { return ops::rope(x, x, table).first; }

TEST(RopeTables, Line) {
  torch::manual_seed(1);
  const torch::Tensor x = torch::randn({1, 5, 1, 8}, torch::kDouble);
  const torch::Tensor angles = rope_angles_1d(torch::tensor({0, 1, 2, 7, 1000}), 8, 100.0);
  const std::int64_t positions[] = {0, 1, 2, 7, 1000};
  expect_turned(x, rotate(x, table_of(angles, true)), true,
                [&](std::int64_t t, int j) { return static_cast<double>(positions[t]) * std::pow(100.0, -j / 4.0); });
}

TEST(RopeTables, Plane) {  // half of the pairs turn with the row, half with the column; frequencies 1 to 1 / base
  const torch::Tensor x = torch::randn({1, 12, 1, 12}, torch::kDouble);
  const torch::Tensor angles = rope_angles_grid(Layout::grid2d(3, 4, 1, 1), 12, 100.0);
  expect_turned(x, rotate(x, table_of(angles, false)), false, [&](std::int64_t t, int j) {
    return static_cast<double>(j < 3 ? t / 4 : t % 4) * std::pow(100.0, -(j % 3) / 2.0);
  });
}

TEST(RopeTables, Volume) {  // of 20 channels 8 turn with the frame, 6 with the row, 6 with the column
  const torch::Tensor x = torch::randn({1, 24, 1, 20}, torch::kDouble);
  const torch::Tensor angles = rope_angles_grid(Layout::grid3d({2, 3, 4}, {1, 1, 1}), 20, 100.0);
  expect_turned(x, rotate(x, table_of(angles, false)), false, [&](std::int64_t t, int j) {
    if (j < 4) return static_cast<double>(t / 12) * std::pow(100.0, -j / 4.0);
    if (j < 7) return static_cast<double>(t / 4 % 3) * std::pow(100.0, -(j - 4) / 3.0);
    return static_cast<double>(t % 4) * std::pow(100.0, -(j - 7) / 3.0);
  });
}

TEST(RopeTables, ProductsKnowDistancesAlone) {
  const torch::Tensor q = torch::randn({8}, torch::kDouble), k = torch::randn({8}, torch::kDouble);
  const auto at = [](const torch::Tensor& x, std::int64_t place) {
    const torch::Tensor angles = rope_angles_1d(torch::tensor({place}), 8, 10000.0);
    return rotate(x.view({1, 1, 1, 8}), {angles.cos(), angles.sin(), true}).flatten();
  };
  const double want = torch::dot(at(q, 7), at(k, 3)).item<double>();
  EXPECT_NEAR(torch::dot(at(q, 104), at(k, 100)).item<double>(), want, 1e-10);
  EXPECT_GT(std::abs(torch::dot(at(q, 8), at(k, 3)).item<double>() - want), 1e-3);
}

TEST(RopeTables, PackedSequencesStartAtZero) {
  const torch::Tensor places = token_positions(7, torch::tensor({0, 3, 3, 7}), torch::kCPU);
  EXPECT_TRUE(torch::equal(places, torch::tensor({0, 1, 2, 0, 1, 2, 3})));
  EXPECT_TRUE(torch::equal(token_positions(3, {}, torch::kCPU), torch::tensor({0, 1, 2})));
}

TEST(RopeTables, AGridKeepsItsTable) {
  const Layout layout = Layout::grid2d(3, 4, 1, 1);
  const torch::Tensor angles = rope_angles_grid(layout, 12, 100.0);
  GridRope rope(layout, 12, 100.0);
  const torch::Tensor f32 = torch::zeros({1}), bf16 = torch::zeros({1}, torch::kBFloat16);
  const torch::Tensor kept = rope.at(f32).cos;
  EXPECT_TRUE(torch::equal(kept, angles.cos().to(torch::kFloat)));
  EXPECT_TRUE(rope.at(bf16).cos.is_same(kept));  // f32 beside 16-bit numbers
  EXPECT_TRUE(torch::equal(rope.at(torch::zeros({1}, torch::kDouble)).sin, angles.sin()));
  EXPECT_FALSE(rope.at(f32).halves);
}

TEST(RopeTables, ACacheHasTheSameTables) {
  const auto expect_same = [](const RopeTable& got, const torch::Tensor& positions) {
    const torch::Tensor angles = rope_angles_1d(positions, 8, 100.0);
    EXPECT_TRUE(got.halves);
    EXPECT_TRUE(torch::equal(got.cos, angles.cos().to(got.cos.scalar_type())));
    EXPECT_TRUE(torch::equal(got.sin, angles.sin().to(got.sin.scalar_type())));
  };
  RopeCache cache(8, 100.0);
  const torch::Tensor f32 = torch::zeros({1}), f64 = torch::zeros({1}, torch::kDouble);
  for (const std::int64_t count : {3, 200, 70}) {  // grown, and a part of it
    expect_same(cache.at({}, count, f32), torch::arange(count));
    const torch::Tensor places = torch::tensor(std::vector<std::int64_t>{1, count - 1, 0, 2}).view({2, 2});
    expect_same(cache.at(places, count, f64), places);
  }
  torch::Tensor bounds = torch::tensor({0, 2, 7}, torch::kLong);
  expect_same(cache.packed(bounds, 7, f32), torch::tensor({0, 1, 0, 1, 2, 3, 4}));
  EXPECT_TRUE(cache.packed(bounds, 7, f32).cos.is_same(cache.packed(bounds, 7, f32).cos));
  bounds[1] = 3;
  expect_same(cache.packed(bounds, 7, f32), torch::tensor({0, 1, 2, 0, 1, 2, 3}));
  expect_same(cache.packed(bounds, 7, f64), torch::tensor({0, 1, 2, 0, 1, 2, 3}));
}

TEST(RopeTables, SaysWhatIsWrong) {
  EXPECT_EQ(message_of([] { rope_angles_1d(torch::arange(3), 7, 1e4); }),
            "rope: the head size is 7, expected a multiple of 2 in 1D");
  EXPECT_EQ(message_of([] { rope_angles_grid(Layout::grid2d(2, 2, 1, 1), 6, 1e4); }),
            "rope: the head size is 6, expected a multiple of 4 in 2D");
  EXPECT_TRUE(has(message_of([] { rope_angles_grid(Layout::line(4), 8, 1e4); }), "expected a 2D or 3D grid"));
}

}  // namespace
}  // namespace mhla
