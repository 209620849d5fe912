// Parameters by formula against those of real models: every attention of the zoo, every family.
#include "mhla/models/model_size.h"

#include <gtest/gtest.h>

#include "mhla/models/classify/classifier.h"
#include "mhla/models/lm/lm.h"
#include "mhla/modules/zoo/zoo.h"

namespace mhla {
namespace {

void expect_parameters(const ClassifierConfig& c) {
  EXPECT_EQ(size_of(c).parameters, static_cast<double>(count_parameters(*make_classifier(c))))
      << write_json(fields_to_json(c));
}

void expect_parameters(const LmConfig& c) {
  EXPECT_EQ(size_of(c, 1).parameters, static_cast<double>(count_parameters(*LanguageModel(c))))
      << write_json(fields_to_json(c));
}

TEST(ModelSize, HasTheParametersOfClassifiers) {
  for (const std::string_view attention : attention_names()) {
    ClassifierConfig deit = classifier_config("deit_tiny", attention);
    deit.image = {64, 48}, deit.dims = {64}, deit.heads = {2}, deit.classes = 7, deit.blocks = {{2, 3}};
    deit.depths = {24};  // deep enough for blocks without an MLP to match
    expect_parameters(deit);
    deit.cpe = 0, deit.lepe = attention == "mhla" || attention == "softmax" ? 5 : 0, deit.qkv_bias = true;
    deit.mix_per_head = true, deit.pad = {64, 64}, deit.blocks = {{2, 2}}, deit.mlp_ratio = 3.7, deit.channels = 1;
    expect_parameters(deit);
    ClassifierConfig vlt = classifier_config("vlt_tiny", attention);
    vlt.image = {64, 70}, vlt.dims = {32, 32, 48, 64}, vlt.heads = {2, 2, 2, 2}, vlt.depths = {16, 16, 1, 1},
    vlt.classes = 5;
    vlt.blocks = {{2, 2}, {4, 3}};
    expect_parameters(vlt);
  }
  for (const char* attention : {"mhla", "linear"}) {
    ClassifierConfig official = classifier_config("deit_tiny", attention, /*official=*/true);
    official.dims = {48}, official.depths = {2};
    expect_parameters(official);
  }
  expect_parameters(classifier_config("vit_demo"));
}

TEST(ModelSize, HasTheParametersOfLanguageModels) {
  for (const std::string_view attention : attention_names()) {
    if (!has_causal_form(attention)) continue;
    LmConfig c = lm_config("mhla_10m", attention);
    c.vocab = 300, c.dim = 64, c.heads = 2, c.mlp = 160, c.layers = 30, c.context = 200;
    expect_parameters(c);
    c.tied = false, c.mlp = 100, c.match = false;
    expect_parameters(c);
    if (attention != "mhla" && attention != "linear") continue;
    c.kv_heads = 1, c.expand_k = 1, c.expand_v = 2, c.short_conv = 4, c.gate = false, c.mix_per_head = true;
    c.features = "hedgehog";
    expect_parameters(c);
  }
  expect_parameters(lm_config("mhla_30m"));
}

TEST(ModelSize, GrowsWithWhatIsKept) {
  const LmConfig c = lm_config("mhla_10m");
  EXPECT_EQ(size_of(c, 200).kept, 2 * size_of(c, 100).kept);
  EXPECT_LT(size_of(c, 200, /*recompute=*/true).kept, size_of(c, 200).kept / 4);
  EXPECT_LT(size_of(c, 200).passing, size_of(c, 200).kept);
  LmConfig huge = c;  // no overflow: larger than any memory
  huge.dim = 1 << 16, huge.mlp = 1 << 20, huge.layers = 4096, huge.context = 1 << 24, huge.chunk = 1;
  EXPECT_GT(size_of(huge, huge.context).parameters, 1e17);
}

}  // namespace
}  // namespace mhla
