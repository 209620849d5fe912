// ops::swiglu and ops::add_norm against their formulas in f64, on the CPU and on a GPU.
#include <gtest/gtest.h>

#include <functional>

#include "mhla/core/error.h"
#include "mhla/ops/ops_fixture.h"

namespace mhla::ops {
namespace {

using Tensors = std::vector<at::Tensor>;
using Call = std::function<Tensors(const Tensors&)>;

// The results and the gradients of all inputs.
Tensors outcome(const Call& call, const Tensors& inputs, const Tensors& douts) {
  const Tensors out = call(inputs);
  at::Tensor loss = at::zeros({}, out[0].options().dtype(at::kDouble));
  for (std::size_t i = 0; i < out.size(); ++i)
    loss = loss + (out[i].to(at::kDouble) * douts[i].to(out[i].device())).sum();
  Tensors all = torch::autograd::grad({loss}, inputs);
  for (const at::Tensor& o : out) all.push_back(o.detach());
  return all;
}

void expect_formula(const Call& call, const Call& formula, const std::vector<std::vector<std::int64_t>>& shapes,
                    std::size_t results, c10::Device device, const std::vector<at::ScalarType>& types, double most) {
  at::manual_seed(3);
  Tensors given, wanted, douts;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const at::Tensor value = at::randn(shapes[i], at::kDouble).to(types[i]);
    given.push_back(value.to(device).set_requires_grad(true));
    wanted.push_back(value.to(at::kDouble).set_requires_grad(true));
  }
  for (std::size_t i = 0; i < results; ++i) douts.push_back(at::randn(shapes[0], at::kDouble));
  const Tensors got = outcome(call, given, douts), want = outcome(formula, wanted, douts);
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double off = ((got[i].cpu().to(at::kDouble) - want[i]).norm() / want[i].norm()).item<double>();
    EXPECT_LT(off, most) << str("tensor ", i, " of ", c10::str(at::IntArrayRef(shapes[0])));
  }
}

const Call kSwiglu = [](const Tensors& in) { return Tensors{swiglu(in[0], in[1])}; };
const Call kSwigluFormula = [](const Tensors& in) { return Tensors{in[0] * in[0].sigmoid() * in[1]}; };

constexpr double kAddNormEps = 1e-3;
const Call kAddNorm = [](const Tensors& in) {
  const auto [sum, y] = add_norm(in[0], in[1], in[2], kAddNormEps);
  return Tensors{sum, y};
};
const Call kAddNormFormula = [](const Tensors& in) {
  const at::Tensor sum = in[0] + in[1];
  return Tensors{sum, sum * (sum.square().mean(-1, true) + kAddNormEps).rsqrt() * in[2]};
};

TEST(SwigluOp, IsTheFormulaOnTheCpu) {
  expect_formula(kSwiglu, kSwigluFormula, {{3, 5, 7}, {3, 5, 7}}, 1, at::kCPU, {at::kDouble, at::kDouble}, 1e-12);
  for (const std::vector<std::int64_t>& s :
       std::vector<std::vector<std::int64_t>>{{1}, {3, 5, 7}, {3, 64}, {9, 4099}}) {
    expect_formula(kSwiglu, kSwigluFormula, {s, s}, 1, at::kCPU, {at::kFloat, at::kFloat}, 1e-6);
    expect_formula(kSwiglu, kSwigluFormula, {s, s}, 1, at::kCPU, {at::kBFloat16, at::kBFloat16}, 4e-3);
    expect_formula(kSwiglu, kSwigluFormula, {s, s}, 1, at::kCPU, {at::kHalf, at::kHalf}, 5e-4);
  }
}

