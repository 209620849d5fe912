// What scores() says is what forward() computes: A written out from the factors, times v, through the layer's own
// convolution, gate and projection.
#include "mhla/modules/scores.h"

#include <gtest/gtest.h>

#include "mhla/core/error.h"
#include "mhla/modules/mhla_attention.h"
#include "mhla/modules/modules_fixture.h"
#include "mhla/modules/zoo/inline_attention.h"
#include "mhla/modules/zoo/zoo.h"

namespace mhla {
namespace {

torch::Tensor weighted(const AttentionScores& s) {  // A v, [B, N, H E]
  const std::int64_t H = s.q.size(2);
  const auto all_heads = [&](const torch::Tensor& y) {
    return y.to(torch::kDouble).repeat_interleave(H / y.size(2), 2);
  };
  torch::Tensor A = torch::einsum("bthd,bshd->bhts", {s.q.to(torch::kDouble), all_heads(s.k)});
  if (s.softmax) {
    A = (s.scale * A).softmax(-1);
  } else {
    if (s.mix.defined()) {
      const torch::Tensor block = block_of_tokens(s.layout, s.q.size(1));
      A = A * s.mix.index_select(-2, block).index_select(-1, block);
    }
    A = A / s.den.transpose(1, 2).unsqueeze(-1);
  }
  return torch::einsum("bhts,bshe->bthe", {A, all_heads(s.v)}).flatten(-2);
}

template <class Layer>
torch::Tensor apply(torch::nn::Module& module, const char* name, const torch::Tensor& x) {
  return std::dynamic_pointer_cast<Layer>(module.named_children()[name])->forward(x);
}

const Layout kScoresGrid = Layout::grid2d(5, 6, 2, 3);

class ScoresOf : public testing::TestWithParam<const char*> {};

TEST_P(ScoresOf, AreWhatForwardComputes) {
  const torch::NoGradGuard no_gradient;
  torch::manual_seed(3);
  const std::string name = GetParam();
  AttentionConfig config;
  config.dim = 16, config.heads = 2, config.layout = kScoresGrid, config.rope = name == "softmax";
  const AnyAttention layer = make_attention(name, config);
  layer->to(torch::kDouble);
  for (torch::Tensor& parameter : layer->parameters()) parameter.add_(0.05 * torch::randn_like(parameter));
  const torch::Tensor x = torch::randn({2, 30, 16}, torch::kDouble);
  auto* scored = dynamic_cast<ScoredAttention*>(layer.get());
  ASSERT_NE(scored, nullptr);
  const AttentionScores s = scored->scores(x);
  torch::Tensor out = weighted(s);
  const torch::Tensor v = s.v.flatten(-2);
  if (name == "mala" || name == "rala") {
    const torch::Tensor gate = apply<torch::nn::LinearImpl>(*layer, "qkvo", x).chunk(4, -1)[3];
    out = (out + apply<GridConvImpl>(*layer, "lepe", v)) * gate;
  } else if (name == "focused") {
    const torch::Tensor images = s.v.transpose(1, 2).flatten(0, 1);
    out = out + apply<GridConvImpl>(*layer, "dwc", images).unflatten(0, {-1, 2}).transpose(1, 2).flatten(-2);
  } else if (name == "inline") {  // the convolution is made from the mean token: the attention alone
    const std::vector<torch::Tensor> qkv = apply<torch::nn::LinearImpl>(*layer, "qkv", x).chunk(3, -1);
    const auto heads = [](const torch::Tensor& y) { return y.unflatten(-1, {2, -1}); };
    EXPECT_LT(distance(out, InlineAttentionImpl::core(heads(qkv[0]), heads(qkv[1]), heads(qkv[2])).flatten(-2)), 1e-12);
    return;
  }
  if (name == "mhla" || name == "linear") {
    if (layer->named_children().contains("lepe")) out = out + apply<GridConvImpl>(*layer, "lepe", v);
    out = apply<torch::nn::LinearImpl>(*layer, "out", out);
  } else {
    out = apply<torch::nn::LinearImpl>(*layer, "proj", out);
  }
  EXPECT_LT(distance(out, layer->forward(x)), 1e-11);
}

INSTANTIATE_TEST_SUITE_P(Zoo, ScoresOf,
                         testing::Values("mhla", "linear", "softmax", "focused", "inline", "mala", "rala"),
                         [](const auto& chosen) { return std::string(chosen.param); });

TEST(Scores, ScansHaveNone) {
  AttentionConfig config;
  config.dim = 64, config.heads = 2, config.layout = kScoresGrid;
  for (const char* name : {"gla", "mamba2", "gdn"})
    EXPECT_EQ(dynamic_cast<ScoredAttention*>(make_attention(name, config).get()), nullptr) << name;
}

struct MhlaCase {
  const char* name;
  MhlaAttentionOptions options;
};

TEST(Scores, OfMhlaWithEveryNormaliser) {
  const torch::NoGradGuard no_gradient;
  std::vector<MhlaCase> cases;
  const Layout equal = Layout::grid2d(4, 6, 2, 3);
  MhlaAttentionOptions o = MhlaAttentionOptions::image(16, 2, equal);
  o.lepe = 0;
  cases.push_back({"paper", o});
  o.mix_per_head = true, o.scale = 0.7, o.features = fused(FeatureMap::kElu1);
  cases.push_back({"paper, mix per head, scale", o});
  o.rope = true, o.kv_heads = 1;
  cases.push_back({"rotated, one key head", o});
  o.normalizer = Normalizer::kNone;
  cases.push_back({"none", o});
  o = MhlaAttentionOptions::image(16, 2, equal, /*official=*/true);
  o.lepe = 0;
  cases.push_back({"official", o});
  o.layout = Layout::line(7), o.max_tokens = 24, o.normalizer = Normalizer::kPaper;
  cases.push_back({"1D", o});
  for (const MhlaCase& item : cases) {
    torch::manual_seed(5);
    MhlaAttention layer(item.options);
    layer->to(torch::kDouble);
    layer->mix.add_(0.1 * torch::rand_like(layer->mix));
    const torch::Tensor x = torch::randn({2, 24, 16}, torch::kDouble);
    const torch::Tensor out = apply<torch::nn::LinearImpl>(*layer, "out", weighted(layer->scores(x)));
    EXPECT_LT(distance(out, layer->forward(x)), 1e-11) << item.name;
  }
}

TEST(Scores, RefuseTheCausalForm) {
  MhlaAttention layer(MhlaAttentionOptions::lm(16, 2));
  EXPECT_THROW(layer->scores(torch::randn({1, 8, 16})), Error);
}

}  // namespace
}  // namespace mhla
