// Linear layers of a few rows, with what stands around them, against the formulas in f64; a row has the same bits
// whatever other rows there are. The cut of K is plain code; the rest is skipped, saying so, without a device of sm_90,
// and runs on the CPU in the emulator of tests/gpu (tensor_core_test), large sizes with fewer rows.
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

TEST(LinearRowsPlan, KernelsOfADecodeStepShareAMultiprocessor) {
  // Shared memory of a multiprocessor from sm_90 on; every block of threads takes 1 KiB more than it asks for.
  constexpr int kMemory = 228 << 10, kOwn = 1 << 10;
  constexpr auto kBytes = [](int columns, int turned, int slices, bool pairs, std::int64_t K, std::int64_t head) {
    return rows_places(kMostRows, rows_tile_sm90(kMostRows, columns, turned, slices, pairs), rows_cut(K, head).slice,
                       slices)
               .end +
           kOwn;
  };
  // mhla_340m: q, k, v and the gate; out; SwiGLU; down. A block of each finds room beside one of the next.
  static_assert(
      rows_on_sm90(RowsBefore::kNorm, RowsAfter::kStore) && rows_on_sm90(RowsBefore::kHeadNorm, RowsAfter::kAdd) &&
      rows_on_sm90(RowsBefore::kNorm, RowsAfter::kSwiglu) && rows_on_sm90(RowsBefore::kPlain, RowsAfter::kAdd));
  constexpr int kIn = kBytes(3072, 1024, 4, false, 1024, 0), kOut = kBytes(1024, 0, 4, false, 1024, 256);
  constexpr int kMlp = kBytes(2816, 0, 4, true, 1024, 0), kDown = kBytes(1024, 0, 8, false, 2816, 0);
  EXPECT_LE(kOut + kMlp, kMemory);
  EXPECT_LE(kMlp + kDown, kMemory);
  EXPECT_LE(kDown + kIn, kMemory);
  EXPECT_EQ(rows_tile_sm90(64, 3072, 1024, 4, false), 104);
  EXPECT_EQ(rows_tile_sm90(64, 2816, 0, 4, true), 192);
  EXPECT_EQ(rows_tile_sm90(1, 3072, 1024, 4, false), 104);
  EXPECT_EQ(rows_tile_sm90(1, 1024, 0, 4, false), 64);
  EXPECT_EQ(rows_tile_sm90(1, 2816, 0, 4, true), 176);
  EXPECT_EQ(rows_tile_sm90(1, 1024, 0, 8, false), 96);
  EXPECT_EQ(rows_tile_sm90(64, 32000, 0, 4, false), kRowsMostTile);
  EXPECT_LE(kBytes(32000, 0, 8, false, 3072, 0), 227 << 10) << "the largest there is";
  for (const int rows : {16, 32, 64}) {
    for (int tile = 32; tile <= kRowsMostTile; tile += 8) {
      for (const int slices : {1, 2, 4, 8}) {
        for (const int slice : {16, 256, 384}) {
          const RowsPlaces at = rows_places(rows, tile, slice, slices);
          const int operands = rows_panels(slice) * (rows + tile) * 64, sums = slices * tile * at.fours * 16;
          ASSERT_EQ(1 << at.shift, at.fours);
          ASSERT_GE(at.fours * slices * 4, rows) << "every row has a block that finishes it";
          ASSERT_GE(at.come, at.apart ? operands : 0);
          ASSERT_GE(at.squares, std::max(operands + std::max(64 - tile, 0) * 64, at.come + sums));
          ASSERT_EQ(at.barriers - at.squares, slices * at.fours * 16);
          ASSERT_EQ(at.come % 16 + at.squares % 16 + at.barriers % 8, 0);
          ASSERT_LE(at.end, 227 << 10);
        }
      }
    }
  }
  EXPECT_EQ(rows_squares_at(16, 96, 16) % 16, 0);
  EXPECT_GE(rows_squares_at(64, 96, 16), 64 * (96 + kRowsSumPad) * 4) << "sums need more room than short rows";
}

