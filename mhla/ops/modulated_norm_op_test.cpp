// ops::modulated_norm against the formula, on the CPU and on a GPU.
#include <gtest/gtest.h>

#include "mhla/core/error.h"
#include "mhla/ops/ops_fixture.h"
#include "mhla/testing/messages.h"

namespace mhla::ops {
namespace {

constexpr double kModulatedEps = 1e-6;

struct ModulatedCase {
  std::int64_t samples, tokens, columns;
  bool joins = true;     // a branch joins the stream
  bool uses_sum = true;  // the stream goes on behind the norm
};

// Leaves x, scale, shift, branch and gate in f64; rows of a sample are slices of one tensor, as a model has them.
struct Inputs {
  at::Tensor x, branch, rows;
  explicit Inputs(const ModulatedCase& c)
      : x(at::randn({c.samples, c.tokens, c.columns}, at::kDouble)),
        branch(at::randn({c.samples, c.tokens, c.columns}, at::kDouble)),
        rows(at::randn({c.samples, 3 * c.columns}, at::kDouble)) {}
};

struct Outcome {
  std::vector<at::Tensor> values;  // s, y and the gradients of x, branch and rows
};

template <class F>
Outcome outcome(const ModulatedCase& c, const Inputs& in, const F& leaf, const std::pair<at::Tensor, at::Tensor>& dout,
                bool formula) {
  const at::Tensor x = leaf(in.x), branch = leaf(in.branch), rows = leaf(in.rows);
  const std::vector<at::Tensor> part = rows.unsqueeze(1).chunk(3, -1);
  at::Tensor s = x, y;
  if (formula) {
    if (c.joins) s = x + part[2] * branch;
    const at::Tensor centered = s - s.mean(-1, true);
    y = centered * (centered.square().mean(-1, true) + kModulatedEps).rsqrt() * (1 + part[0]) + part[1];
  } else {
    ModulatedNormInputs inputs{x, {}, {}, part[0], part[1]};
    if (c.joins) inputs.branch = branch, inputs.gate = part[2];
    std::tie(s, y) = modulated_norm(inputs, kModulatedEps);
  }
  at::Tensor loss = (y * dout.first.to(y.options())).sum();
  if (c.uses_sum) loss = loss + (s * dout.second.to(s.options())).sum();
  std::vector<at::Tensor> leaves{x, rows};
  if (c.joins) leaves.push_back(branch);
  Outcome out{torch::autograd::grad({loss}, leaves)};
  out.values.push_back(s.detach()), out.values.push_back(y.detach());
  return out;
}

void expect_modulated_norm(const ModulatedCase& c, c10::Device device, at::ScalarType type, double most) {
  SCOPED_TRACE(str(c.samples, " x ", c.tokens, " x ", c.columns, c.joins ? " joins" : "", " ", c10::toString(type)));
  at::manual_seed(1);
  const Inputs in(c);
  const std::pair<at::Tensor, at::Tensor> dout{at::randn_like(in.x), at::randn_like(in.x)};
  const auto rounded = [&](const at::Tensor& t) { return t.to(type).to(at::kDouble).set_requires_grad(true); };
  const auto given = [&](const at::Tensor& t) { return t.to(device, type).detach().set_requires_grad(true); };
  const Outcome want = outcome(c, in, rounded, dout, true), got = outcome(c, in, given, dout, false);
  ASSERT_EQ(want.values.size(), got.values.size());
  for (std::size_t i = 0; i < want.values.size(); ++i) EXPECT_LT(off(got.values[i], want.values[i]), most) << i;
}

TEST(ModulatedNorm, IsTheFormulaOnTheCpu) {
  for (const bool joins : {false, true}) {
    for (const bool uses_sum : {false, true}) {
      expect_modulated_norm({2, 5, 24, joins, uses_sum}, at::kCPU, at::kDouble, 1e-12);
      for (const std::int64_t X : {7, 24, 192, 1152}) {
        expect_modulated_norm({2, 5, X, joins, uses_sum}, at::kCPU, at::kFloat, 2e-6);
        expect_modulated_norm({3, 131, X, joins, uses_sum}, at::kCPU, at::kBFloat16, 1e-2);
        expect_modulated_norm({2, 1, X, joins, uses_sum}, at::kCPU, at::kHalf, 2e-3);
      }
    }
  }
}

TEST(ModulatedNorm, CanBeDifferentiatedTwice) {
  for (const bool joins : {false, true}) {
    const ModulatedCase c{2, 5, 12, joins};
    at::manual_seed(2);
    const Inputs in(c);
    const auto second = [&](bool formula) {
      const auto leaf = [](const at::Tensor& t) { return t.to(at::kFloat).detach().set_requires_grad(true); };
      const at::Tensor x = leaf(in.x), branch = leaf(in.branch), rows = leaf(in.rows);
      const std::vector<at::Tensor> part = rows.unsqueeze(1).chunk(3, -1);
      at::Tensor s = x, y;
      if (formula) {
        if (joins) s = x + part[2] * branch;
        const at::Tensor centered = s - s.mean(-1, true);
        y = centered * (centered.square().mean(-1, true) + kModulatedEps).rsqrt() * (1 + part[0]) + part[1];
      } else {
        ModulatedNormInputs inputs{x, {}, {}, part[0], part[1]};
        if (joins) inputs.branch = branch, inputs.gate = part[2];
        std::tie(s, y) = modulated_norm(inputs, kModulatedEps);
      }
      std::vector<at::Tensor> leaves{x, rows};
      if (joins) leaves.push_back(branch);
      const auto once = torch::autograd::grad({(y.pow(3) + s.square()).sum()}, leaves, {}, true, /*create_graph=*/true);
      at::Tensor total = at::zeros({});
      for (const at::Tensor& g : once) total = total + g.square().sum();
      return torch::autograd::grad({total}, leaves);
    };
    const auto got = second(false), want = second(true);
    for (std::size_t i = 0; i < want.size(); ++i) EXPECT_LT(off(got[i], want[i].to(at::kDouble)), 1e-5) << joins << i;
  }
}

TEST(ModulatedNorm, UnderAutocastOnTheCpuTheStreamStaysWide) {
  const at::Tensor x = at::randn({2, 70, 24}), branch = at::randn({2, 70, 24}, at::kBFloat16),
                   row = at::randn({2, 1, 24}, at::kBFloat16);
  set_autocast(at::kCPU, true);
  const auto [s, y] = modulated_norm({x, branch, row, row, row}, kModulatedEps);
  set_autocast(at::kCPU, false);
  EXPECT_EQ(s.scalar_type(), at::kFloat);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  const auto [wide, unused] = modulated_norm({x, branch, row, row, row}, kModulatedEps);
  EXPECT_TRUE(at::equal(wide, s));
  const auto [first, of_first] = modulated_norm(
      {x.narrow(0, 1, 1), branch.narrow(0, 1, 1), row.narrow(0, 1, 1), row.narrow(0, 1, 1), row.narrow(0, 1, 1)},
      kModulatedEps);
  EXPECT_TRUE(at::equal(of_first, unused.narrow(0, 1, 1)));  // whatever else is in the batch
}

TEST(ModulatedNorm, RefusalsNameTheTensor) {
  const at::Tensor x = at::randn({2, 3, 8}), row = at::randn({2, 1, 8});
  EXPECT_TRUE(has(message_of([&] { modulated_norm({x, x, {}, row, row}); }), "branch and gate go together"));
  EXPECT_TRUE(has(message_of([&] {
                    modulated_norm({x, {}, {}, at::randn({2, 1, 7}), row});
                  }),
                  "scale has shape [2, 1, 7], expected [2, 1, 8]"));
  EXPECT_TRUE(has(message_of([&] { modulated_norm({x, {}, {}, row, {}}); }), "shift"));
  EXPECT_TRUE(has(message_of([&] { modulated_norm({x[0], {}, {}, row, row}); }), "expected [B, N, X]"));
}

#ifdef MHLA_TORCH_CUDA
TEST(ModulatedNorm, IsTheFormulaOnAGpu) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA device";
  const std::vector<std::int64_t> columns{4, 100, 128, 192, 384, 512, 516, 768, 1024, 1152, 1536, 2048, 2240, 4096, 7};
  for (const std::int64_t X : columns) {
    for (const bool joins : {false, true}) {
      for (const bool uses_sum : {false, true}) {
        expect_modulated_norm({3, 70, X, joins, uses_sum}, at::kCUDA, at::kFloat, 2e-5);
        expect_modulated_norm({2, 131, X, joins, uses_sum}, at::kCUDA, at::kBFloat16, 2e-2);
        expect_modulated_norm({2, 1, X, joins, uses_sum}, at::kCUDA, at::kHalf, 4e-3);
      }
    }
  }
}

TEST(ModulatedNorm, UnderAutocastTheStreamStaysWideAndBitsRepeat) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA device";
  const auto on = at::TensorOptions(at::kCUDA);
  const at::Tensor x = at::randn({4, 200, 384}, on).set_requires_grad(true);
  const at::Tensor branch = at::randn({4, 200, 384}, on.dtype(at::kBFloat16)).set_requires_grad(true);
  const at::Tensor rows = at::randn({4, 3 * 384}, on.dtype(at::kBFloat16)).set_requires_grad(true);
  const auto once = [&](std::int64_t samples) {
    const std::vector<at::Tensor> part = rows.narrow(0, 0, samples).unsqueeze(1).chunk(3, -1);
    set_autocast(at::kCUDA, true);
    const auto [s, y] = modulated_norm(
        {x.narrow(0, 0, samples), branch.narrow(0, 0, samples), part[2], part[0], part[1]}, kModulatedEps);
    set_autocast(at::kCUDA, false);
    EXPECT_EQ(s.scalar_type(), at::kFloat);
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    std::vector<at::Tensor> all = torch::autograd::grad({s.sum() + y.to(at::kFloat).square().sum()}, {x, branch, rows});
    all.push_back(y.detach());
    return all;
  };
  const std::vector<at::Tensor> first = once(4), again = once(4), fewer = once(2);
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_TRUE(at::equal(first[i], again[i])) << i;
    EXPECT_TRUE(at::equal(first[i].narrow(0, 0, 2), fewer[i].narrow(0, 0, 2))) << i;  // whatever else is in the batch
  }
}
#endif

}  // namespace
}  // namespace mhla::ops
