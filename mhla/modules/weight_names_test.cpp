// Published names: what is recognised goes in and comes back, what is not is refused with a list.
#include "mhla/modules/weight_names.h"

#include "mhla/modules/modules_fixture.h"

namespace mhla {
namespace {

MhlaAttention video_layer(bool gated) {
  torch::manual_seed(3);
  MhlaAttentionOptions o = MhlaAttentionOptions::video(48, 2, Layout::grid3d({2, 4, 4}, {2, 2, 2}), true);
  if (gated) o.gate = Gate::kSilu, o.lepe = 3;
  return MhlaAttention(o);
}

Weights published(bool gated) {
  MhlaAttention layer = video_layer(gated);
  return to_published(weights_of(*layer), "video", layer->widths());
}

TEST(WeightNames, GoInAndComeBack) {
  for (const bool gated : {false, true}) {
    MhlaAttention layer = video_layer(gated);
    const Weights names = published(gated);
    EXPECT_EQ(weight_family_of(names), "video");
    EXPECT_EQ(names.count("g.weight"), gated ? 1u : 0u);
    EXPECT_EQ(names.at("block_attn.conv.weight").dim(), 4);
    const Weights ours = from_published(names);
    MhlaAttentionOptions options = MhlaAttentionOptions::video(48, 2, layer->options().layout, true);
    adapt_options(options, ours);
    MhlaAttention other(options);
    load_weights(*other, ours);
    torch::manual_seed(4);
    const torch::Tensor x = torch::randn({1, 32, 48});
    EXPECT_TRUE(torch::equal(other->forward(x), layer->forward(x)));
    const Weights back = to_published(weights_of(*other), "video", other->widths());
    ASSERT_EQ(back.size(), names.size());
    for (const auto& [name, value] : names) EXPECT_TRUE(torch::equal(back.at(name), value)) << name;
  }
}

// Language models with the options of their configuration: the options follow from the names.
TEST(WeightNames, TellTheOptionsOfALanguageModel) {
  for (const Features features : {fused(FeatureMap::kRelu), Features::kT2r, Features::kHedgehog, Features::kHadamard}) {
    for (const bool gated : {false, true}) {
      torch::manual_seed(5);
      MhlaAttentionOptions o = MhlaAttentionOptions::lm(32, 2);
      o.chunk = 8, o.max_tokens = 32, o.features = features, o.short_conv = gated ? 4 : 0;
      if (!gated) o.gate = Gate::kNone;
      MhlaAttention layer(o);
      const char* family = gated ? "lm_gated" : "lm";
      const Weights names = to_published(weights_of(*layer), family, layer->widths());
      EXPECT_EQ(weight_family_of(names), family) << name_of(features);
      EXPECT_EQ(names.count("v_conv1d.weight"), gated ? 1u : 0u);
      EXPECT_EQ(names.count("feature_map_k.layer2.bias"), features == Features::kHadamard ? 1u : 0u);
      const Weights ours = from_published(names);
      MhlaAttentionOptions options = MhlaAttentionOptions::lm(32, 2);
      options.chunk = 8, options.max_tokens = 32;
      adapt_options(options, ours);
      EXPECT_EQ(options.features, features);
      MhlaAttention other(options);
      load_weights(*other, ours);
      const torch::Tensor x = torch::randn({1, 20, 32});
      EXPECT_TRUE(torch::equal(other->forward(x), layer->forward(x))) << name_of(features);
    }
  }
}

TEST(WeightNames, AreFoundInAModel) {
  Weights model;
  for (const auto& [name, value] : published(true)) model["blocks.3.self_attn." + name] = value;
  model["blocks.3.norm3.weight"] = torch::ones({48});
  EXPECT_EQ(from_published(model, {}, "blocks.3.self_attn.").size(), weights_of(*video_layer(true)).size());
  EXPECT_EQ(message_of([&] { from_published(model, {}, "blocks.4."); }), "weights: no name starts with 'blocks.4.'");
}

TEST(WeightNames, RefuseWhatDoesNotFit) {
  Weights names = published(true);
  names.erase("k.weight");
  names["surprise"] = torch::ones({1});
  EXPECT_EQ(message_of([&] { from_published(names); }),
            "weights: the names fit no family; nearest is video, missing: k.weight; left over: surprise");
  names = published(true);
  names.erase("g.bias");  // half a gate
  EXPECT_EQ(message_of([&] { from_published(names, "video"); }), "weights: video: missing: g.bias; left over: nothing");
  names = published(false);
  names["block_attn.conv.weight"] = torch::rand({8, 7, 1, 1});
  EXPECT_TRUE(has(message_of([&] { from_published(names); }), "has shape [8, 7, 1, 1], expected [M, M, 1, 1]"));
  EXPECT_TRUE(has(message_of([&] { from_published(names, "vit"); }), "family is 'vit', expected one of image, linear"));
}

TEST(WeightNames, WriteNothingThatCouldNotBeRead) {
  MhlaAttention layer = video_layer(true);
  const auto said = [&](const std::string& without) {
    Weights ours = weights_of(*layer);
    ours.erase(without);
    return message_of([&] { to_published(ours, "video", layer->widths()); });
  };
  EXPECT_EQ(said("mix"), "weights: to video: missing: mix; left over: nothing");
  EXPECT_EQ(said("gate.bias"), "weights: to video: missing: gate.bias; left over: nothing");  // half a gate
  Weights per_head = weights_of(*layer);
  per_head["mix"] = torch::rand({2, 8, 8});
  EXPECT_TRUE(has(message_of([&] { to_published(per_head, "video", layer->widths()); }), "expected [M, M]"));
}

TEST(WeightNames, KeepNegativeCoefficients) {
  Weights names = published(false);
  names["block_attn.conv.weight"].fill_(-0.5);
  MhlaAttention layer = video_layer(false);
  load_weights(*layer, from_published(names));
  layer->constrain();
  EXPECT_EQ(layer->mix.max().item<float>(), -0.5f);
}

TEST(WeightNames, ChangeNothingWhenSomethingIsWrong) {
  MhlaAttention layer = video_layer(false);
  const torch::Tensor before = layer->mix.clone();
  Weights ours = weights_of(*layer);
  for (auto& [name, value] : ours) value = torch::zeros_like(value);
  ours["mix"] = torch::zeros({3, 3});
  ours["more"] = torch::zeros({1});
  EXPECT_EQ(message_of([&] { load_weights(*layer, ours); }),
            "load_weights: missing: nothing; left over: more; mix has shape [3, 3], expected [8, 8]");
  EXPECT_TRUE(torch::equal(layer->mix, before));
}

}  // namespace
}  // namespace mhla
