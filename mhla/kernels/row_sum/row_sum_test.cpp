// Sums of rows and GELU on the CPU, against f64. mhla/ops/{row_sum,gelu}_op_test.cpp have them on a GPU, too.
#include "mhla/kernels/row_sum/row_sum.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "mhla/core/error.h"
#include "mhla/core/threads.h"
#include "mhla/testing/messages.h"

namespace mhla {
namespace {

using Doubles = std::vector<double>;
using Bytes = std::vector<std::byte>;

constexpr DType kDtypes[] = {DType::kF32, DType::kBF16, DType::kF16};
constexpr double kRoot = 0.7978845608028654, kCube = 0.044715;  // sqrt(2 / pi)

double rounding(DType dtype) { return dtype == DType::kF32 ? 1e-6 : dtype == DType::kBF16 ? 4e-3 : 6e-4; }

double normal_below(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }
double gelu_of(Gelu kind, double x) {
  if (kind == Gelu::kErf) return x * normal_below(x);
  return 0.5 * x * (1 + std::tanh(kRoot * (x + kCube * x * x * x)));
}
double slope_of(Gelu kind, double x) {
  if (kind == Gelu::kErf) return normal_below(x) + x * std::exp(-0.5 * x * x) * 0.5 * kRoot;
  const double t = std::tanh(kRoot * (x + kCube * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kRoot * (1 + 3 * kCube * x * x);
}

Bytes stored(const Doubles& values, DType dtype) {
  Bytes bytes(values.size() * static_cast<std::size_t>(size_of(dtype)));
  for (std::size_t i = 0; i < values.size(); ++i)
    store_f64(bytes.data(), dtype, static_cast<std::int64_t>(i), values[i]);
  return bytes;
}
Doubles loaded(const Bytes& bytes, DType dtype) {
  Doubles values(bytes.size() / static_cast<std::size_t>(size_of(dtype)));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = load_f64(bytes.data(), dtype, static_cast<std::int64_t>(i));
  return values;
}
Doubles drawn(std::size_t count, DType dtype, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, 2);
  Doubles values(count);
  for (double& x : values) x = normal(random);
  return loaded(stored(values, dtype), dtype);
}

struct RowSumShape {
  std::int64_t rows, columns;
};
constexpr RowSumShape kShapes[] = {{1, 1}, {63, 5}, {64, 16}, {130, 17}, {700, 96}, {20001, 33}};

TEST(RowSum, OnTheCpuIsTheSum) {
  for (const auto& [rows, columns] : kShapes) {
    for (const DType dtype : kDtypes) {
      SCOPED_TRACE(str(rows, " x ", columns, " ", name_of(dtype)));
      const Doubles x = drawn(static_cast<std::size_t>(rows * columns), dtype, 1);
      Doubles want(static_cast<std::size_t>(columns)), size(want);
      for (std::size_t i = 0; i < x.size(); ++i) want[i % want.size()] += x[i], size[i % want.size()] += std::abs(x[i]);
      const Bytes bytes = stored(x, dtype);
      std::vector<std::vector<float>> got;
      for (const int threads : {1, 3}) {
        ThreadPool pool(threads);
        std::vector<float> sum(static_cast<std::size_t>(columns), -7.0f);
        RunOptions run;
        run.maybe_executor = &pool;
        row_sum(ConstView(bytes.data(), dtype, {rows, columns}), View(sum.data(), DType::kF32, {columns}), run);
        got.push_back(sum);
      }
      EXPECT_EQ(got[0], got[1]);
      for (std::size_t c = 0; c < want.size(); ++c) EXPECT_LE(std::abs(got[0][c] - want[c]), 1e-6 * size[c]) << c;
    }
  }
}

class GeluKinds : public testing::TestWithParam<Gelu> {};

INSTANTIATE_TEST_SUITE_P(Kinds, GeluKinds, testing::Values(Gelu::kErf, Gelu::kTanh),
                         [](const auto& kind) { return kind.param == Gelu::kErf ? "erf" : "tanh"; });

TEST_P(GeluKinds, OnTheCpuAreTheFormula) {
  for (const auto& [rows, columns] : kShapes) {
    for (const DType dtype : kDtypes) {
      SCOPED_TRACE(str(rows, " x ", columns, " ", name_of(dtype)));
      const auto count = static_cast<std::size_t>(rows * columns);
      const Doubles x = drawn(count, dtype, 2), dout = drawn(count, dtype, 3);
      const Bytes pre = stored(x, dtype), given = stored(dout, dtype);
      Bytes y(pre.size()), dpre(pre.size());
      std::vector<float> sum(static_cast<std::size_t>(columns), -7.0f);
      gelu(GetParam(), ConstView(pre.data(), dtype, {rows, columns}), View(y.data(), dtype, {rows, columns}));
      gelu_row_sum(GetParam(), ConstView(given.data(), dtype, {rows, columns}),
                   ConstView(pre.data(), dtype, {rows, columns}), View(dpre.data(), dtype, {rows, columns}),
                   View(sum.data(), DType::kF32, {columns}));
      const Doubles got = loaded(y, dtype), gradient = loaded(dpre, dtype);
      Doubles sums(sum.size()), size(sum.size());
      for (std::size_t i = 0; i < count; ++i) {
        const double d = dout[i] * slope_of(GetParam(), x[i]), want = gelu_of(GetParam(), x[i]);
        EXPECT_LE(std::abs(got[i] - want), rounding(dtype) * std::max(1e-2, std::abs(want))) << x[i];
        EXPECT_LE(std::abs(gradient[i] - d), rounding(dtype) * (1e-2 + std::max(std::abs(d), std::abs(dout[i]))))
            << x[i];
        sums[i % sums.size()] += d, size[i % sums.size()] += std::abs(d) + 1e-2;
      }
      for (std::size_t c = 0; c < sums.size(); ++c) EXPECT_LE(std::abs(sum[c] - sums[c]), 2e-6 * size[c]) << c;
    }
  }
}

TEST_P(GeluKinds, FarFromZeroAreAStep) {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> x{-1e30f, -300.0f, -30.0f, 30.0f, 300.0f, 1e30f, infinity, nan};
  const std::vector<float> wanted{0, 0, 0, 30, 300, 1e30f, infinity}, slopes{0, 0, 0, 1, 1, 1, 1};
  const auto count = static_cast<std::int64_t>(x.size());
  std::vector<float> y(x.size()), dpre(x.size()), sum(x.size()), ones(x.size(), 1.0f);
  const ConstView from(x.data(), DType::kF32, {1, count});
  gelu(GetParam(), from, View(y.data(), DType::kF32, {1, count}));
  gelu_row_sum(GetParam(), ConstView(ones.data(), DType::kF32, {1, count}), from,
               View(dpre.data(), DType::kF32, {1, count}), View(sum.data(), DType::kF32, {count}));
  for (std::size_t i = 0; i < wanted.size(); ++i) EXPECT_TRUE(y[i] == wanted[i] && dpre[i] == slopes[i]) << x[i];
  EXPECT_TRUE(std::isnan(y.back()) && std::isnan(dpre.back()) && std::isnan(sum.back()));
}

TEST(RowSum, SaysWhatIsWrong) {
  std::vector<float> memory(64);
  const ConstView x(memory.data(), DType::kF32, {4, 8});
  const View sum(memory.data(), DType::kF32, {8});
  EXPECT_EQ(message_of([&] {
              row_sum(ConstView(memory.data(), DType::kF64, {2, 4}), sum);
            }),
            "row_sum: x of shape [2, 4]: expected f32, bf16 or f16");
  EXPECT_EQ(message_of([&] { row_sum(x, View(memory.data(), DType::kF32, {4})); }),
            "row_sum: sum has shape [4] and dtype f32, expected [8] f32, contiguous, on the device of x");
  EXPECT_EQ(message_of([&] {
              gelu(Gelu::kTanh, x, View(memory.data(), DType::kF32, {8, 4}));
            }),
            "gelu: y has shape [8, 4] and dtype f32, expected [4, 8] f32 like x, both contiguous, on the CPU");
  EXPECT_EQ(message_of([&] {
              gelu_row_sum(Gelu::kTanh, x, ConstView(memory.data(), DType::kF32, {4, 4}),
                           View(memory.data(), DType::kF32, {4, 8}), sum);
            }),
            "gelu_row_sum: pre has shape [4, 4] and dtype f32, expected [4, 8] f32, contiguous, on the device of dout");
}

}  // namespace
}  // namespace mhla
