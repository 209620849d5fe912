// RMSNorm, feature map and rotary positions in one call against norm and rope one after the other.
#include <gtest/gtest.h>

#include "mhla/core/error.h"
#include "mhla/ops/ops_fixture.h"
#include "mhla/testing/messages.h"

namespace mhla::ops {
namespace {

constexpr FeatureMap kMaps[] = {FeatureMap::kIdentity, FeatureMap::kReluEps, FeatureMap::kElu1};

// In f64, with LibTorch's operators.
at::Tensor plain(const at::Tensor& x, const at::Tensor& weight, const NormRopeInputs& in, const RopeTable& table,
                 FeatureMap map) {
  at::Tensor y = x.to(at::kDouble);
  y = y * (y.square().mean(-1, true) + in.eps).rsqrt() * weight.to(at::kDouble);
  if (map == FeatureMap::kElu1) y = at::elu(y) + 1;
  if (map == FeatureMap::kReluEps) y = at::relu(y) + 1e-6;
  const std::vector<at::Tensor> pairs = y.unflatten(-1, {in.heads, -1, 2}).unbind(-1);
  const at::Tensor c = table.cos.to(at::kDouble).unsqueeze(1), s = table.sin.to(at::kDouble).unsqueeze(1);
  return at::stack({pairs[0] * c - pairs[1] * s, pairs[0] * s + pairs[1] * c}, -1).flatten(-2);
}

struct NormRopeProblem {
  NormRopeInputs in;
  RopeTable table;
};

NormRopeProblem problem_of(std::int64_t heads, std::int64_t head, at::TensorOptions options = at::kFloat) {
  const at::Tensor angles = 5 * at::randn({7, head / 2}, at::kDouble);
  const auto like = [&](at::IntArrayRef sizes) { return at::randn(sizes, at::kDouble).to(options); };
  const auto table = [&](const at::Tensor& x) { return x.to(options.dtype(at::kFloat)); };
  return {
      {like({3, 7, heads * head}), like({3, 7, heads * head}), like({heads * head}), like({heads * head}), heads, 1e-3},
      {table(angles.cos()), table(angles.sin()), false}};
}

TEST(NormRopeOp, IsTheNormThenThePositions) {
  at::manual_seed(1);
  for (const FeatureMap map : kMaps) {
    SCOPED_TRACE(name_of(map));
    const NormRopeProblem p = problem_of(3, 20);
    const auto [q, k] = norm_rope(p.in, p.table, map);
    EXPECT_EQ(q.sizes(), (std::vector<std::int64_t>{3, 7, 3, 20}));
    EXPECT_LT(off(q, plain(p.in.q, p.in.q_weight, p.in, p.table, map)), 5e-7);
    EXPECT_LT(off(k, plain(p.in.k, p.in.k_weight, p.in, p.table, map)), 5e-7);
  }
}

TEST(NormRopeOp, RefusalsNameTheTensor) {
  NormRopeProblem p = problem_of(3, 20);
  p.in.heads = 7;
  EXPECT_TRUE(has(message_of([&] { norm_rope(p.in, p.table); }),
                  "norm_rope: q has shape [3, 7, 60], expected [B, N, a multiple of 7 heads]"));
}

#ifdef MHLA_TORCH_CUDA
// Rows of every kind of group, and longer ones than norm() takes.
TEST(NormRopeOp, OnAGpuOnePassHasTheSameAnswer) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device";
  at::manual_seed(2);
  const at::NoGradGuard no_gradient;
  for (const auto& [heads, head] :
       {std::pair<std::int64_t, std::int64_t>{2, 64}, {6, 64}, {11, 68}, {12, 128}, {20, 100}, {40, 128}}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      for (const FeatureMap map : kMaps) {
        SCOPED_TRACE(str(heads, " heads of ", head, " ", c10::toString(type), " ", name_of(map)));
        const NormRopeProblem p = problem_of(heads, head, at::TensorOptions(type).device(at::kCUDA));
        const auto [q, k] = norm_rope(p.in, p.table, map);
        EXPECT_EQ(q.scalar_type(), type);
        const double most = type == at::kFloat ? 1e-6 : 4e-3;
        EXPECT_LT(off(q, plain(p.in.q, p.in.q_weight, p.in, p.table, map)), most);
        EXPECT_LT(off(k, plain(p.in.k, p.in.k_weight, p.in, p.table, map)), most);
      }
    }
  }
}

TEST(NormRopeOp, WithSiluOnAGpu) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device";
  at::manual_seed(4);
  const at::NoGradGuard no_gradient;
  for (const std::int64_t X : {96, 192, 384, 1536}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(str(X, " ", c10::toString(type)));
      const at::Tensor x = at::randn({3, 67, X}).to(at::kCUDA, type), weight = at::randn({X}).to(at::kCUDA, type);
      const at::Tensor out = at::full_like(x, NAN);
      ASSERT_TRUE(norm_silu_into(out, x, weight, 1e-24));
      const at::Tensor wide = x.to(at::kDouble);
      const at::Tensor y = wide * wide.square().mean(-1, true).rsqrt() * weight.to(at::kDouble);
      EXPECT_LT(off(out, at::silu(y)), type == at::kFloat ? 1e-6 : 4e-3);
    }
  }
}

TEST(NormRopeOp, NormsOfLongRowsOnAGpu) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device";
  at::manual_seed(3);
  for (const std::int64_t X : {1028, 1536, 5120}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(str(X, " ", c10::toString(type)));
      const at::Tensor wide = at::randn({501, X}, at::kDouble), scale = at::randn({X}, at::kDouble);
      const at::Tensor x = wide.to(at::kCUDA, type).set_requires_grad(true), weight = scale.to(at::kCUDA, type);
      const at::Tensor seen = x.detach().cpu().to(at::kDouble), factor = (seen.square().mean(-1, true) + 1e-6).rsqrt();
      const at::Tensor y = norm(x, weight);
      EXPECT_LT(off(y.cpu(), seen * factor * weight.cpu().to(at::kDouble)), type == at::kFloat ? 1e-6 : 4e-3);
      y.sum().backward();  // with LibTorch's operators
      EXPECT_TRUE(x.grad().isfinite().all().item<bool>());
    }
  }
}
#endif

}  // namespace
}  // namespace mhla::ops