TEST(LinearRowsPlan, TilesOfTurnedPairsComeFirst) {
  static_assert(rows_tiles(3072, 1024, 96).turned == 11 && rows_tiles(3072, 1024, 96).all == 33);
  for (int turned = 0; turned <= 400; turned += 8) {
    const RowsTiles tiles = rows_tiles(400, turned, 96);
    EXPECT_GE(tiles.turned * 48, turned / 2);
    EXPECT_GE((tiles.all - tiles.turned) * 96, 400 - turned);
  }
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
  OnDevice(DType dtype, Doubles given, std::int64_t rows, std::int64_t columns)
      : values(std::move(given)),
        dtype_(dtype),
        rows_(rows),
        columns_(columns),
        memory_(rows * columns * size_of(dtype), 0) {
    std::vector<std::byte> host(static_cast<std::size_t>(memory_.size()));
    for (std::int64_t i = 0; i < rows * columns; ++i)
      store_f64(host.data(), dtype, i, values[static_cast<std::size_t>(i)]);
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
  static bool emulated() { return device_facts(0).name == "emulator"; }
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
        double sums[4] = {};  // none waits for the one before
        for (std::int64_t k = 0; k < s.K; ++k) sums[k % 4] += a[static_cast<std::size_t>(k)] * at(of, o * s.K + k);
        return (sums[0] + sums[1]) + (sums[2] + sums[3]);
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
                  {64, 2048, 96, 0, 256},
                  {48, 1024, 2816, 264, 256}}) {
    if (after == RowsAfter::kAdd) s.O2 = 0;
    if (after == RowsAfter::kSwiglu) s.O2 = s.O;
    const bool large = emulated() && s.K * s.O > 300'000;
    if (large && s.R == 64) continue;
    const Problem problem(before, after, s);
    const auto [want, more] = problem.expected();
    const auto [got, got_more] = problem.run(s.R);
    EXPECT_LE(distance(got, want), 6e-3) << s.R << " rows, K " << s.K << ", O " << s.O;
    EXPECT_LE(distance(got_more, more), 6e-3) << s.R << " rows, K " << s.K << ", O2 " << s.O2;
    for (const std::int64_t rows : {std::int64_t{1}, s.R / 2, std::int64_t{16}, std::int64_t{17}, std::int64_t{33}}) {
      if (rows < 1 || rows > s.R || (large && rows != 1)) continue;
      const auto [fewer, fewer_more] = problem.run(rows);
      EXPECT_TRUE(std::equal(fewer.begin(), fewer.end(), got.begin())) << "other bits with " << rows << " rows";
      EXPECT_TRUE(std::equal(fewer_more.begin(), fewer_more.end(), got_more.begin()))
          << "other bits of second with " << rows << " rows";
    }
  }
  if (before == RowsBefore::kHeadNorm) return;
  for (const std::int64_t rows : {5, 40}) {
    const Sizes odd{rows, 2816, 72, after == RowsAfter::kAdd ? 0 : 72, 0};
    const Problem problem(before, after, odd);
    const Doubles all = problem.run(rows).first, one = problem.run(1).first;
    EXPECT_LE(distance(all, problem.expected().first), 6e-3) << rows << " rows";
    EXPECT_TRUE(std::equal(one.begin(), one.end(), all.begin())) << "other bits than with " << rows << " rows";
  }
}

INSTANTIATE_TEST_SUITE_P(All, LinearRows,
                         testing::Combine(testing::Values(RowsBefore::kPlain, RowsBefore::kNorm, RowsBefore::kHeadNorm),
                                          testing::Values(RowsAfter::kStore, RowsAfter::kAdd, RowsAfter::kSwiglu)));

double rounded(DType dtype, float x) {
  std::byte memory[4];
  store_f64(memory, dtype, 0, x);
  return load_f64(memory, dtype, 0);
}

