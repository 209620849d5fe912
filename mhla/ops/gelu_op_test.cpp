// Both kinds of GELU against the formula in f64, on the CPU and on a GPU.
#include <gtest/gtest.h>

#include "mhla/core/error.h"
#include "mhla/ops/ops_fixture.h"
#include "mhla/testing/messages.h"

namespace mhla::ops {
namespace {

struct GeluOutcome {
  at::Tensor y, dx, dbias;
};

struct GeluKind {
  const char *name, *approximate;  // LibTorch's name
  bool tanh;
  at::Tensor (*alone)(const at::Tensor&);
  at::Tensor (*with_bias)(const at::Tensor&, const at::Tensor&);
};
constexpr GeluKind kGeluKinds[] = {{"erf", "none", false, erf_gelu, erf_gelu},
                                   {"tanh", "tanh", true, tanh_gelu, tanh_gelu}};

// x already holds the bias; its gradient by the formula is the sum of that of x.
GeluOutcome by_formula(const GeluKind& kind, const at::Tensor& given, const at::Tensor& dout) {
  const at::Tensor x = given.to(at::kDouble).set_requires_grad(true);
  const at::Tensor y =
      0.5 * x *
      (1 + (kind.tanh ? (std::sqrt(2 / M_PI) * (x + 0.044715 * x.pow(3))).tanh() : (x / std::sqrt(2.0)).erf()));
  const at::Tensor dx = torch::autograd::grad({y}, {x}, {dout.to(at::kDouble)})[0];
  return {y.detach(), dx, dx.reshape({-1, dx.size(-1)}).sum(0)};
}

void expect_kind(const GeluKind& kind, const std::vector<std::int64_t>& shape, c10::Device device, at::ScalarType type,
                 double most) {
  SCOPED_TRACE(str(kind.name, " ", c10::str(at::IntArrayRef(shape)), " ", c10::toString(type)));
  at::manual_seed(5);
  const at::Tensor values = (3 * at::randn(shape, at::kDouble)).to(type), dout = at::randn(shape, at::kDouble).to(type);
  const GeluOutcome want = by_formula(kind, values, dout);
  const at::ScalarType wide = type == at::kDouble ? at::kDouble : at::kFloat;
  const auto run = [&] {
    const at::Tensor x = values.to(device).detach().set_requires_grad(true);
    const at::Tensor bias = at::zeros({shape.back()}, at::TensorOptions(device).dtype(wide)).set_requires_grad(true);
    const at::Tensor y = kind.with_bias(x, bias);
    const auto found = torch::autograd::grad({y}, {x, bias}, {dout.to(device)});
    return GeluOutcome{y.detach(), found[0], found[1]};
  };
  const GeluOutcome got = run(), again = run();
  EXPECT_LT(off(got.y, want.y), most);
  EXPECT_LT(off(got.dx, want.dx), most);
  // A sum of numbers of both signs: its error belongs to their size.
  EXPECT_LT((got.dbias.cpu().to(at::kDouble) - want.dbias).norm().item<double>(), most * want.dx.norm().item<double>());
  EXPECT_EQ(got.dbias.scalar_type(), wide);
  EXPECT_TRUE(at::equal(got.dx, again.dx) && at::equal(got.dbias, again.dbias));
}

void expect_gelu(const std::vector<std::int64_t>& shape, c10::Device device, at::ScalarType type, double most) {
  for (const GeluKind& kind : kGeluKinds) expect_kind(kind, shape, device, type, most);
}

TEST(GeluOp, IsTheFormulaOnTheCpu) {
  expect_gelu({2, 3, 5}, at::kCPU, at::kDouble, 1e-12);
  expect_gelu({300, 24}, at::kCPU, at::kFloat, 1e-5);
  for (const std::vector<std::int64_t>& shape : std::vector<std::vector<std::int64_t>>{{1}, {70, 16}, {3, 41, 37}}) {
    expect_gelu(shape, at::kCPU, at::kFloat, 1e-6);
    expect_gelu(shape, at::kCPU, at::kBFloat16, 4e-3);
    expect_gelu(shape, at::kCPU, at::kHalf, 5e-4);
  }
}

TEST(GeluOp, WithoutABiasIsTheSame) {
  const at::Tensor x = at::randn({5, 40}).set_requires_grad(true), bias = at::zeros({40}).set_requires_grad(true);
  const at::Tensor dout = at::randn({5, 40});
  for (const GeluKind& kind : kGeluKinds) {
    SCOPED_TRACE(kind.name);
    const at::Tensor with = kind.with_bias(x, bias), without = kind.alone(x);
    EXPECT_TRUE(at::equal(with, without));
    EXPECT_TRUE(
        at::equal(torch::autograd::grad({with}, {x}, {dout})[0], torch::autograd::grad({without}, {x}, {dout})[0]));
    EXPECT_FALSE(kind.alone(x.detach()).requires_grad());
    EXPECT_EQ(kind.alone(at::randn({}).set_requires_grad(true)).dim(), 0);
    EXPECT_EQ(kind.alone(at::zeros({0, 3})).numel(), 0);
    EXPECT_TRUE(at::equal(kind.alone(x.detach().t()), kind.alone(x.detach()).t()));
  }
}

TEST(GeluOp, CanBeDifferentiatedTwice) {
  const auto options = at::TensorOptions(at::kDouble);
  const at::Tensor x = at::randn({4, 3}, options).set_requires_grad(true);
  const at::Tensor bias = at::zeros({3}, options).set_requires_grad(true);
  for (const GeluKind& kind : kGeluKinds) {
    const at::Tensor twice = [&] {
      const at::Tensor once =
          torch::autograd::grad({kind.with_bias(x, bias).sum()}, {bias}, {}, true, /*create_graph=*/true)[0];
      return torch::autograd::grad({once.square().sum()}, {x})[0];
    }();
    const at::Tensor want = [&] {
      const at::Tensor once = torch::autograd::grad({at::gelu(x, kind.approximate).sum()}, {x}, {}, true, true)[0];
      return torch::autograd::grad({once.sum(0).square().sum()}, {x})[0];
    }();
    EXPECT_LT(off(twice, want), 1e-12) << kind.name;
  }
}

TEST(GeluOp, ABiasOfAnotherWidthIsRefused) {
  EXPECT_TRUE(has(message_of([&] { tanh_gelu(at::zeros({2, 3}), at::zeros({2})); }), "expected [..., C] and [C]"));
}

#ifdef MHLA_TORCH_CUDA
TEST(GeluOp, IsTheFormulaOnAGpu) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA device";
  for (const auto& [rows, columns] : {std::pair<std::int64_t, std::int64_t>{1, 1},
                                      {63, 1},
                                      {63, 8},
                                      {5000, 100},
                                      {777, 768},
                                      {300, 1536},
                                      {129, 4104},
                                      {70000, 24}}) {
    expect_gelu({rows, columns}, at::kCUDA, at::kFloat, 1e-5);
    expect_gelu({rows, columns}, at::kCUDA, at::kBFloat16, 1e-2);
    expect_gelu({rows, columns}, at::kCUDA, at::kHalf, 2e-3);
  }
}
#endif

}  // namespace
}  // namespace mhla::ops
