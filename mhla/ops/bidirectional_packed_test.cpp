// ops::bidirectional_packed against ops::bidirectional of the three slices: the same bits, forward and backward.
#include <gtest/gtest.h>

#include "mhla/core/error.h"
#include "mhla/ops/ops_fixture.h"
#include "mhla/testing/messages.h"

namespace mhla::ops {
namespace {

struct PackedCase {
  std::int64_t B, rows, columns;
  PackedHeads heads;
  bool reads_v = true;  // something else than the operator
  at::ScalarType type = at::kFloat;
};

const Layout kPackedLayout = Layout::grid2d(6, 5, 2, 2);

void expect_same(const PackedCase& c, c10::Device device) {
  SCOPED_TRACE(str(c.B, " x ", c.rows, " x ", c.columns, " ", c10::toString(c.type), c.reads_v ? " v" : ""));
  at::manual_seed(3);
  const PackedHeads& h = c.heads;
  const std::int64_t N = c.rows * c.columns, q = h.heads * h.head_dim, k = h.kv_heads * h.head_dim,
                     v = h.kv_heads * h.value_dim;
  const BidirectionalOptions how{.layout = Layout::grid2d(c.rows, c.columns, 2, 2)};
  const at::ScalarType wide = c.type == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor values = at::randn({c.B, N, q + k + v}, at::kDouble), weights = at::rand({4, 4}, at::kDouble);
  const at::Tensor dout = at::randn({c.B, N, h.heads, h.value_dim}, at::kDouble).to(device, c.type);
  const at::Tensor dv = at::randn({c.B, N, h.kv_heads, h.value_dim}, at::kDouble).to(device, c.type);
  const auto outcome = [&](bool packed) {
    const at::Tensor qkv = values.to(device, c.type).set_requires_grad(true);
    const at::Tensor mix = weights.to(device, wide).set_requires_grad(true);
    at::Tensor out, slice;
    if (packed) {
      std::tie(out, slice) = bidirectional_packed(qkv, mix, h, how);
    } else {
      const auto parts = qkv.split_with_sizes({q, k, v}, -1);
      slice = parts[2].unflatten(-1, {h.kv_heads, h.value_dim});
      out = bidirectional({parts[0].unflatten(-1, {h.heads, h.head_dim}),
                           parts[1].unflatten(-1, {h.kv_heads, h.head_dim}),
                           slice,
                           mix,
                           {},
                           {},
                           {}},
                          how);
    }
    std::vector<at::Tensor> outputs{out}, gradients{dout};
    if (c.reads_v) outputs.push_back(slice * 2), gradients.push_back(dv);
    std::vector<at::Tensor> all = torch::autograd::grad(outputs, {qkv, mix}, gradients);
    all.push_back(out.detach()), all.push_back(slice.detach());
    return all;
  };
  const std::vector<at::Tensor> got = outcome(true), want = outcome(false);
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(at::equal(got[i], want[i])) << i;
  EXPECT_TRUE(got[0].is_contiguous());
}

TEST(BidirectionalPacked, IsTheOperatorOfTheSlicesOnTheCpu) {
  for (const bool reads_v : {false, true}) {
    expect_same({2, 4, 4, {2, 2, 8, 8}, reads_v, at::kDouble}, at::kCPU);
    expect_same({1, 6, 5, {4, 2, 12, 20}, reads_v}, at::kCPU);
    expect_same({3, 7, 3, {3, 1, 16, 16}, reads_v, at::kBFloat16}, at::kCPU);
  }
}

TEST(BidirectionalPacked, OnlyVMayBeUsed) {
  const at::Tensor qkv = leaf({1, 30, 24}, at::kFloat), mix = at::rand({4, 4});
  const auto [out, v] = bidirectional_packed(qkv, mix, {1, 1, 8, 8}, {.layout = kPackedLayout});
  const at::Tensor gradient = torch::autograd::grad({v.sum()}, {qkv})[0];
  EXPECT_TRUE(at::equal(gradient.narrow(-1, 16, 8), at::ones({1, 30, 8})));
  EXPECT_EQ(gradient.narrow(-1, 0, 16).abs().sum().item<double>(), 0);
}

TEST(BidirectionalPacked, Refusals) {
  const at::Tensor qkv = leaf({1, 30, 24}, at::kFloat), mix = at::rand({4, 4});
  const BidirectionalOptions how{.layout = kPackedLayout};
  EXPECT_TRUE(has(message_of([&] { bidirectional_packed(qkv, mix, {2, 1, 8, 8}, how); }), "expected [B, N, 32]"));
  const at::Tensor out = bidirectional_packed(qkv, mix, {1, 1, 8, 8}, how).first;
  EXPECT_TRUE(has(message_of([&] { torch::autograd::grad({out.sum()}, {qkv}, {}, true, /*create_graph=*/true); }),
                  "the gradient of a gradient is not implemented"));
}

#ifdef MHLA_TORCH_CUDA
TEST(BidirectionalPacked, IsTheOperatorOfTheSlicesOnAGpu) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA device";
  for (const bool reads_v : {false, true})
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      expect_same({3, 16, 16, {3, 3, 64, 64}, reads_v, type}, at::kCUDA);
      expect_same({2, 7, 9, {4, 2, 24, 40}, reads_v, type}, at::kCUDA);
      expect_same({2, 32, 32, {2, 2, 72, 72}, reads_v, type}, at::kCUDA);
      expect_same({1, 64, 64, {2, 2, 64, 64}, reads_v, type}, at::kCUDA);
    }
}
#endif

}  // namespace
}  // namespace mhla::ops
