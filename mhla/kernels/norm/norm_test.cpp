// Against the formulas in f64, on the CPU and, where there is one, on the GPU.
#include "mhla/kernels/norm/norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "mhla/core/cuda.h"
#include "mhla/core/error.h"
#include "mhla/core/threads.h"
#include "mhla/kernels/norm/norm_job.h"
#include "mhla/testing/messages.h"

namespace mhla {
namespace {

using Doubles = std::vector<double>;

struct Shape {
  std::int64_t rows, X;
  bool centered, bias, gate;
};

struct Values {  // all of one problem, as f64 and rounded to the dtype of each tensor
  Doubles x, weight, bias, gate, dout, y, dx, dweight, dbias, dgate;
};

Values expected(const Shape& s, double eps, DType dtype, DType out) {
  std::mt19937 random(static_cast<unsigned>(s.rows * 31 + s.X));
  std::normal_distribution<double> normal;
  const auto draw = [&](std::int64_t count, DType as) {
    Doubles values(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) {
      std::byte one[8];
      store_f64(one, as, 0, normal(random));
      values[static_cast<std::size_t>(i)] = load_f64(one, as, 0);
    }
    return values;
  };
  Values v;
  v.x = draw(s.rows * s.X, dtype), v.gate = draw(s.rows * s.X, dtype), v.dout = draw(s.rows * s.X, out);
  v.weight = draw(s.X, DType::kF32), v.bias = draw(s.X, DType::kF32);
  v.y = v.dx = v.dgate = Doubles(v.x.size()), v.dweight = v.dbias = Doubles(v.weight.size());
  const auto X = static_cast<std::size_t>(s.X);
  for (std::size_t row = 0; row < static_cast<std::size_t>(s.rows); ++row) {
    const double* x = &v.x[row * X];
    double mean = 0, square = 0;
    for (std::size_t c = 0; c < X; ++c) mean += s.centered ? x[c] / static_cast<double>(X) : 0.0;
    for (std::size_t c = 0; c < X; ++c) square += (x[c] - mean) * (x[c] - mean) / static_cast<double>(X);
    const double factor = 1.0 / std::sqrt(square + eps);
    double along = 0, level = 0;
    Doubles unit(X), inner(X);
    for (std::size_t c = 0; c < X; ++c) {
      const std::size_t at = row * X + c;
      const double sigmoid = 1.0 / (1.0 + std::exp(-v.gate[at])), silu = s.gate ? v.gate[at] * sigmoid : 1.0;
      unit[c] = (x[c] - mean) * factor;
      const double plain = unit[c] * v.weight[c] + (s.bias ? v.bias[c] : 0.0), d = v.dout[at] * silu;
      v.y[at] = plain * silu;
      v.dgate[at] = v.dout[at] * plain * sigmoid * (1.0 + v.gate[at] * (1.0 - sigmoid));
      v.dweight[c] += d * unit[c], v.dbias[c] += d;
      inner[c] = d * v.weight[c];
      along += inner[c] * unit[c] / static_cast<double>(X), level += inner[c] / static_cast<double>(X);
    }
    for (std::size_t c = 0; c < X; ++c)
      v.dx[row * X + c] = factor * (inner[c] - unit[c] * along - (s.centered ? level : 0.0));
  }
  return v;
}

// Memory of one tensor, on the CPU or on the device, rows `gap` elements further apart than they are long.
class Held {
 public:
  Held(const Doubles& values, std::int64_t rows, DType dtype, bool device, std::int64_t gap = 0)
      : dtype_(dtype),
        rows_(rows),
        X_(static_cast<std::int64_t>(values.size()) / rows),
        stride_(X_ + gap),
        device_(device),
        bytes_(static_cast<std::size_t>(rows * stride_ * size_of(dtype))) {
    for (std::int64_t r = 0; r < rows_; ++r)
      for (std::int64_t c = 0; c < X_; ++c)
        store_f64(bytes_.data(), dtype_, r * stride_ + c, values[static_cast<std::size_t>(r * X_ + c)]);
    if (device_) {
      buffer_ = DeviceBuffer(size(), 0);
      device_copy(buffer_.data(), bytes_.data(), size(), 0);
    }
  }
  [[nodiscard]] View view() {
    View v(device_ ? buffer_.data() : bytes_.data(), dtype_, {rows_, X_});
    v.stride[0] = stride_;
    if (device_) v.device = 0;
    return v;
  }
  [[nodiscard]] View line() {  // of one row
    View v = view();
    v.rank = 1, v.shape[0] = X_, v.stride[0] = 1;
    return v;
  }
  [[nodiscard]] Doubles values() {
    if (device_) device_copy(bytes_.data(), buffer_.data(), size(), 0);
    Doubles all;
    for (std::int64_t r = 0; r < rows_; ++r)
      for (std::int64_t c = 0; c < X_; ++c) all.push_back(load_f64(bytes_.data(), dtype_, r * stride_ + c));
    return all;
  }
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(bytes_.size()); }

