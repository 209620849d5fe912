// Linear layers of a few rows, with what stands around them, against the formulas in f64; a row has the same bits
// whatever other rows there are. The cut of K is plain code; the rest is skipped, saying so, without a device of sm_90.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "mhla/core/cuda.h"
#include "mhla/core/error.h"
#include "mhla/kernels/linear/linear_rows_job.h"
#include "mhla/testing/messages.h"

namespace mhla {
namespace {

TEST(LinearRowsCut, CoversKInWholeSteps) {
  for (std::int64_t K = 8; K <= 3072; K += 8) {
    const RowsCut cut = rows_cut(K, 0);
    ASSERT_GT(cut.slices, 0) << K;
    ASSERT_EQ(cut.slice % 16, 0) << K;
    ASSERT_LE(cut.slice, kRowsSlice) << K;
    ASSERT_GE(cut.slice * cut.slices, K);
  }
  EXPECT_EQ(rows_cut(3080, 0).slices, 0);
  EXPECT_EQ(rows_cut(1024, 256).slice, 256);
  EXPECT_EQ(rows_cut(384, 128).slices, 1);
  EXPECT_EQ(rows_cut(768, 256).slices, 0) << "no power of two cuts three heads of 256 into short slices";
}

using Doubles = std::vector<double>;

// Numbers on the device, and as they were rounded.
class OnDevice {
 public:
  OnDevice(DType dtype, std::int64_t rows, std::int64_t columns, unsigned seed, double deviation = 1.0)
      : dtype_(dtype), rows_(rows), columns_(columns), memory_(rows * columns * size_of(dtype), 0) {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal(0.0, deviation);
    std::vector<std::byte> host(static_cast<std::size_t>(memory_.size()));
    for (std::int64_t i = 0; i < rows * columns; ++i) {
      store_f64(host.data(), dtype, i, normal(random));
      values.push_back(load_f64(host.data(), dtype, i));
    }
    device_copy(memory_.data(), host.data(), memory_.size(), 0);
  }
  [[nodiscard]] View view(bool vector = false) const {
    View view(memory_.data(), dtype_, vector ? std::vector{columns_} : std::vector{rows_, columns_});
    view.device = 0;
    return view;
  }
  [[nodiscard]] Doubles read() const {
    std::vector<std::byte> host(static_cast<std::size_t>(memory_.size()));
    device_copy(host.data(), memory_.data(), memory_.size(), 0);
    Doubles all;
    for (std::int64_t i = 0; i < rows_ * columns_; ++i) all.push_back(load_f64(host.data(), dtype_, i));
    return all;
  }
  Doubles values;

 private:
  DType dtype_;
  std::int64_t rows_, columns_;
  DeviceBuffer memory_;
};

struct Sizes {
  std::int64_t R, K, O, O2, head;
};

class LinearRows : public testing::TestWithParam<std::tuple<RowsBefore, RowsAfter>> {
 protected:
  void SetUp() override {
    if (const std::string why = cuda_missing(); !why.empty()) GTEST_SKIP() << "cuda: " << why;
    if (device_facts(0).major < 9) GTEST_SKIP() << "cuda: the device is older than sm_90";
  }
};

double silu(double x) { return x / (1.0 + std::exp(-x)); }

// One problem, and what it gives: out, then second_out.
struct Problem {
  Problem(RowsBefore before, RowsAfter after, const Sizes& given)
      : s(given),
        x(before == RowsBefore::kNorm ? DType::kF32 : DType::kBF16, s.R, s.K, 1, 2.0),
        weight(DType::kBF16, s.O, s.K, 2, 0.1),
        second(DType::kBF16, std::max<std::int64_t>(s.O2, 8), s.K, 3, 0.1),
        scale(DType::kBF16, 1, before == RowsBefore::kHeadNorm ? s.head : s.K, 4),
        gate(DType::kBF16, s.R, s.K, 5),
        add(DType::kF32, s.R, s.O, 6) {
    p.before = before, p.after = after, p.head = s.head, p.eps = 1e-3;
    p.x = x.view(), p.weight = weight.view();
    if (s.O2 > 0) p.maybe_second = second.view();
    if (before != RowsBefore::kPlain) p.maybe_scale = scale.view(true);
    if (before == RowsBefore::kHeadNorm) p.maybe_gate = gate.view();
    if (after == RowsAfter::kAdd) p.maybe_add = add.view();
  }

  [[nodiscard]] std::pair<Doubles, Doubles> run(std::int64_t rows) const {
    const DType dtype = p.after == RowsAfter::kAdd ? DType::kF32 : DType::kBF16;
    const OnDevice out(dtype, rows, s.O, 7), second_out(dtype, rows, std::max<std::int64_t>(s.O2, 8), 8);
    LinearRowsParams some = p;
    const auto cut = [&](ConstView& view) {
      if (view.given()) view.shape[0] = rows;
    };
    cut(some.x), cut(some.maybe_gate), cut(some.maybe_add);
    const bool both = p.after == RowsAfter::kStore && s.O2 > 0;
    linear_rows(some, out.view(), both ? second_out.view() : View());
    device_wait(0);
    return {out.read(), both ? second_out.read() : Doubles()};
  }

