// The operators against the kernels they call, bit for bit: every shape and option of testing/'s lists, forward and
// through autograd, the gradients asked for and no others. What LibTorch adds (autocast, shapes alone, refusals) is in
// ops_torch_test.
#include <cstring>

#include "mhla/core/error.h"
#include "mhla/ops/ops_fixture.h"
#include "mhla/testing/plain.h"

namespace mhla::ops {
namespace {

std::vector<Case> cases_of(Form form) {
  std::vector<Case> cases = forgotten_shapes(form);
  const std::vector<Case> options = option_combinations(form);
  cases.insert(cases.end(), options.begin(), options.end());
  return cases;
}

// Empty, or where the two differ.
std::string difference(const at::Tensor& got, const Tensor& want, const char* name) {
  if (got.sizes().vec() != want.shape()) return str(name, " has another shape: ", c10::str(got.sizes()));
  if (!got.is_contiguous()) return str(name, " is not contiguous");
  if (want.numel() > 0 && std::memcmp(got.data_ptr(), want.data(), got.nbytes()) != 0) return str(name, " differs");
  return {};
}

std::string check_bits(const Case& c) {
  const CaseInputs case_inputs(c);
  const CaseResult want = run_case(c, case_inputs);
  AttentionInputs in = inputs_of(case_inputs);
  const std::vector<at::Tensor> leaves = require_gradients(in);
  const at::Tensor out = run_op(c, in);
  std::string wrong = difference(out, want.out, "out");
  const std::vector<at::Tensor> gradients = torch::autograd::grad({out}, leaves, {tensor_of(case_inputs.dout)});
  std::size_t next = 0;
  for (const ResultField& field : kResultFields) {
    const Tensor& expected = want.*field.tensor;
    if (!field.gradient || !expected.given()) continue;
    wrong += difference(gradients.at(next++), expected, field.name);
  }
  return wrong.empty() ? wrong : wrong + "\n  " + c.name();
}

class Ops : public testing::TestWithParam<Form> {};

TEST_P(Ops, HaveTheBitsOfTheKernels) {
  for (const Case& c : cases_of(GetParam())) EXPECT_EQ(check_bits(c), "");
}

TEST_P(Ops, HaveThemInEveryDtype) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF64}) {
    for (Case c : forgotten_shapes(GetParam())) {
      if (c.N > 60 || c.D > 32) continue;
      c.dtype = dtype;
      EXPECT_EQ(check_bits(c), "");
    }
  }
}

TEST_P(Ops, ComputeTheGradientsThatAreAskedFor) {
  Case c = forgotten_shapes(GetParam()).front();
  c.N = 37, c.H = 4, c.Hkv = 2, c.den = true, c.normalizer = Normalizer::kPaper;
  const CaseInputs case_inputs(c);
  AttentionInputs all = inputs_of(case_inputs);
  const std::vector<at::Tensor> leaves = require_gradients(all);
  const at::Tensor dout = tensor_of(case_inputs.dout);
  const std::vector<at::Tensor> want = torch::autograd::grad({run_op(c, all)}, leaves, {dout});
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    AttentionInputs in = inputs_of(case_inputs);
    at::Tensor* const inputs[] = {&in.q, &in.k, &in.v, &in.mix, &in.q_den, &in.k_den};
    inputs[i]->requires_grad_();
    const at::Tensor out = run_op(c, in);
    ASSERT_TRUE(out.requires_grad());
    const std::vector<at::Tensor> got = torch::autograd::grad({out}, {*inputs[i]}, {dout});
    EXPECT_TRUE(at::equal(got[0], want[i])) << "input " << i;
  }
}

TEST_P(Ops, TakeAGradientThatIsOneNumber) {
  Case c = forgotten_shapes(GetParam()).front();
  c.N = 20;
  const CaseInputs case_inputs(c);
  AttentionInputs in = inputs_of(case_inputs);
  const std::vector<at::Tensor> leaves = require_gradients(in);
  const std::vector<at::Tensor> got = torch::autograd::grad({run_op(c, in).sum()}, leaves);
  const at::Tensor out = run_op(c, in);
  const std::vector<at::Tensor> want = torch::autograd::grad({out}, leaves, {at::ones_like(out)});
  for (std::size_t i = 0; i < leaves.size(); ++i) EXPECT_TRUE(at::equal(got[i], want[i])) << i;
}

