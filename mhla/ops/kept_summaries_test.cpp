// What autograd keeps of forward changes no gradient beyond rounding, and is used where the kernels have something to
// keep.
#include <gtest/gtest.h>

#include "mhla/ops/attention_op.h"
#include "mhla/ops/ops_fixture.h"

namespace mhla::ops {
namespace {

constexpr const char* kCases[] = {
    "bidirectional B=2 N=1024 H=2 Hkv=2 D=64 E=64 layout=1d:16",
    "bidirectional B=1 N=1536 H=4 Hkv=2 D=128 E=128 layout=3d:4x16x24/2x2x3",
    "bidirectional B=1 N=600 H=2 Hkv=2 D=60 E=53 layout=1d:8 norm=none",
    "bidirectional B=1 N=300 H=1 Hkv=1 D=64 E=64 layout=1d:100 den",
    "causal B=2 N=1100 H=2 Hkv=2 D=128 E=256 layout=1d:128 norm=none map=identity",
    "causal B=1 N=900 H=2 Hkv=1 D=64 E=64 layout=1d:64 rows=80",
    "causal B=1 N=500 H=1 Hkv=1 D=128 E=64 layout=1d:64 norm=none cu=0,60,60,500",
};

void expect_same_gradients(const char* text, DType dtype, c10::Device device) {
  Case c = parse_case(text);
  c.dtype = dtype;
  SCOPED_TRACE(c.name());
  const CaseInputs inputs(c);
  AttentionInputs in = inputs_of(inputs);
  for (at::Tensor* x : {&in.q, &in.k, &in.v, &in.mix, &in.q_den, &in.k_den})
    if (x->defined()) *x = x->to(device);
  const std::vector<at::Tensor> leaves = require_gradients(in);
  const at::Tensor dout = tensor_of(inputs.dout).to(device), out = run_op(c, in);
  {
    const at::NoGradGuard nothing_kept;
    EXPECT_TRUE(at::equal(out, run_op(c, in)));
  }
  // A backward pass that could be differentiated goes through the dispatcher, where nothing is kept.
  const auto want = torch::autograd::grad({out}, leaves, {dout}, /*retain_graph=*/true, /*create_graph=*/true);
  for (int run = 0; run < 2; ++run) {
    const auto got = torch::autograd::grad({out}, leaves, {dout}, /*retain_graph=*/true);
    for (std::size_t i = 0; i < want.size(); ++i) {
      const at::Tensor one = at::nan_to_num(got[i], 7), other = at::nan_to_num(want[i], 7);
      const bool rounds_alike = c.form == Form::kBidirectional || device.is_cpu();
      EXPECT_TRUE(at::equal(one, other) || (!rounds_alike && off(one, other) < 1.0 / 256)) << kGradientNames[i];
    }
  }
}

TEST(KeptSummaries, ChangeNoGradientOnTheCpu) {
  for (const char* text : kCases)
    for (const DType dtype : {DType::kF32, DType::kBF16}) expect_same_gradients(text, dtype, at::kCPU);
}

// A mix for each head that lies in memory once.
void expect_gradients_of_every_head(c10::Device device, at::ScalarType type) {
  at::manual_seed(11);
  const auto random = [&](std::int64_t tokens) {
    return at::randn({2, tokens, 3, 64}).to(device, type).set_requires_grad(true);
  };
  const at::Tensor mix = at::rand({70, 70}).to(device);
  for (const bool causal : {false, true}) {
    const AttentionInputs inputs{random(1120), random(1120), random(1120), {}, {}, {}, {}};
    const auto gradients = [&](const at::Tensor& of_heads) {
      AttentionInputs in = inputs;
      in.mix = of_heads.detach().requires_grad_();
      const at::Tensor out = causal ? chunkwise(in, {.chunk = 16, .normalizer = Normalizer::kNone})
                                    : bidirectional(in, {.layout = Layout::line(16)});
      return torch::autograd::grad({(out * out).sum()}, {in.q, in.k, in.v, in.mix});
    };
    const auto got = gradients(mix.expand({3, 70, 70})), want = gradients(mix.expand({3, 70, 70}).contiguous());
    for (std::size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(at::equal(got[i], want[i])) << kGradientNames[i];
  }
}
TEST(MixOfEveryHead, MayBeExpandedOnTheCpu) {
  expect_gradients_of_every_head(at::kCPU, at::kFloat);
  expect_gradients_of_every_head(at::kCPU, at::kBFloat16);
}

#ifdef MHLA_TORCH_CUDA
TEST(KeptSummaries, ChangeNoGradientOnAGpu) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA device";
  for (const char* text : kCases)
    for (const DType dtype : {DType::kF32, DType::kBF16}) expect_same_gradients(text, dtype, at::kCUDA);
}

TEST(MixOfEveryHead, MayBeExpandedOnAGpu) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA device";
  expect_gradients_of_every_head(at::kCUDA, at::kFloat);
  expect_gradients_of_every_head(at::kCUDA, at::kBFloat16);
}

// With S~ at hand dq needs neither k nor v.
TEST(KeptSummaries, AreUsedOnAGpu) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA device";
  if (steps_aside(parse_case("bidirectional bf16 N=4096 D=64 E=64 layout=1d:64"), "sm80", true) != "")
    GTEST_SKIP() << "needs a card of compute capability 8.0 or more";
  for (const bool causal : {false, true}) {
    const auto gradient = [&](bool without_keys) {
      at::manual_seed(5);
      AttentionInputs in;
      const auto random = [] { return at::randn({1, 4096, 2, 64}).to(at::kCUDA, at::kBFloat16); };
      in.q = random().set_requires_grad(true), in.k = random(), in.v = random(),
      in.mix = at::rand({64, 64}).to(at::kCUDA);
      const at::Tensor dout = random();
      const at::Tensor out = causal ? chunkwise(in, {.chunk = 64, .normalizer = Normalizer::kNone})
                                    : bidirectional(in, {.layout = Layout::line(64)});
      if (without_keys && causal) in.v.variable_data().narrow(1, 0, 64).zero_();  // of a chunk before the others
      if (without_keys && !causal) in.k.variable_data().zero_();
      return torch::autograd::grad({out}, {in.q}, {dout})[0].narrow(1, 64, 4032);
    };
    EXPECT_TRUE(at::equal(gradient(true), gradient(false))) << (causal ? "causal" : "bidirectional");
  }
}
#endif

}  // namespace
}  // namespace mhla::ops