 private:
  DType dtype_;
  std::int64_t rows_, X_, stride_;
  bool device_;
  std::vector<std::byte> bytes_;
  DeviceBuffer buffer_;
};

double error(const Doubles& got, const Doubles& want) {
  double off = 0, size = 0;
  for (std::size_t i = 0; i < want.size(); ++i)
    off += (got[i] - want[i]) * (got[i] - want[i]), size += want[i] * want[i];
  return std::sqrt(off / size);
}

void check(const Shape& s, DType dtype, DType out, bool device, std::int64_t gap) {
  SCOPED_TRACE(str(s.rows, " rows of ", s.X, s.centered ? ", centered" : "", s.bias ? ", bias" : "",
                   s.gate ? ", gate" : "", ", ", name_of(dtype), " to ", name_of(out), ", gap ", gap));
  const double eps = 1e-3;
  const Values want = expected(s, eps, dtype, out);
  const Doubles nothing(want.x.size(), -7.0), none(want.weight.size(), -7.0);
  Held x(want.x, s.rows, dtype, device, gap), gate(want.gate, s.rows, dtype, device),
      dout(want.dout, s.rows, out, device);
  Held weight(want.weight, 1, DType::kF32, device), bias(want.bias, 1, DType::kF32, device);
  Held y(nothing, s.rows, out, device), dx(nothing, s.rows, dtype, device, gap), dgate(nothing, s.rows, dtype, device);
  Held dweight(none, 1, DType::kF32, device), dbias(none, 1, DType::kF32, device);
  NormParams p;
  p.x = x.view(), p.weight = weight.line(), p.eps = eps, p.centered = s.centered;
  NormGrads g;
  g.dout = dout.view(), g.dx = dx.view(), g.maybe_dweight = dweight.line();
  if (s.bias) p.maybe_bias = bias.line(), g.maybe_dbias = dbias.line();
  if (s.gate) p.maybe_gate = gate.view(), g.maybe_dgate = dgate.view();
  ASSERT_EQ(norm_fit(p, out), "");
  Held memory(Doubles(static_cast<std::size_t>(norm_workspace(p)) / 4), 1, DType::kF32, device);
  RunOptions run;
  if (device) run.workspace = {static_cast<std::byte*>(memory.view().data), static_cast<std::size_t>(memory.size())};
  norm(p, y.view(), run);
  norm_backward(p, g, run);
  const auto bound = [](DType of) {
    return of == DType::kF32 ? 1e-6 : of == DType::kBF16 ? 4e-3 : 5e-4;
  };  // one rounding
  EXPECT_LT(error(y.values(), want.y), bound(out));
  EXPECT_LT(error(dx.values(), want.dx), bound(dtype));
  EXPECT_LT(error(dweight.values(), want.dweight), 2e-6);
  if (s.bias) {
    EXPECT_LT(error(dbias.values(), want.dbias), 2e-6);
  }
  if (s.gate) {
    EXPECT_LT(error(dgate.values(), want.dgate), bound(dtype));
  }
  // Again: the same bits.
  const Doubles before = dweight.values();
  norm_backward(p, g, run);
  EXPECT_EQ(before, dweight.values());
}

constexpr Shape kShapes[] = {
    {1, 1, false, false, false},    {3, 7, true, true, true},        {64, 64, false, false, false},
    {65, 192, true, true, false},   {9, 200, false, false, true},    {40, 256, false, true, true},
    {33, 384, true, false, true},   {5000, 96, true, true, false},   {17, 1024, false, false, false},
    {21, 1000, true, true, true},   {257, 513, false, false, true},  {4099, 64, false, false, true},
    {131, 128, false, true, false}, {20001, 192, true, true, false}, {77, 192, false, false, true},
    {50, 768, true, true, true},    {35, 640, false, false, false},  {260, 512, false, false, true},
};

TEST(Norm, OnTheCpuIsTheFormula) {
  for (const Shape& s : kShapes) {
    for (const std::int64_t gap : {0, 5}) {
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) check(s, dtype, dtype, false, gap);
      check(s, DType::kF32, DType::kBF16, false, gap);
      check(s, DType::kBF16, DType::kF32, false, gap);
    }
  }
}

