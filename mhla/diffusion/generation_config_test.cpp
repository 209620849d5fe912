// generation.json: in and out of a folder, and what is refused.
#include "mhla/diffusion/generation_config.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "mhla/diffusion/flow.h"
#include "mhla/diffusion/gaussian.h"
#include "mhla/testing/messages.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

GenerationConfig parsed(const char* text) { return parse_generation_config(parse_json(text, "text"), "file"); }

TEST(GenerationConfig, SurvivesItsFile) {
  const fs::path folder = fs::temp_directory_path() / ("mhla-generation-test-" + std::to_string(::getpid()));
  fs::create_directories(folder);
  const GenerationConfig published = sana_generation();
  EXPECT_EQ(read_generation_config(folder, published), published);  // no file
  GenerationConfig config = dit_generation(4, true);
  config.autoencoder = "/models/sd-vae", config.latent_scale = 0.18215, config.schedule = "squaredcos_cap_v2";
  write_generation_config(folder, config);
  EXPECT_EQ(read_generation_config(folder, published), config);
  fs::remove_all(folder);
}

TEST(GenerationConfig, DefaultsAreThePublishedOnes) {
  EXPECT_EQ(dit_generation(4, true).space, "latents");
  EXPECT_EQ(dit_generation(1, false).space, "pixels");
  EXPECT_FALSE(dit_generation(1, false).learned_variance);
  EXPECT_EQ(gaussian_options(dit_generation(3, true)), GaussianOptions());
  EXPECT_EQ(gaussian_options(dit_generation(3, false)).variance, "fixed_large");
  EXPECT_EQ(flow_options(sana_generation()).shift, 3.0);
  check(sana_generation(), 32, false);
}

TEST(GenerationConfig, SaysWhatItMayNotBe) {
  const auto refused = [](const char* text) { return message_of([&] { parsed(text); }); };
  EXPECT_EQ(refused(R"({"process": "score"})"), "file: generation: process is 'score', expected noise or flow");
  EXPECT_EQ(refused(R"({"space": "audio"})"), "file: generation: space is 'audio', expected pixels or latents");
  EXPECT_EQ(refused(R"({"processes": "flow"})"), "file: 'processes' is unknown, nearest is 'process'");
  EXPECT_NE(refused(R"({"schedule": "cubic"})").find("cubic"), std::string::npos);
  EXPECT_NE(refused(R"({"train_steps": 0})").find("0"), std::string::npos);
  EXPECT_NE(refused(R"({"shift": -1})").find("shift is -1"), std::string::npos);
  EXPECT_NE(refused(R"({"latent_scale": -1})").find("latent_scale is -1"), std::string::npos);
  EXPECT_NE(refused(R"({"sample": [4]})").find("sample has 1 numbers, expected none, or rows and columns"),
            std::string::npos);
  EXPECT_EQ(refused(R"({"process": "flow"})"),
            "file: generation: learned_variance is true, expected false for process flow");
  EXPECT_NE(message_of([] { check(dit_generation(3, true), 3, false); }).find("learn_sigma of the network is: false"),
            std::string::npos);
  EXPECT_NE(message_of([] { check(dit_generation(3, true), 4, true); }).find("expected latents for the 4 channels"),
            std::string::npos);
}

}  // namespace
}  // namespace mhla