// Gradients against slopes of the operator itself, in f64, along a random direction of every input.
TEST_P(Ops, HaveTheSlopesOfTheirGradients) {
  Case c = forgotten_shapes(GetParam()).front();
  c.N = 19, c.layout = Layout::line(6), c.dtype = DType::kF64, c.feature_map = FeatureMap::kElu1, c.eps = 0.3;
  c.normalizer = Normalizer::kPaper;
  const CaseInputs case_inputs(c);
  AttentionInputs in = inputs_of(case_inputs);
  in.mix = in.mix.nan_to_num(0.25);
  const std::vector<at::Tensor> leaves = require_gradients(in);
  const at::Tensor dout = tensor_of(case_inputs.dout);
  const std::vector<at::Tensor> gradients = torch::autograd::grad({run_op(c, in)}, leaves, {dout});
  at::manual_seed(3);
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    const at::Tensor direction = at::randn_like(leaves[i]);
    const double h = 1e-5;
    const auto loss = [&](double step) {
      AttentionInputs moved = in;
      at::Tensor* const inputs[] = {&moved.q, &moved.k, &moved.v, &moved.mix};
      *inputs[i] = leaves[i].detach() + step * direction;
      return (run_op(c, moved).detach() * dout).sum().item<double>();
    };
    const double slope = (loss(h) - loss(-h)) / (2 * h), want = (gradients[i] * direction).sum().item<double>();
    EXPECT_LE(std::abs(slope - want), 1e-6 * std::max(1.0, std::abs(want))) << "input " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, Ops, testing::Values(Form::kBidirectional, Form::kCausal),
                         [](const auto& form) { return form.param == Form::kCausal ? "causal" : "bidirectional"; });

// testing/plain.h claims to be what eager PyTorch computes. The same formula in ATen operators, in the same dtype, is
// as far from f64 as it is.
TEST(PlainCode, IsWhatPyTorchDoes) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Case c;
    c.B = 2, c.N = 96, c.H = 2, c.Hkv = 2, c.D = 32, c.E = 32, c.layout = Layout::line(16), c.dtype = dtype;
    const std::int64_t M = 6, C = 16;
    const CaseInputs case_inputs(c);
    const AttentionInputs in = inputs_of(case_inputs);
    const auto blocks = [&](const at::Tensor& x) { return x.reshape({2, M, C, 2, 32}).permute({0, 3, 1, 2, 4}); };
    const at::Tensor q = blocks(in.q).relu() + 1e-6, k = blocks(in.k).relu() + 1e-6, v = blocks(in.v);
    const at::Tensor mix = in.mix.to(q.scalar_type());
    const at::Tensor S = at::matmul(k.transpose(-1, -2), v);  // [B, H, M, D, E]
    const at::Tensor mixed = at::matmul(mix, S.reshape({2, 2, M, 32 * 32})).reshape({2, 2, M, 32, 32});
    const at::Tensor z = at::matmul(mix, k.sum(-2));  // [B, H, M, D]
    const at::Tensor den = at::matmul(q, z.unsqueeze(-1)) + 1e-6;
    const at::Tensor eager = (at::matmul(q, mixed) / den).permute({0, 2, 3, 1, 4}).reshape({2, 96, 2, 32}).contiguous();
    const Tensor want = reference_case(c, case_inputs).out;
    const double eager_error = rms_error(contiguous(view_of(eager, "test", "eager")), want);
    const double plain_error = rms_error(plain_case(c, case_inputs).out, want);
    EXPECT_GT(eager_error, 0.0);
    EXPECT_LE(plain_error, 1.5 * eager_error) << name_of(dtype);
    EXPECT_LE(eager_error, 1.5 * plain_error) << name_of(dtype);
  }
}

}  // namespace
}  // namespace mhla::ops
