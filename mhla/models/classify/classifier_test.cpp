// Image models: sizes, every attention inside them, images of any shape, and what a configuration may not be.
#include "mhla/models/classify/classifier.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "mhla/io/file.h"
#include "mhla/models/classify/classifier_fixture.h"
#include "mhla/models/classify/deit.h"
#include "mhla/models/parts.h"
#include "mhla/modules/mhla_attention.h"
#include "mhla/modules/modules_fixture.h"
#include "mhla/modules/zoo/zoo.h"
#include "mhla/testing/messages.h"

namespace mhla {
namespace {

// 6 x 4 tokens of 4 x 4 pixels, blocks of 2 x 2, 2 x 1 and so on: the last column of blocks is ragged.
ClassifierConfig small_deit(const std::string& attention = "mhla") {
  ClassifierConfig c;
  c.model = "small", c.attention = attention;
  c.image = {24, 20}, c.patch = 4, c.classes = 5, c.dims = {32}, c.depths = {2}, c.heads = {2}, c.blocks = {{3, 2}};
  c.drop_path = 0.0;
  return c;
}

ClassifierConfig small_vlt(const std::string& attention = "mhla") {
  ClassifierConfig c = classifier_config("vlt_tiny");
  c.model = "small_vlt", c.attention = attention;
  c.image = {40, 32}, c.classes = 5, c.dims = {16, 32, 32, 64}, c.depths = {2, 2, 1, 1}, c.heads = {1, 2, 2, 4};
  c.blocks = {{5, 4}, {2, 2}}, c.drop_path = 0.0;
  return c;
}

torch::Tensor images(const ClassifierConfig& c, std::int64_t B = 2) {
  torch::manual_seed(5);
  return torch::randn({B, c.channels, c.image[0], c.image[1]});
}

std::int64_t classifier_parameters(const char* name, const char* attention, bool official = false) {
  return count_parameters(*make_classifier(classifier_config(name, attention, official)));
}

TEST(Classifier, FeaturesAndHeadAreTheForwardPass) {
  const torch::NoGradGuard no_gradient;
  for (const ClassifierConfig& c : {small_deit(), small_vlt()}) {
    const AnyClassifier model = seeded_classifier(c);
    model->eval();
    const torch::Tensor x = images(c), features = model->features(x);
    EXPECT_EQ(features.dim(), 2);
    EXPECT_TRUE(torch::equal(model->head(features), model->forward(x)));
  }
}

TEST(Classifiers, HaveTheirParameters) {
  // The published sizes: 5.794 M, 22.20 M, 86.86 M.
  EXPECT_EQ(classifier_parameters("deit_tiny", "mhla", true), 5'793'832);
  EXPECT_EQ(classifier_parameters("deit_small", "mhla", true), 22'200'424);
  EXPECT_EQ(classifier_parameters("deit_base", "mhla", true), 86'864'104);
  // Ours: 196 positions, no inner norm, CPE 3x3 instead of LePE 5x5.
  EXPECT_EQ(classifier_parameters("deit_tiny", "mhla"), 5'740'840);
  EXPECT_EQ(classifier_parameters("deit_small", "mhla"), 22'094'440);
  EXPECT_EQ(classifier_parameters("deit_base", "mhla"), 86'652'136);
  EXPECT_EQ(classifier_parameters("vlt_tiny", "mhla"),
            classifier_parameters("vlt_tiny", "rala") + 2 * 49 * 49 + 2 * 16 * 16);
  EXPECT_NEAR(static_cast<double>(classifier_parameters("vlt_tiny", "rala")), 15.5e6, 1.0e6);   // 16 M
  EXPECT_NEAR(static_cast<double>(classifier_parameters("vlt_small", "rala")), 26.5e6, 1.0e6);  // 27 M
}

TEST(Classifiers, TakeEveryAttention) {
  for (const ClassifierConfig& start : {small_deit(), small_vlt()}) {
    for (const std::string_view name : attention_names()) {
      SCOPED_TRACE(str(start.model, " ", name));
      ClassifierConfig c = start;
      c.attention = name;
      if (c.family == "deit" && !has_mlp(name)) c.depths = {10};  // where whole blocks match
      const AnyClassifier model = seeded_classifier(c);
      const torch::Tensor logits = model->forward(images(c));
      ASSERT_EQ(logits.sizes(), (std::vector<std::int64_t>{2, 5}));
      EXPECT_TRUE(torch::isfinite(logits).all().item<bool>());
      torch::cross_entropy_loss(logits, torch::tensor({0, 4})).backward();
      for (const auto& item : model->named_parameters()) {
        if (!item.value().requires_grad()) continue;
        ASSERT_TRUE(item.value().grad().defined()) << item.key() << " takes no part";
        EXPECT_TRUE(torch::isfinite(item.value().grad()).all().item<bool>()) << item.key();
      }
      EXPECT_EQ(model->attention_inputs(images(c)).size(), model->attention_layers().size());
    }
  }
}

TEST(Classifiers, MatchTheParametersOfModelsWithAnMlp) {
  for (const char* name : {"deit_tiny", "deit_small", "vlt_tiny", "vit_demo"}) {
    const auto softmax = static_cast<double>(classifier_parameters(name, "softmax"));
    for (const char* attention : {"mamba", "mamba2"}) {
      const double off = static_cast<double>(classifier_parameters(name, attention)) / softmax - 1;
      EXPECT_LE(std::abs(off), 0.03) << name << " " << attention;
    }
  }
  ClassifierConfig shallow = small_deit("mamba2");
  shallow.dims = {64}, shallow.depths = {1};
  EXPECT_TRUE(has(message_of([&] { seeded_classifier(shallow); }), "expected at most 3 %: take a deeper model"));
}

TEST(Classifiers, ShowWhatAttentionSees) {
  const ClassifierConfig c = small_deit();
  const AnyClassifier model = seeded_classifier(c);
  const std::vector<torch::Tensor> seen = model->attention_inputs(images(c));
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_EQ(model->attention_layers()[1].name, "blocks.1.attn");
  EXPECT_EQ(seen[1].sizes(), (std::vector<std::int64_t>{2, 30, 32}));
  EXPECT_LE(seen[1].mean(-1).abs().max().item<double>(), 1e-5);  // behind a LayerNorm
  EXPECT_THROW(model->attention_inputs(torch::zeros({1, 3, 8, 8})), Error);
  EXPECT_EQ(model->attention_inputs(images(c)).size(), 2u);  // after an error, too
}

// Images of one colour with equal positions and equal coefficients give every token the same value: the size of the
// image cannot matter, nor can the blocks.
TEST(Classifiers, OfAnotherSizeComputeTheSameOnFlatImages) {
  ClassifierConfig c = small_deit();
  c.cpe = 0;
  const AnyClassifier model = seeded_classifier(c);
  {
    const torch::NoGradGuard no_gradient;
    for (const auto& item : model->named_parameters()) {
      if (has(item.key(), ".mix")) item.value().fill_(0.25);
      if (item.key() == "pos_embed") item.value().copy_(torch::randn({1, 1, 32}).expand_as(item.value()));
    }
  }
  const torch::Tensor colour = torch::randn({1, 3, 1, 1});
  const torch::Tensor want = model->forward(colour.expand({1, 3, 24, 20}));
  for (const auto& [rows, columns, blocks] :
       {std::tuple{24, 20, std::array<std::int64_t, 2>{3, 2}}, {48, 20, {3, 2}}, {32, 52, {4, 5}}, {4, 4, {1, 1}}}) {
    ClassifierConfig other = c;
    other.image = {rows, columns}, other.blocks = {blocks};
    const AnyClassifier turned = resized(*model, other);
    EXPECT_LE(distance(turned->forward(colour.expand({1, 3, rows, columns})), want), 1e-5) << rows << "x" << columns;
  }
}

// Equal coefficients are plain linear attention, whatever the blocks.
TEST(Classifiers, WithOtherBlocksComputeTheSameWhenCoefficientsAreEqual) {
  for (const ClassifierConfig& c : {small_deit(), small_vlt()}) {
    const AnyClassifier model = seeded_classifier(c);
    {
      const torch::NoGradGuard no_gradient;
      for (const auto& item : model->named_parameters()) {
        if (has(item.key(), ".mix")) item.value().fill_(0.5);
      }
    }
    model->eval();
    const torch::Tensor x = images(c), want = model->forward(x);
    ClassifierConfig other = c;
    other.blocks[0] = {2, 3};
    const AnyClassifier turned = resized(*model, other);
    EXPECT_LE(distance(turned->forward(x), want), 1e-4) << c.model;
    EXPECT_EQ(turned->attention_layers()[0].layout.blocks[2], 3);
    const AnyClassifier same = resized(*model, c);
    EXPECT_TRUE(torch::equal(same->forward(x), want)) << c.model;
  }
  ClassifierConfig wider = small_deit();
  wider.dims = {64};
  EXPECT_TRUE(
      has(message_of([&] { resized(*seeded_classifier(small_deit()), wider); }), "in more than image, pad and blocks"));
}

TEST(Classifiers, KeepMixInRange) {
  ClassifierConfig c = small_deit();
  c.mix_range = {1e-5, 0.5};
  const AnyClassifier model = seeded_classifier(c);
  const torch::Tensor mix = model->attention_layers()[1].attention->as<MhlaAttentionImpl>()->mix;
  {
    const torch::NoGradGuard no_gradient;
    mix.fill_(-1), mix[0].fill_(3);
  }
  model->constrain();
  EXPECT_FLOAT_EQ(mix.min().item<float>(), 1e-5f);
  EXPECT_FLOAT_EQ(mix.max().item<float>(), 0.5f);
}

TEST(Classifiers, DropPathsInTrainingAlone) {
  torch::manual_seed(3);
  const torch::Tensor x = torch::ones({4000, 2, 3});
  EXPECT_TRUE(torch::equal(drop_path(x, 0.25, false), x));
  const torch::Tensor dropped = drop_path(x, 0.25, true).flatten(1);
  const torch::Tensor first = dropped.select(1, 0);
  EXPECT_TRUE(torch::equal(dropped, first.unsqueeze(1).expand_as(dropped)));  // a sample as a whole
  EXPECT_NEAR(first.eq(0).to(torch::kFloat).mean().item<double>(), 0.25, 0.03);
  EXPECT_FLOAT_EQ(first.max().item<float>(), 1.0f / 0.75f);
  EXPECT_EQ(drop_path_rate(0.1, 0, 12), 0.0);
  EXPECT_EQ(drop_path_rate(0.1, 11, 12), 0.1);
  ClassifierConfig c = small_deit();
  c.drop_path = 0.5, c.dropout = 0.3;
  const AnyClassifier model = seeded_classifier(c);
  const torch::Tensor pictures = images(c);
  EXPECT_FALSE(torch::equal(model->forward(pictures), model->forward(pictures)));
  model->eval();
  EXPECT_TRUE(torch::equal(model->forward(pictures), model->forward(pictures)));
}

TEST(Classifiers, StartAsPublishedModelsDo) {
  const AnyClassifier model = seeded_classifier(classifier_config("deit_tiny", "mhla", true));
  const Weights weights = weights_of(*model);
  EXPECT_NEAR(weights.at("blocks.3.mlp.fc1.weight").std().item<double>(), 0.02, 1e-3);
  EXPECT_NEAR(weights.at("blocks.3.attn.qkv.weight").std().item<double>(), 0.02, 1e-3);
  EXPECT_NEAR(weights.at("pos_embed").std().item<double>(), 0.02, 1e-3);
  EXPECT_EQ(weights.at("blocks.3.mlp.fc1.bias").abs().max().item<double>(), 0.0);
  EXPECT_FLOAT_EQ(weights.at("blocks.0.attn.mix").sum(0).max().item<float>(), 1.0f);  // columns sum to 1, as published
  const torch::Tensor ours = seeded_classifier(classifier_config("deit_tiny"))->named_parameters()["blocks.0.attn.mix"];
  EXPECT_LE((ours.sum(1) - 1).abs().max().item<double>(), 1e-6);
}

TEST(Classifiers, StartAsTheConfigSays) {
  ClassifierConfig c = small_deit();  // 6 x 5 tokens
  c.pos_init = "sincos", c.init_std = 0.1;
  const Weights weights = weights_of(*seeded_classifier(c));
  EXPECT_NEAR(weights.at("blocks.0.mlp.fc1.weight").std().item<double>(), 0.1, 1e-2);
  const torch::Tensor place = weights.at("pos_embed")[0][4 * 5 + 3];  // row 4, column 3
  const std::int64_t quarter = c.dims[0] / 4;
  for (const std::int64_t i : {std::int64_t{0}, quarter - 1}) {
    const double w = std::pow(1e-4, static_cast<double>(i) / static_cast<double>(quarter));
    EXPECT_NEAR(place[i].item<double>(), std::sin(4 * w), 1e-6);
    EXPECT_NEAR(place[quarter + i].item<double>(), std::cos(4 * w), 1e-6);
    EXPECT_NEAR(place[2 * quarter + i].item<double>(), std::sin(3 * w), 1e-6);
    EXPECT_NEAR(place[3 * quarter + i].item<double>(), std::cos(3 * w), 1e-6);
  }
}

TEST(ClassifierConfigs, GoOutAndComeBack) {
  for (const std::string& name : classifier_names()) {
    ClassifierConfig c = classifier_config(name, "softmax");
    c.dropout = 0.125;
    EXPECT_EQ(parse_classifier_config(fields_to_json(c), "doc"), c) << name;
  }
  const ClassifierConfig official = classifier_config("deit_small", "mhla", true);
  EXPECT_EQ(parse_classifier_config(fields_to_json(official), "doc"), official);
  EXPECT_EQ(official.pad[0], 256);
  // A few fields are enough.
  const ClassifierConfig few = parse_classifier_config(
      parse_json(R"({"model": "deit_small", "attention": "gla", "classes": 10})", "doc"), "doc");
  EXPECT_EQ(few.dims[0], 384);
  EXPECT_EQ(few.classes, 10);
}

TEST(ClassifierConfigs, SayWhatIsWrong) {
  const auto said = [](const char* text) {
    return message_of([&] { parse_classifier_config(parse_json(text, "doc"), "config.json"); });
  };
  EXPECT_EQ(said(R"({"model": "deit_tiny", "clases": 10})"), "config.json: 'clases' is unknown, nearest is 'classes'");
  EXPECT_TRUE(has(said(R"({"model": "deit_huge"})"),
                  "config.json: config: model is 'deit_huge', expected one of deit_tiny, deit_small"));
  EXPECT_TRUE(has(said(R"({"attention": "flash"})"), "attention is 'flash', expected one of mhla, softmax"));
  EXPECT_EQ(said(R"({"heads": [5]})"), "config.json: config: dims is 192, expected a multiple of heads = 5");
  EXPECT_EQ(said(R"({"dims": [192, 3]})"), "config.json: config: dims has 2 stages, expected 1 for deit");
  EXPECT_TRUE(has(said(R"({"image": [224, 100]})"), "image has 100 columns, expected a multiple of patch = 16"));
  EXPECT_TRUE(has(said(R"({"lepe": 4})"), "lepe is 4, expected 0 or an odd number"));
  EXPECT_TRUE(has(said(R"({"drop_path": 1.0})"), "drop_path is 1, expected 0 or more and less than 1"));
  EXPECT_TRUE(has(said(R"({"mix_init": "sine"})"), "sine"));
  EXPECT_TRUE(has(said(R"({"official": true, "attention": "gla"})"), "official is true for deit with gla"));
  EXPECT_TRUE(has(said(R"({"pos_init": "sine"})"), "pos_init is 'sine', expected one of normal, sincos"));
  EXPECT_TRUE(has(said(R"({"pos_init": "sincos", "model": "vlt_tiny"})"), "pos_init is sincos for vlt"));
  EXPECT_TRUE(has(said(R"({"init_std": 0})"), "init_std is 0, expected a positive number"));
  EXPECT_TRUE(has(said(R"({"classes": 0})"), "classes is 0, expected 1 to 1048576"));
  ClassifierConfig c = small_deit();
  c.blocks = {{4, 4}};  // of 6 x 5 tokens: the fourth row and column would be empty
  EXPECT_TRUE(has(message_of([&] { seeded_classifier(c); }), "config: blocks"));
  EXPECT_EQ(message_of([] {
              seeded_classifier(small_deit())->forward(torch::zeros({1, 3, 24, 24}));
            }),
            "small: images have shape [1, 3, 24, 24], expected [B, 3, 24, 20]; resized() makes a model for another "
            "size");
}

}  // namespace
}  // namespace mhla