TEST(SwigluOp, GatesFarFromZero) {
  const at::Tensor gate = at::tensor({-1e30f, -200.0f, -178.0f, 178.0f, 1e30f}).set_requires_grad(true);
  const at::Tensor out = swiglu(gate, at::ones({5}));
  EXPECT_TRUE(at::equal(out, at::relu(gate)));
  EXPECT_TRUE(at::equal(torch::autograd::grad({out.sum()}, {gate})[0], at::tensor({0.0f, 0.0f, 0.0f, 1.0f, 1.0f})));
}

TEST(SwigluOp, CanBeDifferentiatedTwice) {
  const at::Tensor gate = at::randn({4, 3}).set_requires_grad(true), up = at::randn({4, 3}).set_requires_grad(true);
  const auto second = [&](const at::Tensor& out) {
    const auto once = torch::autograd::grad({out.square().sum()}, {gate, up}, {}, true, /*create_graph=*/true);
    return torch::autograd::grad({once[0].square().sum() + once[1].square().sum()}, {gate, up});
  };
  const auto got = second(swiglu(gate, up)), want = second(at::silu(gate) * up);
  for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(at::allclose(got[i], want[i], 1e-4, 1e-5));
}

TEST(AddNormOp, IsTheFormulaOnTheCpu) {
  expect_formula(kAddNorm, kAddNormFormula, {{3, 5, 9}, {3, 5, 9}, {9}}, 2, at::kCPU,
                 {at::kDouble, at::kDouble, at::kDouble}, 1e-12);
  expect_formula(kAddNorm, kAddNormFormula, {{4, 64}, {4, 64}, {64}}, 2, at::kCPU, {at::kFloat, at::kFloat, at::kFloat},
                 1e-5);
}

#ifdef MHLA_TORCH_CUDA
TEST(SwigluOp, IsTheFormulaOnAGpu) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA device";
  const std::vector<std::vector<std::int64_t>> shapes{{1}, {3, 5, 7}, {130, 2816}, {2, 4099}};
  for (const std::vector<std::int64_t>& s : shapes) {
    expect_formula(kSwiglu, kSwigluFormula, {s, s}, 1, at::kCUDA, {at::kFloat, at::kFloat}, 1e-5);
    expect_formula(kSwiglu, kSwigluFormula, {s, s}, 1, at::kCUDA, {at::kBFloat16, at::kBFloat16}, 1e-2);
    expect_formula(kSwiglu, kSwigluFormula, {s, s}, 1, at::kCUDA, {at::kHalf, at::kHalf}, 2e-3);
  }
  const Call odd = [](const Tensors& in) { return Tensors{swiglu(in[0].slice(0, 1), in[1].slice(0, 1))}; };
  const Call odd_formula = [](const Tensors& in) { return kSwigluFormula({in[0].slice(0, 1), in[1].slice(0, 1)}); };
  const at::Tensor g = at::randn({33}, at::TensorOptions(at::kCUDA)), u = at::randn_like(g);
  EXPECT_TRUE(at::allclose(odd({g, u})[0], odd_formula({g, u})[0], 1e-5, 1e-6));  // memory that is not aligned
}

TEST(AddNormOp, IsTheFormulaOnAGpu) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA device";
  for (const std::int64_t X : {7, 64, 100, 192, 256, 384, 768, 1000, 1024, 1500}) {
    for (const std::int64_t rows : {1, 3, 1025}) {
      const std::vector<std::vector<std::int64_t>> shapes{{rows, X}, {rows, X}, {X}};
      expect_formula(kAddNorm, kAddNormFormula, shapes, 2, at::kCUDA, {at::kFloat, at::kFloat, at::kFloat}, 2e-5);
      expect_formula(kAddNorm, kAddNormFormula, shapes, 2, at::kCUDA, {at::kFloat, at::kBFloat16, at::kBFloat16}, 1e-2);
      expect_formula(kAddNorm, kAddNormFormula, shapes, 2, at::kCUDA, {at::kHalf, at::kHalf, at::kFloat}, 4e-3);
    }
  }
}
#endif

}  // namespace
}  // namespace mhla::ops
