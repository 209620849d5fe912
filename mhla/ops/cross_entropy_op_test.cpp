// ops::cross_entropy_ against LibTorch's loss in f64, on the CPU and on a GPU.
#include <gtest/gtest.h>

#include "mhla/core/error.h"
#include "mhla/ops/ops_fixture.h"
#include "mhla/testing/messages.h"

namespace mhla::ops {
namespace {

constexpr std::int64_t kIgnored = -100;

struct Sizes {
  std::int64_t N, V;
};

double most_off(const at::Tensor& got, const at::Tensor& want) {
  return (got.cpu().to(at::kDouble) - want).abs().max().item<double>();
}

// `loss`, `gradient`: how far a value may be off; logits are a few units, gradients at most 1.
void expect_cross_entropy(const Sizes& s, c10::Device device, at::ScalarType type, double loss, double gradient) {
  SCOPED_TRACE(str("N ", s.N, " V ", s.V, " ", c10::str(type)));
  at::manual_seed(5);
  const at::Tensor logits = (at::randn({s.N, s.V}, at::kDouble) * 3).to(type);
  at::Tensor targets = at::randint(s.V, {s.N}, at::kLong);
  if (s.N > 2) targets[1] = kIgnored;
  const at::Tensor exact = logits.to(at::kDouble).set_requires_grad(true);
  const at::Tensor want = at::cross_entropy_loss(exact, targets, {}, at::Reduction::None, kIgnored);
  want.sum().backward();

  const at::Tensor own = logits.to(device).clone();
  const at::Tensor plain = cross_entropy_(own, targets.to(device), kIgnored, /*gradient=*/false);
  EXPECT_TRUE(at::equal(own.cpu(), logits)) << "logits have changed, though no gradient was asked for";
  const at::Tensor losses = cross_entropy_(own, targets.to(device), kIgnored, /*gradient=*/true);
  EXPECT_EQ(losses.scalar_type(), type == at::kDouble ? at::kDouble : at::kFloat);
  EXPECT_TRUE(at::equal(losses, plain));
  EXPECT_LE(most_off(losses, want.detach()), loss);
  EXPECT_LE(most_off(own, exact.grad()), gradient);
}

const std::vector<Sizes> kShapes{{1, 1}, {3, 2}, {5, 7}, {4, 33}, {130, 1000}, {3, 4099}, {9, 32000}};

TEST(CrossEntropyOp, IsTheFormulaOnTheCpu) {
  for (const Sizes& s : kShapes) {
    expect_cross_entropy(s, at::kCPU, at::kDouble, 1e-12, 1e-12);
    expect_cross_entropy(s, at::kCPU, at::kFloat, 1e-5, 1e-6);
    expect_cross_entropy(s, at::kCPU, at::kBFloat16, 1e-5, 4e-3);
    expect_cross_entropy(s, at::kCPU, at::kHalf, 1e-5, 5e-4);
  }
}

TEST(CrossEntropyOp, SaysWhatIsWrong) {
  EXPECT_EQ(message_of([] {
              cross_entropy_(at::zeros({3, 4}), at::zeros({2}, at::kLong), kIgnored, false);
            }),
            "cross_entropy_: logits has shape [3, 4], targets [2] of Long, expected [N, V] and [N] of int64 on one "
            "device");
  EXPECT_THROW(cross_entropy_(at::zeros({3, 4}), at::zeros({3}, at::kInt), kIgnored, false), Error);
}

void expect_rows_apart(c10::Device device) {
  at::Tensor logits = at::randn({5, 40}).to(device);
  logits[0][3] = std::numeric_limits<float>::quiet_NaN();
  logits[1].fill_(-std::numeric_limits<float>::infinity()), logits[1][7] = 2;
  const at::Tensor targets = at::tensor({5, 7, 40, -1, 0}, at::kLong).to(device);
  const at::Tensor losses = cross_entropy_(logits, targets, kIgnored, /*gradient=*/true).cpu();
  const at::Tensor gradient = logits.cpu();
  EXPECT_TRUE(losses[0].isnan().item<bool>());
  EXPECT_EQ(losses[1].item<float>(), 0);  // the only logit that counts is the target's
  EXPECT_EQ(gradient[1].abs().max().item<float>(), 0);
  for (const int row : {2, 3}) {  // targets that do not exist
    EXPECT_TRUE(losses[row].isnan().item<bool>());
    EXPECT_TRUE(gradient[row].isnan().all().item<bool>());
  }
  EXPECT_TRUE(losses[4].isfinite().item<bool>() && gradient[4].isfinite().all().item<bool>());
}

TEST(CrossEntropyOp, KeepsToItsRowOnTheCpu) { expect_rows_apart(at::kCPU); }

#ifdef MHLA_TORCH_CUDA
TEST(CrossEntropyOp, IsTheFormulaOnAGpu) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA device";
  for (const Sizes& s : kShapes) {
    expect_cross_entropy(s, at::kCUDA, at::kFloat, 2e-5, 2e-6);
    expect_cross_entropy(s, at::kCUDA, at::kBFloat16, 2e-5, 4e-3);
    expect_cross_entropy(s, at::kCUDA, at::kHalf, 2e-5, 5e-4);
  }
}

TEST(CrossEntropyOp, KeepsToItsRowOnAGpu) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA device";
  expect_rows_apart(at::kCUDA);
}
#endif

}  // namespace
}  // namespace mhla::ops
