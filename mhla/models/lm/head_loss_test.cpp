// The chunked loss against LibTorch's own over all logits, forward and backward, with sizes that divide nothing.
#include "mhla/models/lm/head_loss.h"

#include <gtest/gtest.h>

#include "mhla/core/error.h"
#include "mhla/modules/modules_fixture.h"
#include "mhla/testing/messages.h"

namespace mhla {
namespace {

struct Result {
  torch::Tensor loss, dhidden, dweight;
};

template <class Loss>
Result result_of(const torch::Tensor& hidden, const torch::Tensor& weight, const Loss& loss) {
  const torch::Tensor h = hidden.detach().clone().requires_grad_(), w = weight.detach().clone().requires_grad_();
  const torch::Tensor sum = loss(h, w);
  (sum * 0.37).backward();
  return {sum.detach(), h.grad(), w.grad()};
}

TEST(HeadLoss, IsThatOfAllLogits) {
  torch::manual_seed(3);
  for (const auto& [B, N, vocab, dim] :
       {std::tuple{1, 1, 2, 1}, {3, 37, 101, 17}, {2, 64, 1000, 8}, {1, 100, 33, 64}}) {
    const torch::Tensor hidden = torch::randn({B, N, dim}, torch::kDouble) * 2,
                        weight = torch::randn({vocab, dim}, torch::kDouble);
    torch::Tensor targets = torch::randint(vocab, {B, N}, torch::kLong);
    if (N > 1) targets.select(1, 0).fill_(kIgnoredTarget), targets.select(1, N / 2).fill_(kIgnoredTarget);
    const Result want = result_of(hidden, weight, [&](const torch::Tensor& h, const torch::Tensor& w) {
      return torch::cross_entropy_loss(torch::linear(h, w).flatten(0, 1), targets.flatten(), {}, at::Reduction::Sum);
    });
    for (const torch::ScalarType dtype : {torch::kDouble, torch::kFloat, torch::kBFloat16}) {
      // In bf16 the products round: to the sum of what each rounding may do.
      const double most = dtype == torch::kDouble ? 1e-12 : dtype == torch::kFloat ? 2e-5 : 5e-2;
      for (const std::int64_t at_once : {0, 1, 7, 64}) {
        if (dtype == torch::kBFloat16 && vocab == 2) continue;  // one product: its rounding is all there is
        const Result got = result_of(
            hidden.to(dtype), weight.to(dtype),
            [&](const torch::Tensor& h, const torch::Tensor& w) { return head_loss(h, w, targets, at_once); });
        EXPECT_EQ(got.loss.scalar_type(), dtype == torch::kDouble ? torch::kDouble : torch::kFloat);
        EXPECT_EQ(got.dweight.scalar_type(), dtype);
        EXPECT_LE(relative_distance(got.loss, want.loss), most) << dtype << " " << vocab << " " << at_once;
        EXPECT_LE(relative_distance(got.dhidden, want.dhidden), most) << dtype << " " << vocab << " " << at_once;
        EXPECT_LE(relative_distance(got.dweight, want.dweight), most) << dtype << " " << vocab << " " << at_once;
      }
    }
  }
}

TEST(HeadLoss, GivesWhatIsAskedFor) {
  torch::manual_seed(4);
  const torch::Tensor hidden = torch::randn({5, 8}), weight = torch::randn({11, 8});
  const torch::Tensor targets = torch::tensor({1, -100, 10, 0, -100}, torch::kLong);
  const torch::Tensor each = token_losses(hidden, weight, targets, 2);
  const torch::Tensor want = torch::cross_entropy_loss(torch::linear(hidden, weight), targets, {}, at::Reduction::None);
  EXPECT_LE(relative_distance(each, want.to(torch::kDouble)), 1e-6);
  const torch::Tensor frozen = weight.detach(), h = hidden.detach().clone().requires_grad_();
  head_loss(h, frozen, targets).backward();
  EXPECT_TRUE(h.grad().defined());
  EXPECT_EQ(h.grad()[1].abs().max().item<double>(), 0.0);
  const torch::NoGradGuard no_gradient;
  EXPECT_FALSE(head_loss(h, weight, targets).requires_grad());
  EXPECT_NEAR(head_loss(h, weight, targets).item<double>(), want.sum().item<double>(), 1e-4);
  const torch::Tensor nobody = torch::full({5}, kIgnoredTarget, torch::kLong);
  EXPECT_EQ(head_loss(hidden, weight, nobody).item<double>(), 0.0);
}

TEST(HeadLoss, StaysFiniteWithLargeLogits) {
  const torch::Tensor hidden = torch::full({2, 4}, 100.0).requires_grad_(),
                      weight = torch::stack({torch::full({4}, 100.0), torch::full({4}, -100.0)}).requires_grad_();
  const torch::Tensor loss = head_loss(hidden, weight, torch::tensor({0, 1}, torch::kLong));
  EXPECT_FLOAT_EQ(loss.item<float>(), 80000.0f);
  loss.backward();
  EXPECT_TRUE(torch::isfinite(hidden.grad()).all().item<bool>());
}

TEST(HeadLoss, SaysWhatIsWrong) {
  EXPECT_EQ(message_of([] {
              head_loss(torch::zeros({3, 4}), torch::zeros({5, 6}), torch::zeros({3}, torch::kLong));
            }),
            "head_loss: hidden has shape [3, 4], weight [5, 6], targets [3] of Long, expected [..., dim], [vocab, dim] "
            "and [...] of int64");
  EXPECT_THROW(head_loss(torch::zeros({3, 4}), torch::zeros({5, 4}), torch::zeros({2}, torch::kLong)), Error);
}

}  // namespace
}  // namespace mhla
