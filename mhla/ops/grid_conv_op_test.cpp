// ops::grid_conv against LibTorch's convolution in f64: on the CPU, where LibTorch computes it, and on a GPU, where the
// kernels do.
#include <gtest/gtest.h>

#include "mhla/core/error.h"
#include "mhla/ops/ops_fixture.h"
#include "mhla/testing/messages.h"

namespace mhla::ops {
namespace {

struct ConvCase {
  std::int64_t images, rows, columns, channels, kernel;
  bool base, gate;
};

// out and the gradients of a projection whose last third is v, of weight, bias, base and gate.
template <class F>
std::vector<at::Tensor> outcome(const ConvCase& c, const F& leaf, bool formula) {
  at::manual_seed(2);
  const std::int64_t tokens = c.rows * c.columns;
  const auto values = [&](at::IntArrayRef sizes) { return leaf(at::randn(sizes, at::kDouble)); };
  const at::Tensor qkv = values({c.images, tokens, 3 * c.channels});
  const at::Tensor weight = values({c.channels, 1, c.kernel, c.kernel}), bias = values({c.channels});
  const at::Tensor base = values({c.images, tokens, c.channels}), gate = values({c.images, tokens, c.channels});
  const at::Tensor dout = at::randn({c.images, tokens, c.channels}, at::kDouble);
  const at::Tensor v = qkv.slice(-1, 2 * c.channels);
  std::vector<at::Tensor> leaves{qkv, weight, bias};
  at::Tensor out;
  if (formula) {
    const at::Tensor raster = v.transpose(1, 2).unflatten(-1, {c.rows, c.columns});
    out = at::conv2d(raster, weight, bias, 1, c.kernel / 2, 1, c.channels).flatten(2).transpose(1, 2);
    if (c.base) out = out + (c.gate ? base * gate * gate.sigmoid() : base);
  } else {
    out = grid_conv({v, weight, bias, c.base ? base : at::Tensor(), c.gate ? gate : at::Tensor()}, {c.rows, c.columns});
  }
  if (c.base) leaves.push_back(base);
  if (c.gate) leaves.push_back(gate);
  std::vector<at::Tensor> all = torch::autograd::grad({out}, leaves, {dout.to(out.options())});
  all.push_back(out.detach());
  return all;
}

void expect_grid_conv(const ConvCase& c, c10::Device device, at::ScalarType type, double most) {
  SCOPED_TRACE(str(c.images, " x ", c.rows, " x ", c.columns, " x ", c.channels, " kernel ", c.kernel,
                   c.base ? " base" : "", c.gate ? " gate" : "", " ", c10::toString(type)));
  const auto rounded = [&](const at::Tensor& t) { return t.to(type).to(at::kDouble).set_requires_grad(true); };
  const auto given = [&](const at::Tensor& t) { return t.to(device, type).detach().set_requires_grad(true); };
  const std::vector<at::Tensor> want = outcome(c, rounded, true), got = outcome(c, given, false);
  for (std::size_t i = 0; i < want.size(); ++i) {
    EXPECT_LT(((got[i].cpu().to(at::kDouble) - want[i]).norm() / want[i].norm()).item<double>(), most) << i;
  }
}

TEST(GridConvOp, IsTheConvolutionOnTheCpu) {
  for (const auto& [base, gate] : {std::pair{false, false}, {true, false}, {true, true}}) {
    expect_grid_conv({2, 5, 7, 6, 3, base, gate}, at::kCPU, at::kDouble, 1e-12);
    expect_grid_conv({1, 4, 4, 8, 5, base, gate}, at::kCPU, at::kFloat, 1e-5);
  }
}

TEST(GridConvOp, AGateNeedsABase) {
  const at::Tensor v = at::randn({1, 4, 8});
  EXPECT_TRUE(has(message_of([&] {
                    grid_conv({v, at::randn({8, 1, 3, 3}), at::randn({8}), {}, v}, {2, 2});
                  }),
                  "grid_conv: a gate is given without base"));
}

#ifdef MHLA_TORCH_CUDA
TEST(GridConvOp, IsTheConvolutionOnAGpu) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA device";
  for (const auto& [base, gate] : {std::pair{false, false}, {true, false}, {true, true}}) {
    for (const std::int64_t kernel : {3, 5, 7}) {
      expect_grid_conv({3, 16, 16, 192, kernel, base, gate}, at::kCUDA, at::kFloat, 2e-5);
      expect_grid_conv({2, 9, 13, 132, kernel, base, gate}, at::kCUDA, at::kFloat, 2e-5);
      expect_grid_conv({2, 1, 3, 4, kernel, base, gate}, at::kCUDA, at::kBFloat16, 2e-2);
      expect_grid_conv({5, 14, 14, 384, kernel, base, gate}, at::kCUDA, at::kHalf, 4e-3);
      expect_grid_conv({1, 6, 5, 6, kernel, base, gate}, at::kCUDA, at::kFloat, 2e-5);  // channels: LibTorch's
    }
  }
}

TEST(GridConvOp, BitsRepeatOnAGpu) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA device";
  const ConvCase c{4, 32, 32, 192, 3, true, true};
  const auto given = [](const at::Tensor& t) { return t.to(at::kCUDA, at::kBFloat16).set_requires_grad(true); };
  const std::vector<at::Tensor> first = outcome(c, given, false), again = outcome(c, given, false);
  for (std::size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(at::equal(first[i], again[i])) << i;
}
#endif

}  // namespace
}  // namespace mhla::ops
