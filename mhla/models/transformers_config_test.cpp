// config.json between mhla and transformers.
#include "mhla/models/transformers_config.h"

#include <gtest/gtest.h>

#include "mhla/core/error.h"
#include "mhla/models/classify/classifier_config.h"
#include "mhla/models/lm/lm_config.h"

namespace mhla {
namespace {

TEST(TransformersConfig, NamesTheClassOfAFamily) {
  const JsonValue lm = for_transformers(fields_to_json(lm_config("mhla_10m")));
  EXPECT_EQ(lm.at("model_type").as_string(), "mhla");
  EXPECT_EQ(lm.at("architectures").at(0).as_string(), "MhlaForCausalLM");
  const JsonValue images = for_transformers(fields_to_json(classifier_config("vlt_tiny")));
  EXPECT_EQ(images.at("model_type").as_string(), "mhla_image");
  const JsonValue other = JsonValue().set("family", "dit").set("dim", 8);
  EXPECT_TRUE(for_transformers(other) == other);
}

TEST(TransformersConfig, WhatSavePretrainedAddsIsNotAField) {
  const LmConfig lm = lm_config("mhla_10m", "linear");
  const JsonValue saved = for_transformers(fields_to_json(lm))
                              .set("transformers_version", "5.22.2")
                              .set("dtype", "float32")
                              .set("use_cache", true)
                              .set("backend", JsonValue())
                              .set("tie_word_embeddings", false);
  EXPECT_EQ(parse_lm_config(saved, "config.json"), lm);
  const ClassifierConfig images = classifier_config("vit_demo");
  EXPECT_EQ(parse_classifier_config(for_transformers(fields_to_json(images)), "config.json"), images);
}

TEST(TransformersConfig, OtherModelsAndUnknownKeysAreRefused) {
  const auto message = [](const JsonValue& json) -> std::string {
    try {
      (void)parse_lm_config(json, "config.json");
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  };
  EXPECT_EQ(message(JsonValue().set("model_type", "llama").set("dim", 256)),
            "config.json: model_type is 'llama', expected mhla (language models) or mhla_image (classifiers)");
  EXPECT_NE(message(JsonValue().set("model_type", "mhla").set("hidden_dim", 256)).find("'hidden_dim' is unknown"),
            std::string::npos);
}

}  // namespace
}  // namespace mhla