// q and k as rope() would turn what linear_rows gives, bit for bit; the other columns as they are.
TEST(LinearRowsTurned, HaveTheBitsOfRope) {
  if (const std::string why = cuda_missing(); !why.empty()) GTEST_SKIP() << "cuda: " << why;
  if (device_facts(0).major < 9) GTEST_SKIP() << "cuda: the device is older than sm_90";
  struct Turned {
    Sizes s;
    std::int64_t columns, head;
  };
  for (const Turned& t : {Turned{{1, 64, 40, 0, 0}, 40, 8},
                          {{16, 256, 200, 104, 0}, 144, 48},
                          {{17, 1024, 2048, 1024, 0}, 1024, 128},
                          {{64, 1024, 2048, 1024, 0}, 1024, 128},
                          {{33, 2816, 96, 0, 0}, 64, 32}}) {
    const Sizes& s = t.s;
    const Problem problem(RowsBefore::kNorm, RowsAfter::kStore, s);
    const std::int64_t half = t.head / 2;
    const OnDevice cos(DType::kF32, s.R, half, 9), sin(DType::kF32, s.R, half, 10);
    const OnDevice out(DType::kBF16, s.R, s.O, 11), second(DType::kBF16, s.R, std::max<std::int64_t>(s.O2, 8), 12);
    RowsStep step;
    RowsTurn& turn = step.turn;
    step.maybe_next = problem.weight.view();
    turn.cos = cos.view(), turn.sin = sin.view();
    turn.columns = t.columns, turn.head = t.head, turn.feature_map = FeatureMap::kRelu;
    linear_rows_step(problem.p, step, out.view(), s.O2 > 0 ? second.view() : View());
    device_wait(0);
    auto [want, more] = problem.run(s.R);
    for (std::int64_t r = 0; r < s.R; ++r) {
      for (std::int64_t u = 0; u < t.columns / 2; ++u) {
        const auto line = static_cast<std::size_t>(r * half + u % half);
        const auto at = static_cast<std::size_t>(r * s.O + u / half * t.head + u % half);
        const auto other = at + static_cast<std::size_t>(half);
        const auto a = static_cast<float>(std::max(want[at], 0.0)), b = static_cast<float>(std::max(want[other], 0.0));
        const auto c = static_cast<float>(cos.values[line]), d = static_cast<float>(sin.values[line]);
        const float ac = a * c, bd = b * d, ad = a * d, bc = b * c;
        want[at] = rounded(DType::kBF16, ac - bd), want[other] = rounded(DType::kBF16, ad + bc);
      }
    }
    EXPECT_EQ(distance(out.read(), want), 0) << s.R << " rows, heads of " << t.head;
    if (s.O2 == 0) continue;
    EXPECT_EQ(distance(second.read(), more), 0) << s.R << " rows, heads of " << t.head;
  }
}

// silu(gate) out of one kernel and into the next.
TEST(LinearRowsGates, AreSiluOnTheirWay) {
  if (const std::string why = cuda_missing(); !why.empty()) GTEST_SKIP() << "cuda: " << why;
  if (device_facts(0).major < 9) GTEST_SKIP() << "cuda: the device is older than sm_90";
  RowsStep makes, takes;
  makes.silu_second = true, takes.silu_done = true;
  for (const std::int64_t rows : {3, 64}) {
    const Problem first(RowsBefore::kNorm, RowsAfter::kStore, {rows, 1024, 96, 512, 0});
    const OnDevice out(DType::kBF16, rows, 96, 11), gates(DType::kBF16, rows, 512, 12);
    linear_rows_step(first.p, makes, out.view(), gates.view());
    device_wait(0);
    auto [plain, want] = first.expected();
    for (double& x : want) x = silu(x);
    EXPECT_LE(distance(out.read(), plain), 6e-3);
    EXPECT_LE(distance(gates.read(), want), 6e-3);

    Problem second(RowsBefore::kHeadNorm, RowsAfter::kAdd, {rows, 512, 104, 0, 128});
    Doubles raw = second.gate.values;
    for (double& x : second.gate.values) x = rounded(DType::kBF16, static_cast<float>(silu(x)));
    const OnDevice sum(DType::kF32, rows, 104, 13), ready(DType::kBF16, second.gate.values, rows, 512);
    second.p.maybe_gate = ready.view();
    linear_rows_step(second.p, takes, sum.view());
    device_wait(0);
    second.gate.values = raw;
    EXPECT_LE(distance(sum.read(), second.expected().first), 8e-3);
  }
}

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