// Highway's exponential is wrong past 177: a gate of -200 was a factor of -200 instead of 0.
TEST(Norm, GatesFarFromZero) {
  const std::vector<float> x(8, 1.0f), gate{-1e30f, -300.0f, -200.0f, -178.0f, -90.0f, 90.0f, 178.0f, 1e30f};
  std::vector<float> y(8), dx(8), dgate(8), dweight(8);
  NormParams p;
  p.x = ConstView(x.data(), DType::kF32, {1, 8}), p.weight = ConstView(x.data(), DType::kF32, {8}), p.eps = 0;
  p.maybe_gate = ConstView(gate.data(), DType::kF32, {1, 8});
  NormGrads g;
  g.dout = p.x, g.dx = View(dx.data(), DType::kF32, {1, 8}), g.maybe_dgate = View(dgate.data(), DType::kF32, {1, 8});
  g.maybe_dweight = View(dweight.data(), DType::kF32, {8});
  norm(p, View(y.data(), DType::kF32, {1, 8}));
  norm_backward(p, g);
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(y[i], gate[i] < 0 ? 0.0f : gate[i]) << gate[i];
    EXPECT_EQ(dgate[i], gate[i] < 0 ? 0.0f : 1.0f) << gate[i];
  }
}

TEST(Norm, OnTheGpuIsTheFormula) {
  if (cuda_device_count() == 0) GTEST_SKIP() << cuda_missing();
  for (const Shape& s : kShapes) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      check(s, dtype, dtype, true, 0);
      check(s, dtype, dtype, true, 3);
      check(s, DType::kF32, dtype, true, 4);
    }
  }
}

TEST(Norm, BitsDoNotDependOnTheThreads) {
  const Shape s{300, 130, true, true, true};
  const Values v = expected(s, 1e-6, DType::kF32, DType::kF32);
  std::vector<Doubles> results;
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    Held x(v.x, s.rows, DType::kF32, false), dout(v.dout, s.rows, DType::kF32, false),
        dx(v.x, s.rows, DType::kF32, false);
    Held weight(v.weight, 1, DType::kF32, false), dweight(v.weight, 1, DType::kF32, false);
    NormParams p;
    p.x = x.view(), p.weight = weight.line(), p.centered = true;
    NormGrads g;
    g.dout = dout.view(), g.dx = dx.view(), g.maybe_dweight = dweight.line();
    RunOptions run;
    run.maybe_executor = &pool;
    norm_backward(p, g, run);
    Doubles all = dx.values();
    const Doubles more = dweight.values();
    all.insert(all.end(), more.begin(), more.end());
    results.push_back(all);
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST(Norm, RefusalsSayWhatIsWrong) {
  std::vector<float> memory(64);
  NormParams p;
  p.x = ConstView(memory.data(), DType::kF32, {4, 8});
  p.weight = ConstView(memory.data(), DType::kF32, {8});
  const View out(memory.data(), DType::kF32, {4, 8});
  const auto refused = [&](const NormParams& given, const View& to) { return message_of([&] { norm(given, to); }); };
  EXPECT_EQ(refused(p, View(memory.data(), DType::kF32, {4, 7})), "norm: out has shape [4, 7], expected [4, 8] like x");
  EXPECT_EQ(refused(p, View(memory.data(), DType::kF64, {4, 8})), "norm: expected f32, bf16 or f16");
  NormParams wrong = p;
  wrong.weight = ConstView(memory.data(), DType::kF32, {7});
  EXPECT_EQ(refused(wrong, out), "norm: weight has shape [7] and dtype f32, expected 8 f32 values in a row");
  wrong = p, wrong.eps = -1;
  EXPECT_EQ(refused(wrong, out), "norm: eps is -1, expected 0 or more");
  wrong = p, wrong.maybe_gate = ConstView(memory.data(), DType::kF32, {4, 4});
  EXPECT_EQ(refused(wrong, out), "norm: gate has shape [4, 4], expected [4, 8] like x");
}

}  // namespace
}  // namespace mhla
