// Both towers against transformers' CLIPModel and OpenAI's network, under the names of each.
#include "mhla/models/clip/clip.h"

#include <filesystem>

#include "mhla/core/error.h"
#include "mhla/io/file.h"
#include "mhla/models/classify/classifier.h"
#include "mhla/models/clip/clip_recorded.h"
#include "mhla/models/recorded_fixture.h"
#include "mhla/models/weights_file.h"
#include "mhla/modules/modules_fixture.h"

namespace mhla {
namespace {

struct ClipCase {
  RecordedCase recorded;
  JsonValue config;
  explicit ClipCase(const std::string& name) : recorded(read_recorded(golden_file("clip"), name)) {
    config = recorded.config.at("config");
  }
  [[nodiscard]] const torch::Tensor& at(const std::string& part) const { return recorded.tensor(part); }
  [[nodiscard]] Weights params() const { return recorded.weights("param."); }
  [[nodiscard]] Clip model() const { return make_clip(params(), config.is_null() ? nullptr : &config); }
};

void expect_outputs(Clip& model, const ClipCase& recorded) {
  const torch::NoGradGuard no_gradient;
  const torch::Tensor image = model->embed_images(recorded.at("in.pixels"));
  const torch::Tensor text = model->embed_texts(recorded.at("in.ids"));
  EXPECT_LE(distance(image, recorded.at("out.image")), 2e-6);
  EXPECT_LE(distance(text, recorded.at("out.text")), 2e-6);
  // The score of a pair is 100 cos: the diagonal of the logits without their scale.
  const torch::Tensor cosines = recorded.at("out.logits_per_image").diagonal() / model->logit_scale();
  EXPECT_LE(distance(clip_scores(image, text), 100.0 * cosines.clamp_min(0.0)), 1e-5);
}

TEST(Clip, RecordedCases) {
  expect_recorded_cases("clip", 3, clip_recorded(), 1e-5);
  const ClipCase recorded("clip_openai");
  Clip model = recorded.model();
  expect_outputs(model, recorded);
}

TEST(Clip, NamesGoThereAndBack) {
  const ClipCase openai("clip_openai"), transformers("clip_quick_gelu");
  Clip model = openai.model();
  const Weights back = clip_to_openai(state_of(*model)), given = openai.params();
  ASSERT_EQ(back.size(), given.size());
  for (const auto& [name, value] : given) EXPECT_TRUE(torch::equal(back.at(name).view_as(value), value)) << name;
  Clip other = make_clip(clip_to_openai(transformers.params()), &transformers.config);
  expect_outputs(other, transformers);
}

TEST(Clip, FilesAndFolders) {
  const ClipCase recorded("clip_gelu");
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "clip_test";
  std::filesystem::create_directories(folder);
  Weights weights = recorded.params();
  weights["logit_scale"] = weights.at("logit_scale").view({1});
  weights["text_model.embeddings.position_ids"] = torch::arange(11).unsqueeze(0);
  write_weights(folder / "model.safetensors", weights);
  write_file(folder / "config.json", write_json(recorded.config));
  Clip model = load_clip(folder);
  EXPECT_FALSE(model->config().text_tower.quick_gelu);
  EXPECT_EQ(model->config().image_tower.heads, 5);
  expect_outputs(model, recorded);
  weights.erase("visual_projection.weight");
  write_weights(folder / "model.safetensors", weights);
  const std::string message = message_of([&] { load_clip(folder); });
  EXPECT_TRUE(has(message, folder.string()) && has(message, "visual_projection.weight is missing")) << message;
  std::filesystem::remove_all(folder);
}

TEST(Clip, WhatIsRefused) {
  const ClipCase recorded("clip_gelu");
  Clip model = recorded.model();
  EXPECT_TRUE(has(message_of([&] { model->embed_images(torch::zeros({1, 3, 16, 16})); }), "expected [B, 3, 24, 24]"));
  EXPECT_TRUE(has(message_of([&] { model->embed_texts(torch::full({1, 3}, 40, torch::kLong)); }), "expected 0 to 39"));
  EXPECT_TRUE(has(message_of([&] { model->embed_texts(torch::zeros({1, 12}, torch::kLong)); }), "[B, 1 to 11]"));
  Weights weights = recorded.params();
  weights["text_model.extra"] = torch::zeros({2});
  EXPECT_TRUE(has(message_of([&] { make_clip(weights); }), "text_model.extra"));
  EXPECT_TRUE(has(message_of([] { make_clip({{"fc.weight", torch::zeros({2, 2})}}); }), "not the weights of a CLIP"));
  EXPECT_TRUE(has(message_of([] { clip_scores(torch::zeros({2, 3}), torch::zeros({3, 3})); }), "expected the same"));
}

TEST(Clip, PixelsAreNormalised) {
  const torch::Tensor black = clip_pixels(torch::zeros({1, 3, 2, 2}, torch::kByte));
  EXPECT_NEAR(black.index({0, 0, 0, 0}).item<double>(), -0.48145466 / 0.26862954, 1e-6);
  EXPECT_NEAR(black.index({0, 2, 1, 1}).item<double>(), -0.40821073 / 0.27577711, 1e-6);
}

}  // namespace
}  // namespace mhla
