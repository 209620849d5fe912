// linear_rows in the emulator, in every order of blocks, warps and copies, and with a previous kernel that ends as late
// as it can: the same bits, in rows with gaps, which stay NaN. linear_rows_cuda_test compares them with the formula.
#include "mhla/kernels/linear/linear_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "mhla/kernels/linear/linear_rows_step.h"
#include "mhla/testing/tensor.h"
#include "tests/gpu/emulator/modes.h"
#include "tests/gpu/emulator/previous.h"

namespace mhla {
namespace {

struct Layer {
  const char* name;
  RowsBefore before;
  RowsAfter after;
  std::int64_t R, K, O, O2 = 0, head = 0, turned = 0;
};

constexpr Layer kLayers[] = {
    {"q, k, v and gate of few rows", RowsBefore::kNorm, RowsAfter::kStore, 5, 1024, 200, 104, 0, 144},
    {"q, k, v and gate", RowsBefore::kNorm, RowsAfter::kStore, 40, 400, 136, 40, 0, 96},
    {"output projection", RowsBefore::kHeadNorm, RowsAfter::kAdd, 19, 1024, 104, 0, 256},
    {"SwiGLU", RowsBefore::kNorm, RowsAfter::kSwiglu, 61, 1000, 88, 88},
    {"down", RowsBefore::kPlain, RowsAfter::kAdd, 64, 2816, 72},
    {"down of one row", RowsBefore::kPlain, RowsAfter::kAdd, 1, 2816, 40},
    {"three warpgroups, sums where operands were", RowsBefore::kNorm, RowsAfter::kSwiglu, 33, 2056, 1040, 1040},
    {"one slice", RowsBefore::kNorm, RowsAfter::kSwiglu, 33, 72, 24, 24},
    {"the kernel of all cards", RowsBefore::kHeadNorm, RowsAfter::kStore, 18, 512, 72, 24, 64},
};

constexpr std::int64_t kGap = 8;  // elements after a row

// On the device, without the gaps.
template <class V>
V rows_of(V view) {
  view.device = 0, view.shape[1] -= kGap;
  return view;
}
ConstView rows(const Tensor& x) { return rows_of(x.view()); }
View rows(Tensor& x) { return rows_of(x.view()); }

class Problem {
 public:
  explicit Problem(const Layer& layer)
      : layer_(layer),
        x_(matrix(layer.before == RowsBefore::kNorm ? DType::kF32 : DType::kBF16, layer.R, layer.K)),
        weight_(matrix(DType::kBF16, layer.O, layer.K)),
        second_(matrix(DType::kBF16, layer.O2, layer.K)),
        gate_(matrix(DType::kBF16, layer.R, layer.K)),
        add_(matrix(DType::kF32, layer.R, layer.O)),
        cos_(matrix(DType::kF32, layer.R, kHead / 2)),
        sin_(matrix(DType::kF32, layer.R, kHead / 2)),
        scale_(DType::kBF16, {layer.head > 0 ? layer.head : layer.K}) {
    scale_.normal(random_);
  }

  struct Result {
    Tensor out, second;
  };
  // With `early` what the previous kernel may still write and read is given to it.
  [[nodiscard]] Result run(bool early) const {
    const DType dtype = layer_.after == RowsAfter::kAdd ? DType::kF32 : DType::kBF16;
    Result result{Tensor(dtype, {layer_.R, layer_.O + kGap}), Tensor(dtype, {layer_.R, layer_.O2 + kGap})};
    LinearRowsParams p;
    p.before = layer_.before, p.after = layer_.after, p.head = layer_.head, p.eps = 1e-3;
    p.x = rows(x_), p.weight = rows(weight_);
    if (layer_.O2 > 0) p.maybe_second = rows(second_);
    if (layer_.before != RowsBefore::kPlain) p.maybe_scale = scale_.view(), p.maybe_scale.device = 0;
    if (layer_.before == RowsBefore::kHeadNorm) p.maybe_gate = rows(gate_);
    if (layer_.after == RowsAfter::kAdd) p.maybe_add = rows(add_);
    RowsStep step;
    step.maybe_next = p.weight;
    if (layer_.turned > 0) {
      step.turn.cos = rows(cos_), step.turn.sin = rows(sin_);
      step.turn.columns = layer_.turned, step.turn.head = kHead, step.turn.feature_map = FeatureMap::kReluEps;
    }
    std::vector<std::span<std::byte>> of_previous;
    const auto give = [&](const Tensor& x) { of_previous.push_back(x.guarded_bytes()); };
    if (early) give(x_), give(gate_), give(add_), give(cos_), give(sin_), give(result.out), give(result.second);
    const emulator::PreviousKernel previous(of_previous);
    const View out = rows(result.out), second = rows(result.second);
    linear_rows_step(p, step, out, layer_.after == RowsAfter::kStore && layer_.O2 > 0 ? second : View());
    return result;
  }

  void expect_gaps(const Tensor& x, bool written) const {
    EXPECT_TRUE(x.guards_intact()) << layer_.name;
    const std::int64_t columns = x.shape()[1];
    for (std::int64_t i = 0; i < x.numel(); ++i) {
      const bool nan = !written || i % columns >= columns - kGap;
      EXPECT_EQ(std::isnan(x.at(i)), nan) << layer_.name << ": row " << i / columns << ", column " << i % columns;
    }
  }

 private:
  static constexpr std::int64_t kHead = 48;  // that is turned

  // Numbers, and NaN after every row.
  Tensor matrix(DType dtype, std::int64_t count, std::int64_t columns) {
    Tensor x(dtype, {count, columns + kGap});
    for (std::int64_t i = 0; i < x.numel(); ++i) {
      if (i % (columns + kGap) < columns) x.set(i, random_.normal());
    }
    return x;
  }
  const Layer& layer_;
  Random random_{7};
  Tensor x_, weight_, second_, gate_, add_, cos_, sin_, scale_;
};

TEST(LinearRowsInTheEmulator, HaveTheSameBitsInEveryOrder) {
  for (const Layer& layer : kLayers) {
    const Problem problem(layer);
    const Problem::Result want = problem.run(false);
    problem.expect_gaps(want.out, true);
    problem.expect_gaps(want.second, layer.after == RowsAfter::kStore && layer.O2 > 0);
    const emulator::Modes restored;
    for (const emulator::Order order : {emulator::Order::kBackward, emulator::Order::kShuffled}) {
      emulator::order = order;
      emulator::late_copies = emulator::late_sums = order == emulator::Order::kShuffled;
      const Problem::Result got = problem.run(true);
      EXPECT_TRUE(got.out.same_bits(want.out)) << layer.name << ": " << worst_element(got.out, want.out);
      EXPECT_TRUE(got.second.same_bits(want.second)) << layer.name << ": " << worst_element(got.second, want.second);
    }
  }
}

}  // namespace
}  // namespace mhla
