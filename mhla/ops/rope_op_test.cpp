// torch.ops.mhla.rope against the formula in LibTorch's operators and in f64, with its gradients.
#include <gtest/gtest.h>

#include <functional>

#include "mhla/core/error.h"
#include "mhla/ops/ops_fixture.h"
#include "mhla/testing/messages.h"

namespace mhla::ops {
namespace {

constexpr FeatureMap kRopeMaps[] = {FeatureMap::kIdentity, FeatureMap::kRelu, FeatureMap::kReluEps, FeatureMap::kElu1};

at::Tensor plain(const at::Tensor& x, const RopeTable& table, FeatureMap map) {
  at::Tensor y = x;
  if (map == FeatureMap::kElu1) y = at::elu(x) + 1;
  if (map == FeatureMap::kRelu || map == FeatureMap::kReluEps) y = at::relu(x);
  if (map == FeatureMap::kReluEps) y = y + 1e-6;
  const at::Tensor c = table.cos.unsqueeze(-2), s = table.sin.unsqueeze(-2);
  const std::int64_t pairs = x.size(-1) / 2;
  const auto part = [&](std::int64_t which) {
    return table.halves ? y.narrow(-1, which * pairs, pairs) : y.unflatten(-1, {pairs, 2}).select(-1, which);
  };
  const at::Tensor first = part(0) * c - part(1) * s, second = part(0) * s + part(1) * c;
  return table.halves ? at::cat({first, second}, -1) : at::stack({first, second}, -1).flatten(-2);
}

RopeTable table_of(at::IntArrayRef sizes, bool halves, at::ScalarType type = at::kDouble) {
  const at::Tensor angles = 5 * at::randn(sizes, at::kDouble);
  return {angles.cos().to(type), angles.sin().to(type), halves};
}
RopeTable narrowed(const RopeTable& table) {
  return {table.cos.to(at::kFloat), table.sin.to(at::kFloat), table.halves};
}

TEST(RopeOp, IsTheFormulaWithItsGradients) {
  at::manual_seed(1);
  for (const bool halves : {true, false}) {
    for (const bool batched : {false, true}) {
      for (const FeatureMap map : kRopeMaps) {
        SCOPED_TRACE(str(halves ? "halves " : "adjacent ", batched ? "a table each " : "", name_of(map)));
        const at::Tensor q = leaf({3, 5, 4, 22}), k = leaf({3, 5, 2, 22});
        const RopeTable table = batched ? table_of({3, 5, 11}, halves) : table_of({5, 11}, halves);
        const std::vector<at::Tensor> dout{at::randn(q.sizes(), at::kDouble), at::randn(k.sizes(), at::kDouble)};
        const std::vector<at::Tensor> want_out{plain(q, table, map), plain(k, table, map)};
        const auto want = torch::autograd::grad(want_out, {q, k}, dout);
        const auto wide = rope(q, k, table, map);  // f64: the reference
        EXPECT_LT(off(wide.first, want_out[0]), 1e-14);
        EXPECT_LT(off(wide.second, want_out[1]), 1e-14);
        const auto wide_gradients = torch::autograd::grad({wide.first, wide.second}, {q, k}, dout);
        const at::Tensor narrow_q = as_f32(q), narrow_k = as_f32(k);
        const auto narrow = rope(narrow_q, narrow_k, narrowed(table), map);  // f32: vectors
        EXPECT_LT(off(narrow.first, want_out[0]), 2e-7);
        EXPECT_LT(off(narrow.second, want_out[1]), 2e-7);
        EXPECT_TRUE(narrow.first.is_contiguous() && narrow.second.is_contiguous());
        const auto got = torch::autograd::grad({narrow.first, narrow.second}, {narrow_q, narrow_k},
                                               {dout[0].to(at::kFloat), dout[1].to(at::kFloat)});
        for (std::size_t i = 0; i < 2; ++i) {
          EXPECT_LT(off(wide_gradients[i], want[i]), 1e-14);
          EXPECT_LT(off(got[i], want[i]), 2e-7);
        }
      }
    }
  }
}

TEST(RopeOp, TakesSlicesOfAFusedProjection) {
  const at::Tensor qkv = at::randn({2, 7, 3, 4, 16});
  const RopeTable table = table_of({7, 8}, true, at::kFloat);
  const at::Tensor q = qkv.select(2, 0), k = qkv.select(2, 1);
  const auto sliced = rope(q, k, table, FeatureMap::kRelu),
             dense = rope(q.contiguous(), k.contiguous(), table, FeatureMap::kRelu);
  EXPECT_TRUE(at::equal(sliced.first, dense.first) && at::equal(sliced.second, dense.second));
  // Channels apart, as behind a convolution: copied.
  const at::Tensor apart = at::randn({2, 4, 16, 7}).permute({0, 3, 1, 2});
  EXPECT_TRUE(at::equal(rope(apart, k, table).first, rope(apart.contiguous(), k, table).first));
  // A gradient that autograd expanded from a number.
  const at::Tensor x = q.clone().set_requires_grad(true);
  rope(x, k, table).first.sum().backward();
  EXPECT_LT(off(x.grad(), rope(at::ones_like(q), k, {table.cos, -table.sin, true}).first.to(at::kDouble)), 1e-6);
}

TEST(RopeOp, OneOfTheTwoMayBeLeftUnused) {
  const at::Tensor q = leaf({1, 3, 2, 8}), k = leaf({1, 3, 2, 8});
  const RopeTable table = table_of({3, 4}, false);
  rope(q, k, table, FeatureMap::kElu1).second.square().sum().backward();
  EXPECT_EQ(q.grad().abs().max().item<double>(), 0.0);
  const auto want = torch::autograd::grad({plain(k, table, FeatureMap::kElu1).square().sum()}, {k});
  EXPECT_LT(off(k.grad(), want[0]), 1e-14);
  const at::NoGradGuard no_gradients;
  EXPECT_FALSE(rope(q, k, table).first.requires_grad());
}

TEST(RopeOp, SecondDerivativesAreThere) {
  at::manual_seed(2);
  for (const FeatureMap map : kRopeMaps) {
    for (const bool halves : {true, false}) {
      const at::Tensor q = leaf({2, 3, 2, 6}), k = leaf({2, 3, 1, 6});
      const RopeTable table = table_of({3, 3}, halves);
      const auto second = [&](const std::function<std::pair<at::Tensor, at::Tensor>()>& forward) {
        const auto [a, b] = forward();
        const auto first = torch::autograd::grad({a.pow(3).sum() + (a.slice(2, 0, 1) * b).sum()}, {q, k}, {},
                                                 /*retain_graph=*/true, /*create_graph=*/true);
        return torch::autograd::grad({first[0].pow(2).sum() + first[1].pow(2).sum()}, {q, k});
      };
      const auto want = second([&] { return std::pair(plain(q, table, map), plain(k, table, map)); });
      const auto got = second([&] { return rope(q, k, table, map); });
      for (std::size_t i = 0; i < 2; ++i) EXPECT_LT(off(got[i], want[i]), 1e-12) << name_of(map);
    }
  }
}

TEST(RopeOp, AutocastCastsAllButTheTable) {
  const at::Tensor q = at::randn({2, 3, 2, 8}), k = at::randn({2, 3, 1, 8});
  const RopeTable table = table_of({3, 4}, true, at::kFloat);
  set_autocast(at::kCPU, true);
  const auto cast = rope(q, k, table, FeatureMap::kRelu);
  const auto wide = rope(q.to(at::kDouble), k.to(at::kDouble), table_of({3, 4}, true));
  set_autocast(at::kCPU, false);
  EXPECT_EQ(cast.first.scalar_type(), at::kBFloat16);
  EXPECT_EQ(wide.first.scalar_type(), at::kDouble);
  const auto want = rope(q.to(at::kBFloat16), k.to(at::kBFloat16), table, FeatureMap::kRelu);
  EXPECT_TRUE(at::equal(cast.first, want.first) && at::equal(cast.second, want.second));
}

TEST(RopeOp, ShapesAlone) {
  const auto meta = [](at::IntArrayRef sizes) { return at::empty(sizes, at::TensorOptions(at::kMeta)); };
  const auto out = rope(meta({2, 3, 4, 8}), meta({2, 3, 1, 8}), {meta({3, 4}), meta({3, 4}), true});
  EXPECT_EQ(out.first.sizes(), at::IntArrayRef({2, 3, 4, 8}));
  EXPECT_EQ(out.second.sizes(), at::IntArrayRef({2, 3, 1, 8}));
  EXPECT_TRUE(has(message_of([&] {
                    rope(meta({2, 3, 4, 8}), meta({2, 3, 1, 8}), {meta({4, 4}), meta({3, 4}), true});
                  }),
                  "rope: cos has shape [4, 4], expected [3, 4] or [2, 3, 4]"));
}

TEST(RopeOp, RefusalsNameTheTensor) {
  const at::Tensor q = at::randn({2, 3, 2, 8}), k = at::randn({2, 3, 1, 8});
  const RopeTable table = table_of({3, 4}, true, at::kFloat);
  const auto refused = [](const at::Tensor& x, const at::Tensor& y, const RopeTable& t) {
    return message_of([&] { rope(x, y, t); });
  };
  EXPECT_TRUE(
      has(refused(q, at::randn({2, 3, 1, 6}), table), "rope: k has shape [2, 3, 1, 6], expected [2, 3, Hkv, 8]"));
  EXPECT_TRUE(has(refused(q, k.to(at::kBFloat16), table), "rope: k is bf16, expected f32 like q"));
  EXPECT_TRUE(has(refused(q, k, table_of({3, 4}, true)), "rope: cos is f64, expected f32 beside q in f32"));
  EXPECT_TRUE(has(refused(q, k, {table.cos, table.sin.t(), true}), "rope: sin has shape [4, 3], expected"));
  const RopeTable learned{table.cos.clone().set_requires_grad(true), table.sin, true};
  EXPECT_TRUE(has(refused(q, k, learned), "rope: cos wants a gradient, expected a table that does not"));
  EXPECT_EQ(rope(at::randn({2, 0, 2, 8}), at::randn({2, 0, 1, 8}), table_of({0, 4}, true, at::kFloat)).first.numel(),
            0);
}

#ifdef MHLA_TORCH_CUDA
TEST(RopeOp, OnAGpuItIsTheOneOfTheCpu) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device";
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    for (const bool halves : {true, false}) {
      const at::Tensor qkv = at::randn({6, 100, 3, 4, 64}).to(type), dout = at::randn({6, 100, 4, 64}).to(type);
      const RopeTable table = table_of({100, 32}, halves, type == at::kDouble ? at::kDouble : at::kFloat);
      std::vector<std::vector<at::Tensor>> results;
      for (const c10::Device device : {c10::Device(at::kCPU), c10::Device(at::kCUDA)}) {
        const at::Tensor all = qkv.to(device).set_requires_grad(true);
        const auto [a, b] = rope(all.select(2, 0), all.select(2, 1),
                                 {table.cos.to(device), table.sin.to(device), halves}, FeatureMap::kRelu);
        const auto gradient = torch::autograd::grad({a, b}, {all}, {dout.to(device), dout.to(device)});
        results.push_back({a.detach().cpu(), b.detach().cpu(), gradient[0].cpu()});
      }
      for (std::size_t i = 0; i < results[0].size(); ++i) {
        if (type == at::kDouble) {
          EXPECT_LT(off(results[1][i], results[0][i]), 1e-15);
        } else {
          EXPECT_TRUE(at::equal(results[1][i], results[0][i])) << c10::str(type) << " " << i;
        }
      }
    }
  }
}
#endif

}  // namespace
}  // namespace mhla::ops
