// torch.ops.mhla.norm against LibTorch's own norms and against f64, with its gradients.
#include <gtest/gtest.h>

#include <functional>

#include "mhla/core/error.h"
#include "mhla/ops/ops_fixture.h"
#include "mhla/testing/messages.h"

namespace mhla::ops {
namespace {

at::Tensor plain(const at::Tensor& x, const at::Tensor& weight, const NormOptions& o) {
  at::Tensor y = o.centered ? x - x.mean(-1, true) : x;
  y = y * (y.square().mean(-1, true) + o.eps).rsqrt() * weight;
  if (o.bias.defined()) y = y + o.bias;
  return o.gate.defined() ? y * at::silu(o.gate) : y;
}

TEST(NormOp, GradientsAreThoseOfTheFormula) {
  at::manual_seed(1);
  for (const bool centered : {false, true}) {
    for (const bool bias : {false, true}) {
      for (const bool gate : {false, true}) {
        SCOPED_TRACE(str(centered ? "centered " : "", bias ? "bias " : "", gate ? "gate" : ""));
        const at::Tensor x = leaf({3, 5, 37}), weight = leaf({37}), dout = at::randn({3, 5, 37}, at::kDouble);
        NormOptions o;
        o.centered = centered, o.eps = 1e-2;
        std::vector<at::Tensor> inputs{x, weight};
        if (bias) inputs.push_back(o.bias = leaf({37}));
        if (gate) inputs.push_back(o.gate = leaf({3, 5, 37}));
        const auto want = torch::autograd::grad({plain(x, weight, o)}, inputs, {dout});
        const auto wide = torch::autograd::grad({norm(x, weight, o)}, inputs, {dout});  // f64: LibTorch's operators
        NormOptions narrow = o;
        std::vector<at::Tensor> floats{as_f32(x), as_f32(weight)};
        if (bias) floats.push_back(narrow.bias = as_f32(o.bias));
        if (gate) floats.push_back(narrow.gate = as_f32(o.gate));
        const at::Tensor y = norm(floats[0], floats[1], narrow);  // f32: the kernels
        EXPECT_LT(off(y, plain(x, weight, o)), 1e-6);
        const auto got = torch::autograd::grad({y}, floats, {dout.to(at::kFloat)});
        for (std::size_t i = 0; i < want.size(); ++i) {
          EXPECT_LT(off(wide[i], want[i]), 1e-13);
          EXPECT_LT(off(got[i], want[i]), 1e-6);
        }
      }
    }
  }
}

TEST(NormOp, TakesSlicesOfAWiderTensor) {
  const at::Tensor qkv = at::randn({2, 7, 96}), weight = at::rand({32});
  const at::Tensor k = qkv.slice(-1, 32, 64);
  EXPECT_TRUE(at::equal(norm(k, weight), norm(k.contiguous(), weight)));
  const at::Tensor turned = at::randn({32, 7}).t();  // columns apart: copied
  EXPECT_TRUE(at::equal(norm(turned, weight), norm(turned.contiguous(), weight)));
}

TEST(NormOp, TheResultMayHaveAnotherDtype) {
  const at::Tensor x = at::randn({4, 64}), weight = at::rand({64});
  NormOptions o;
  o.dtype = at::kBFloat16;
  const at::Tensor y = norm(x, weight, o);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(y, norm(x, weight).to(at::kBFloat16)));
  const at::Tensor leaf = x.clone().set_requires_grad(true);
  norm(leaf, weight, o).sum().backward();
  EXPECT_EQ(leaf.grad().scalar_type(), at::kFloat);
  set_autocast(at::kCPU, true);
  EXPECT_EQ(norm(x, weight).scalar_type(), at::kBFloat16);
  EXPECT_EQ(norm(x.to(at::kDouble), weight).scalar_type(), at::kDouble);
  o.dtype = at::kFloat;
  EXPECT_EQ(norm(x, weight, o).scalar_type(), at::kFloat);
  set_autocast(at::kCPU, false);
}

TEST(NormOp, SecondDerivativesAreThere) {
  const at::Tensor x = leaf({2, 9}, at::kFloat), weight = leaf({9}, at::kFloat);
  NormOptions o;
  o.eps = 0.1;
  const auto second = [&](const std::function<at::Tensor()>& forward) {
    const auto first = torch::autograd::grad({forward().square().sum()}, {x}, {}, /*retain_graph=*/true,
                                             /*create_graph=*/true);
    return torch::autograd::grad({first[0].square().sum()}, {x})[0];
  };
  const at::Tensor want = second([&] { return plain(x, weight, o); });
  EXPECT_LT(off(second([&] { return norm(x, weight, o); }), want.to(at::kDouble)), 1e-5);
}

TEST(NormOp, RefusalsNameTheTensor) {
  const at::Tensor x = at::randn({4, 8});
  NormOptions o;
  EXPECT_TRUE(has(message_of([&] { norm(x, at::ones({7})); }), "norm: weight has shape [7], expected [8]"));
  o.gate = at::randn({4, 7});
  EXPECT_TRUE(
      has(message_of([&] { norm(x, at::ones({8}), o); }), "norm: gate has shape [4, 7], expected [4, 8] like x"));
  EXPECT_EQ(norm(at::randn({0, 8}), at::ones({8})).numel(), 0);
}

#ifdef MHLA_TORCH_CUDA
TEST(NormOp, OnAGpuItIsTheOneOfTheCpu) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device";
  const at::Tensor x = at::randn({6, 100, 192}), weight = at::randn({192}), bias = at::randn({192}),
                   dout = at::randn({6, 100, 192});
  std::vector<std::vector<at::Tensor>> results;
  for (const c10::Device device : {c10::Device(at::kCPU), c10::Device(at::kCUDA)}) {
    std::vector<at::Tensor> inputs;
    for (const at::Tensor& t : {x, weight, bias}) inputs.push_back(t.to(device).set_requires_grad(true));
    NormOptions o;
    o.bias = inputs[2], o.centered = true;
    const at::Tensor y = norm(inputs[0], inputs[1], o);
    std::vector<at::Tensor> all = torch::autograd::grad({y}, inputs, {dout.to(device)});
    all.push_back(y.detach());
    results.push_back(all);
  }
  for (std::size_t i = 0; i < results[0].size(); ++i)
    EXPECT_LT(off(results[1][i].cpu(), results[0][i].to(at::kDouble)), 2e-6);
}
#endif

}  // namespace
}  // namespace mhla::ops
