#include "mhla/modules/unfilled.h"

#include <gtest/gtest.h>

#include "mhla/modules/torch.h"

namespace mhla {
namespace {

TEST(UnfilledWeights, NothingIsDrawnWhileItLives) {
  torch::Tensor x = torch::full({64}, 7.0), y = torch::full({64}, 7.0);
  {
    const UnfilledWeights unfilled;
    x.uniform_(-1, 1), y.normal_(0, 1);
    const torch::nn::Linear layer(3, 5);  // its own start draws, too
    EXPECT_EQ(layer->weight.sizes(), (std::vector<std::int64_t>{5, 3}));
    EXPECT_TRUE(torch::equal(torch::zeros({4}) + 1, torch::ones({4})));  // everything else works
  }
  EXPECT_TRUE((x == 7).all().item<bool>());
  EXPECT_TRUE((y == 7).all().item<bool>());
  x.uniform_(-1, 1), y.normal_(0, 1);
  EXPECT_FALSE((x == 7).any().item<bool>());
  EXPECT_FALSE((y == 7).any().item<bool>());
}

TEST(UnfilledWeights, ParametersKeepTheirGradients) {
  torch::Tensor weight;
  {
    const UnfilledWeights unfilled;
    weight = torch::nn::Linear(2, 2)->weight;
  }
  const torch::NoGradGuard no_gradient;
  weight.fill_(2);
  const torch::AutoGradMode on(true);
  (weight * weight).sum().backward();
  EXPECT_TRUE((weight.grad() == 4).all().item<bool>());
}

}  // namespace
}  // namespace mhla
