// The heads of a model are those its layers compute with: A v of the adapter, written out, against the operator; bounds
// hold; mixing matrices come out with their beginnings.
#include "mhla/analysis/networks/model_attention.h"

#include <gtest/gtest.h>

#include "mhla/modules/mhla_attention.h"

namespace mhla {
namespace {

ClassifierConfig small(const std::string& attention) {
  ClassifierConfig c = classifier_config("vit_demo", attention);
  c.image = {20, 12}, c.dims = {24}, c.heads = {3}, c.depths = {2}, c.blocks = {{2, 3}};
  return c;
}

TEST(ModelAttention, RowsSumToOneAndRanksKeepTheirBounds) {
  torch::manual_seed(1);
  const torch::Tensor images = torch::randn({2, 1, 20, 12});
  for (const char* attention : {"mhla", "linear", "softmax"}) {
    const AnyClassifier model = make_classifier(small(attention));
    const std::vector<LayerAttention> layers = attention_of(*model, images);
    ASSERT_EQ(layers.size(), 2u);
    EXPECT_EQ(layers[1].name, "blocks.1.attn");
    for (const LayerAttention& layer : layers) {
      ASSERT_EQ(layer.heads.size(), 2u);
      for (const std::vector<HeadAttention>& sample : layer.heads) {
        ASSERT_EQ(sample.size(), 3u);
        for (const HeadAttention& head : sample) {
          EXPECT_EQ(head.q.rows, 60);
          EXPECT_EQ(head.q.columns, 8);
          EXPECT_EQ(head.mix.rows, attention == std::string("mhla") ? 6 : 0);
          const Matrix A = attention_matrix(head);
          for (std::int64_t t = 0; t < A.rows; ++t) {
            double sum = 0.0;
            for (std::int64_t s = 0; s < A.columns; ++s) sum += A.at(t, s);
            // eps stands below, too: a query whose features are all 0 sees nothing
            EXPECT_GE(sum, attention == std::string("softmax") ? 1.0 - 1e-12 : 0.0) << attention;
            EXPECT_LE(sum, 1.0 + 1e-12) << attention;
          }
          const HeadSummary summary = summarize(head);
          EXPECT_LE(*summary.rank, rank_bound(head)) << attention;
          EXPECT_EQ(rank_bound(head), attention == std::string("softmax") ? 60
                                      : attention == std::string("mhla")  ? 48
                                                                          : 8)
              << attention;
        }
      }
    }
  }
}

TEST(ModelAttention, IsTheOneTheLayerComputes) {
  torch::manual_seed(2);
  const torch::NoGradGuard no_gradient;
  const AnyClassifier model = make_classifier(small("mhla"));
  model->to(torch::kDouble);
  const torch::Tensor images = torch::randn({1, 1, 20, 12}, torch::kDouble);
  const std::vector<torch::Tensor> inputs = model->attention_inputs(images);
  const LayerAttention layer = attention_of(*model, images)[1];
  const auto attention = std::dynamic_pointer_cast<MhlaAttentionImpl>(model->attention_layers()[1].attention);
  const torch::Tensor v = attention->scores(inputs[1]).v[0];  // [N, H, E]
  std::vector<torch::Tensor> heads;
  for (std::size_t h = 0; h < 3; ++h) {
    Matrix A = attention_matrix(layer.heads[0][h]);
    heads.push_back(
        torch::from_blob(A.values.data(), {60, 60}, torch::kDouble).matmul(v.select(1, static_cast<std::int64_t>(h))));
  }
  const auto out = std::dynamic_pointer_cast<torch::nn::LinearImpl>(attention->named_children()["out"]);
  const torch::Tensor got = out->forward(torch::cat(heads, -1)), want = attention->forward(inputs[1])[0];
  EXPECT_LT((got - want).abs().max().item<double>(), 1e-11 * want.abs().max().item<double>());
}

TEST(ModelAttention, ScansHaveNoMatrix) {
  torch::manual_seed(3);
  const AnyClassifier model = make_classifier(small("gla"));
  for (const LayerAttention& layer : attention_of(*model, torch::randn({1, 1, 20, 12})))
    EXPECT_TRUE(layer.heads.empty());
  EXPECT_TRUE(mix_states(*model).empty());
}

TEST(ModelAttention, MixesAsTheyAreAndAsTheyBegan) {
  ClassifierConfig config = small("mhla");
  config.mix_per_head = true;
  const AnyClassifier model = make_classifier(config);
  const auto second = std::dynamic_pointer_cast<MhlaAttentionImpl>(model->attention_layers()[1].attention);
  {
    const torch::NoGradGuard no_gradient;
    second->mix[2][1][4] += 0.25;
  }
  const std::vector<MixState> states = mix_states(*model);
  ASSERT_EQ(states.size(), 6u);
  EXPECT_EQ(states[0].initial.values, states[0].learned.values);
  EXPECT_EQ(states[5].head, 2);
  EXPECT_NEAR(states[5].learned.at(1, 4) - states[5].initial.at(1, 4), 0.25, 1e-6);
}

}  // namespace
}  // namespace mhla
