// ops::linear_layer and its gradients against f64, beside LibTorch's own f32: the output as near, gradients 1.5 times
// as far.
#include <gtest/gtest.h>

#include <array>

#include "mhla/core/error.h"
#include "mhla/ops/linear.h"
#include "mhla/ops/ops_fixture.h"

namespace mhla::ops {
namespace {

struct LinearCase {
  std::vector<std::int64_t> leading;
  std::int64_t K, O;
  bool bias = true;
};

struct LinearLeaves {
  at::Tensor x, weight, bias;
  LinearLeaves(const LinearCase& c, at::ScalarType type) {
    at::manual_seed(6);
    std::vector<std::int64_t> shape = c.leading;
    shape.push_back(c.K);
    x = at::randn(shape, at::kDouble).to(at::kFloat).to(type).requires_grad_();
    weight = at::randn({c.O, c.K}, at::kDouble).to(at::kFloat).to(type).requires_grad_();
    if (c.bias) bias = at::randn({c.O}, at::kDouble).to(at::kFloat).to(type).requires_grad_();
  }
  [[nodiscard]] std::vector<at::Tensor> all() const {
    return bias.defined() ? std::vector{x, weight, bias} : std::vector{x, weight};
  }
};

// The output, then the gradients of a sum with random weights.
template <class F>
std::vector<at::Tensor> with_gradients(const LinearLeaves& leaves, const F& layer) {
  const at::Tensor out = layer(leaves.x, leaves.weight, leaves.bias);
  at::manual_seed(7);
  const at::Tensor dout = at::randn(out.sizes(), at::kDouble).to(at::kFloat).to(out.scalar_type());
  std::vector<at::Tensor> all{out};
  for (const at::Tensor& gradient : torch::autograd::grad({out}, leaves.all(), {dout})) all.push_back(gradient);
  return all;
}

at::Tensor plain_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return at::linear(x, weight, bias.defined() ? Optional<at::Tensor>(bias) : Optional<at::Tensor>());
}

at::Tensor our_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return linear_layer(x, weight, bias);
}

bool without_products() {
  return linear_layer_fit(at::zeros({512, 128}), at::zeros({128, 128})) == "LibTorch brought no oneDNN";
}

TEST(LinearOp, IsAsExactAsLibTorch) {
  if (without_products()) GTEST_SKIP() << "needs a LibTorch with oneDNN";
  for (const LinearCase& c :
       {LinearCase{{2048}, 192, 576}, LinearCase{{8, 256}, 192, 192, false}, LinearCase{{3, 341}, 97, 131},
        LinearCase{{16}, 2100, 2000}, LinearCase{{4099}, 16, 1031}, LinearCase{{70001}, 61, 17}}) {
    SCOPED_TRACE(str(c10::str(at::IntArrayRef(c.leading)), " ", c.K, " to ", c.O));
    const LinearLeaves leaves(c, at::kFloat);
    ASSERT_EQ(linear_layer_fit(leaves.x, leaves.weight, leaves.bias), "");
    const auto want = with_gradients(LinearLeaves(c, at::kDouble), plain_linear);
    const auto got = with_gradients(leaves, our_linear), again = with_gradients(leaves, our_linear);
    const auto plain = with_gradients(leaves, plain_linear);
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < want.size(); ++i) {
      SCOPED_TRACE(i);
      ASSERT_EQ(got[i].sizes(), want[i].sizes());
      EXPECT_LE(off(got[i], want[i]), (i == 0 ? 1.0 : 1.5) * off(plain[i], want[i]) + 0x1p-23);
      EXPECT_TRUE(at::equal(got[i], again[i]));
    }
    const at::NoGradGuard inference;
    EXPECT_TRUE(at::equal(linear_layer(leaves.x, leaves.weight, leaves.bias), got[0]));
  }
}

TEST(LinearOp, TakesStridesAndGivesTheGradientsAskedFor) {
  if (without_products()) GTEST_SKIP() << "needs a LibTorch with oneDNN";
  const LinearLeaves wide({{1024}, 200, 96}, at::kFloat);
  const at::Tensor x = wide.x.detach().narrow(1, 3, 128), weight = wide.weight.detach().narrow(1, 5, 128);
  const at::Tensor learned = weight.detach().requires_grad_();
  const at::Tensor out = linear_layer(x, learned), dout = at::randn({96, 1024}).t();
  EXPECT_LE(off(out, plain_linear(x.to(at::kDouble), weight.to(at::kDouble), {})), 1e-6);
  const auto gradients = torch::autograd::grad({out}, {learned}, {dout});
  EXPECT_LE(off(gradients[0], at::mm(dout.t().to(at::kDouble), x.to(at::kDouble))), 1e-6);
}

TEST(LinearOp, HasSecondDerivatives) {
  if (without_products()) GTEST_SKIP() << "needs a LibTorch with oneDNN";
  const auto second = [](at::ScalarType type, const auto& layer) {
    const LinearLeaves leaves({{512}, 128, 128}, type);
    const at::Tensor out = layer(leaves.x, leaves.weight, leaves.bias);
    const auto first = torch::autograd::grad({out.square().sum()}, leaves.all(), {}, {}, /*create_graph=*/true);
    at::Tensor sum = first[0].square().sum() + first[1].square().sum() + first[2].square().sum();
    return torch::autograd::grad({sum}, leaves.all());
  };
  const auto want = second(at::kDouble, plain_linear), got = second(at::kFloat, our_linear);
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_LE(off(got[i], want[i]), 1e-5);
}

TEST(LinearOp, LeavesTheRestToLibTorch) {
  const at::Tensor x = at::randn({512, 128}), weight = at::randn({128, 128});
  EXPECT_EQ(linear_layer_fit(x.narrow(0, 0, 4), weight), "few products");
  for (const auto& [rows, K, O] : {std::array{15, 1024, 1024}, std::array{1024, 15, 1024}, std::array{1024, 1024, 15}})
    EXPECT_EQ(linear_layer_fit(at::zeros({rows, K}), at::zeros({O, K})), "a thin matrix");
  EXPECT_EQ(linear_layer_fit(x.to(at::kDouble), weight.to(at::kDouble)), "not all are f32 in host memory");
  EXPECT_EQ(linear_layer_fit(x, weight, at::zeros({128}, at::kDouble)), "not all are f32 in host memory");
  EXPECT_EQ(linear_layer_fit(x, weight, at::zeros({127})), "shapes do not match");
  EXPECT_THROW(linear_layer(x, weight.narrow(1, 0, 100)), c10::Error);
  c10::impl::tls_set_dispatch_key_excluded(c10::DispatchKey::AutocastCPU, false);
  const std::string reason = linear_layer_fit(x, weight);
  c10::impl::tls_set_dispatch_key_excluded(c10::DispatchKey::AutocastCPU, true);
  EXPECT_EQ(reason, "autocast is on");
  const at::Tensor few = linear_layer(x.narrow(0, 0, 4), weight);
  EXPECT_TRUE(at::equal(few, at::linear(x.narrow(0, 0, 4), weight)));
}

}  // namespace
}  // namespace mhla::ops
