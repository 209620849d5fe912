// Linear layers as models call them, against LibTorch's.
#include "mhla/modules/exact.h"

#include <gtest/gtest.h>

namespace mhla {
namespace {

struct Gradients {
  torch::Tensor y, dx, dweight, dbias;
};

// Of sum(y^2) / 2, whose gradient is y.
template <class Layer>
Gradients gradients_of(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias,
                       const Layer& layer) {
  const torch::Tensor leaves[] = {x.detach().requires_grad_(), weight.detach().requires_grad_(),
                                  bias.detach().requires_grad_()};
  const torch::Tensor y = layer(leaves[0], leaves[1], leaves[2]);
  (y.square().sum() / 2).backward();
  return {y.detach(), leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
}

double norm_distance(const torch::Tensor& got, const torch::Tensor& want) {
  return ((got - want).norm() / want.norm()).item<double>();
}

void check(const std::vector<std::int64_t>& shape, std::int64_t out, const torch::Device& device) {
  SCOPED_TRACE(c10::str(shape, " to ", out, " on ", device));
  torch::manual_seed(1);
  const torch::Tensor x = torch::randn(shape).to(device), weight = torch::randn({out, shape.back()}).to(device),
                      bias = torch::randn({out}).to(device);
  const auto ours = [](const torch::Tensor& a, const torch::Tensor& w, const torch::Tensor& b) {
    return apply_linear(a, w, b);
  };
  const auto theirs = [](const torch::Tensor& a, const torch::Tensor& w, const torch::Tensor& b) {
    return torch::linear(a, w, b);
  };
  const Gradients got = gradients_of(x, weight, bias, ours), want = gradients_of(x, weight, bias, theirs);
  EXPECT_LE(norm_distance(got.y, want.y), 1e-6);
  EXPECT_LE(norm_distance(got.dx, want.dx), 1e-6);
  EXPECT_LE(norm_distance(got.dweight, want.dweight), 1e-5);
  EXPECT_EQ(got.dbias.sizes(), want.dbias.sizes());
  EXPECT_EQ(got.dbias.scalar_type(), torch::kFloat);
  EXPECT_LE(norm_distance(got.dbias, want.dbias), 1e-5);
}

TEST(LinearLayers, HaveTheGradientsOfLibTorch) {
  std::vector<torch::Device> devices{torch::kCPU};
  if (torch::cuda::is_available()) devices.emplace_back(torch::kCUDA);
  for (const torch::Device& device : devices) {
    check({3, 7}, 5, device);
    check({2, 2048, 24}, 12, device);
    check({3, 1400, 16}, 40, device);  // 4,200 rows: 32 parts of 128 and 104 more
    check({5000, 9}, 1, device);
  }
}

// A decode step in bf16: sums in f32, rounded once.
TEST(LinearLayers, FewRowsInBf16) {
  const torch::NoGradGuard no_gradient;
  torch::manual_seed(2);
  const torch::Tensor weight = torch::randn({37, 300}).to(torch::kBFloat16);
  const torch::Tensor bias = torch::randn({37}).to(torch::kBFloat16);
  for (const std::int64_t rows : {1, 2, 4, 5}) {
    const torch::Tensor x = torch::randn({rows, 1, 300}).to(torch::kBFloat16);
    const torch::Tensor want = torch::linear(x.to(torch::kFloat), weight.to(torch::kFloat), bias.to(torch::kFloat));
    const torch::Tensor got = apply_linear(x, weight, bias);
    EXPECT_EQ(got.scalar_type(), torch::kBFloat16);
    EXPECT_EQ(got.sizes(), want.sizes());
    EXPECT_TRUE(torch::allclose(got.to(torch::kFloat), want, /*rtol=*/0x1p-8, /*atol=*/1e-4)) << rows;
  }
  const torch::Tensor x = torch::randn({1, 300}).to(torch::kBFloat16);
  EXPECT_FALSE(torch::equal(apply_linear(x, weight), apply_linear(x, weight, bias)));
}

TEST(LinearLayers, CanBeDifferentiatedTwice) {
  torch::manual_seed(1);
  const torch::Tensor x = torch::randn({4224, 3}), weight = torch::randn({2, 3}),
                      bias = torch::randn({2}).requires_grad_();
  // y is linear in the bias: the gradient of sum(y^3) is 3 sum(y^2), and that of its sum 6 sum(y).
  const torch::Tensor y = apply_linear(x, weight, bias);
  const torch::Tensor once = torch::autograd::grad({y.pow(3).sum()}, {bias}, {}, true, /*create_graph=*/true)[0];
  const torch::Tensor twice = torch::autograd::grad({once.sum()}, {bias})[0];
  EXPECT_LE(norm_distance(once.detach(), 3 * y.detach().square().sum(0)), 1e-5);
  EXPECT_LE(norm_distance(twice, 6 * y.detach().sum(0)), 1e-4);
}

TEST(LinearLayers, LeaveABiasThatDoesNotLearnAlone) {
  const torch::Tensor x = torch::randn({5000, 3}).requires_grad_(), weight = torch::randn({2, 3}),
                      bias = torch::randn({2});
  apply_linear(x, weight, bias).sum().backward();
  EXPECT_TRUE(x.grad().defined());
  EXPECT_FALSE(bias.grad().defined());
}

}  // namespace
}  // namespace mhla