  [[nodiscard]] std::pair<Doubles, Doubles> expected() const {
    Doubles out, more;
    const auto at = [](const OnDevice& from, std::int64_t i) { return from.values[static_cast<std::size_t>(i)]; };
    for (std::int64_t r = 0; r < s.R; ++r) {
      Doubles a;
      for (std::int64_t k = 0; k < s.K; ++k) {
        const std::int64_t size = p.before == RowsBefore::kHeadNorm ? s.head : s.K, begin = k / size * size;
        double value = at(x, r * s.K + k);
        if (p.before != RowsBefore::kPlain) {
          double square = 0;
          for (std::int64_t j = begin; j < begin + size; ++j) square += at(x, r * s.K + j) * at(x, r * s.K + j);
          value *= at(scale, k - begin) / std::sqrt(square / static_cast<double>(size) + p.eps);
        }
        if (p.before == RowsBefore::kHeadNorm) value *= silu(at(gate, r * s.K + k));
        a.push_back(value);
      }
      const auto product = [&](const OnDevice& of, std::int64_t o) {
        double sum = 0;
        for (std::int64_t k = 0; k < s.K; ++k) sum += a[static_cast<std::size_t>(k)] * at(of, o * s.K + k);
        return sum;
      };
      for (std::int64_t o = 0; o < s.O; ++o) {
        const double y = product(weight, o);
        out.push_back(p.after == RowsAfter::kAdd      ? at(add, r * s.O + o) + y
                      : p.after == RowsAfter::kSwiglu ? silu(y) * product(second, o)
                                                      : y);
      }
      for (std::int64_t o = 0; p.after == RowsAfter::kStore && o < s.O2; ++o) more.push_back(product(second, o));
    }
    return {out, more};
  }

  Sizes s;
  OnDevice x, weight, second, scale, gate, add;
  LinearRowsParams p;
};

double distance(const Doubles& got, const Doubles& want) {
  if (got.size() != want.size()) return HUGE_VAL;
  double off = 0, all = 0;
  for (std::size_t i = 0; i < got.size(); ++i) off += (got[i] - want[i]) * (got[i] - want[i]), all += want[i] * want[i];
  return all == 0 ? off : std::sqrt(off / all);
}

TEST_P(LinearRows, AreTheFormula) {
  const auto [before, after] = GetParam();
  for (Sizes s : {Sizes{1, 64, 8, 8, 32},
                  {3, 256, 104, 64, 8},
                  {16, 384, 1024, 512, 128},
                  {17, 1024, 200, 88, 256},
                  {33, 512, 96, 96, 64},
                  {64, 1024, 1000, 24, 256},
                  {64, 2048, 96, 0, 256}}) {
    if (after == RowsAfter::kAdd) s.O2 = 0;
    if (after == RowsAfter::kSwiglu) s.O2 = s.O;
    const Problem problem(before, after, s);
    const auto [want, more] = problem.expected();
    const auto [got, got_more] = problem.run(s.R);
    EXPECT_LE(distance(got, want), 6e-3) << s.R << " rows, K " << s.K << ", O " << s.O;
    EXPECT_LE(distance(got_more, more), 6e-3) << s.R << " rows, K " << s.K << ", O2 " << s.O2;
    for (const std::int64_t rows : {std::int64_t{1}, s.R / 2}) {
      if (rows < 1) continue;
      const Doubles fewer = problem.run(rows).first;
      EXPECT_TRUE(std::equal(fewer.begin(), fewer.end(), got.begin())) << "other bits with " << rows << " rows";
    }
  }
  if (before == RowsBefore::kHeadNorm) return;
  const Sizes odd{5, 2816, 72, after == RowsAfter::kAdd ? 0 : 72, 0};
  const Problem problem(before, after, odd);
  EXPECT_LE(distance(problem.run(odd.R).first, problem.expected().first), 6e-3);
}

INSTANTIATE_TEST_SUITE_P(All, LinearRows,
                         testing::Combine(testing::Values(RowsBefore::kPlain, RowsBefore::kNorm, RowsBefore::kHeadNorm),
                                          testing::Values(RowsAfter::kStore, RowsAfter::kAdd, RowsAfter::kSwiglu)));

TEST(LinearRowsFit, SaysWhyNot) {
  LinearRowsParams p;
  if (!cuda_built()) {
    EXPECT_EQ(linear_rows_fit(p), "built without CUDA");
    return;
  }
  EXPECT_EQ(linear_rows_fit(p), "x is in host memory");
  EXPECT_TRUE(has(message_of([&] { linear_rows(p, View()); }), "linear_rows: x is in host memory"));
}

}  // namespace
}  // namespace mhla
