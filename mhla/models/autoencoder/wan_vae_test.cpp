// Wan's autoencoder: recorded numbers, streaming, names, files, and what does not fit.
#include "mhla/models/autoencoder/wan_vae.h"

#include "mhla/models/autoencoder/wan_vae_recorded.h"
#include "mhla/models/recorded_fixture.h"
#include "mhla/testing/messages.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

WanVaeConfig small_wan_vae() {
  WanVaeConfig c;
  c.base_dim = 4, c.z_dim = 2, c.latents_mean = {0.1, -0.2}, c.latents_std = {1.5, 0.5};
  return c;
}

TEST(WanVaeGolden, OutputsAndGradients) {
  expect_recorded_cases("video/wan_vae", 2, wan_vae_recorded(), 3e-4);
  expect_recorded_cases("video/wan_vae_original", 1, wan_vae_recorded(), 3e-4);
}

TEST(WanVae, ThePublishedOneHasItsParameters) {
  const WanVae model{WanVaeConfig()};
  std::int64_t count = 0;
  for (const torch::Tensor& parameter : model->parameters()) count += parameter.numel();
  EXPECT_EQ(count, 126892531);
  EXPECT_EQ(size_of(WanVaeConfig(), 480, 832).parameters, 126892531.0);
  double few = 0;
  const WanVae tiny(small_wan_vae());
  for (const torch::Tensor& parameter : tiny->parameters()) few += static_cast<double>(parameter.numel());
  EXPECT_EQ(size_of(small_wan_vae(), 16, 16).parameters, few);
}

TEST(WanVae, FramesAsTheyComeAreThoseOfAll) {
  torch::manual_seed(3);
  WanVae model(small_wan_vae());
  const torch::NoGradGuard no_gradient;
  const torch::Tensor z = torch::randn({1, 2, 3, 2, 1});
  std::vector<torch::Tensor> parts;
  model->decode_each(z, [&](const torch::Tensor& frames) { parts.push_back(frames); });
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[0].size(2), 1);
  EXPECT_EQ(parts[1].size(2), 4);
  EXPECT_TRUE(torch::equal(torch::cat(parts, 2), model->decode(z)));
}

// What a GPU does, with LibTorch's operators where the kernels are not.
TEST(WanVae, ChannelsNextToEachOtherMakeNoDifference) {
  torch::manual_seed(4);
  WanVae model(small_wan_vae());
  const torch::NoGradGuard no_gradient;
  const torch::Tensor z = torch::randn({1, 2, 3, 2, 3}), video = torch::rand({1, 3, 9, 16, 24}) * 2 - 1;
  const torch::Tensor frames = model->decode(z), latents = model->encode(video);
  for (const WanVaeFrames how : {WanVaeFrames::kRows, WanVaeFrames::kImages}) {
    SCOPED_TRACE(how == WanVaeFrames::kRows ? "rows" : "images");
    model->use_frames(how);
    EXPECT_LT((model->decode(z) - frames).abs().max().item<float>(), 1e-5F);
    EXPECT_LT((model->encode(video) - latents).abs().max().item<float>(), 1e-5F);
  }
}

// Whatever the number of its convolutions, and so of the places that remember frames.
TEST(WanVae, FramesOfEveryDepth) {
  const torch::NoGradGuard no_gradient;
  for (const std::int64_t blocks : {1, 2, 3, 4}) {
    WanVaeConfig c = small_wan_vae();
    c.num_res_blocks = blocks;
    WanVae model(c);
    EXPECT_EQ(model->decode(torch::randn({1, 2, 3, 1, 1})).sizes(), (std::vector<std::int64_t>{1, 3, 9, 8, 8}))
        << blocks;
  }
}

// What comes later changes nothing of what was before.
TEST(WanVae, IsCausal) {
  torch::manual_seed(1);
  WanVae model(small_wan_vae());
  const torch::NoGradGuard no_gradient;
  const torch::Tensor video = torch::rand({1, 3, 9, 16, 8}), z = torch::randn({1, 2, 3, 2, 1});
  const torch::Tensor all = model->encode(video), frames = model->decode(z);
  EXPECT_EQ(all.sizes(), (std::vector<std::int64_t>{1, 2, 3, 2, 1}));
  EXPECT_EQ(frames.sizes(), (std::vector<std::int64_t>{1, 3, 9, 16, 8}));
  EXPECT_TRUE(torch::equal(model->encode(video.narrow(2, 0, 5)), all.narrow(2, 0, 2)));
  EXPECT_TRUE(torch::equal(model->decode(z.narrow(2, 0, 1)), frames.narrow(2, 0, 1)));
  EXPECT_TRUE(torch::allclose(model->denormalized(model->normalized(z)), z));
}

TEST(WanVae, BothNamingsComeBack) {
  torch::manual_seed(2);
  WanVae model(small_wan_vae());
  const torch::NoGradGuard no_gradient;
  const torch::Tensor z = torch::randn({1, 2, 2, 1, 2});
  const fs::path folder = fs::path(testing::TempDir()) / "wan_vae_files";
  for (const WanVaeNames names : {WanVaeNames::kDiffusers, WanVaeNames::kOriginal}) {
    fs::remove_all(folder);
    save_wan_vae(*model, folder, names);
    EXPECT_TRUE(torch::equal(load_wan_vae(folder)->decode(z), model->decode(z)));
  }
  fs::remove_all(folder);
}

TEST(WanVae, SaysWhatDoesNotFit) {
  WanVae model(small_wan_vae());
  const auto encoded = [&](std::int64_t frames, std::int64_t rows) {
    return message_of([&] { model->encode(torch::zeros({1, 3, frames, rows, 8})); });
  };
  EXPECT_TRUE(has(encoded(7, 8), "the video has 7 frames, expected 5 or 9: one and a multiple of 4"));
  EXPECT_TRUE(has(encoded(1, 12), "expected multiples of 8"));
  EXPECT_TRUE(has(message_of([&] { model->decode(torch::zeros({1, 3, 1, 1, 1})); }), "expected [B, 2, frames"));
  WanVaeTiles tiles;
  tiles.stride = {300, 300};
  EXPECT_TRUE(has(message_of([&] {
                    model->decode_raw_tiled(torch::zeros({1, 2, 1, 1, 1}), tiles);
                  }),
                  "tiles of 256 pixels every 300, expected multiples of 8"));
  const auto parsed = [](const char* text) {
    return message_of([&] { parse_wan_vae_config(parse_json(text, "c"), "config.json"); });
  };
  EXPECT_TRUE(has(parsed(R"({"_class_name": "AutoencoderKL"})"), "expected AutoencoderKLWan"));
  EXPECT_TRUE(has(parsed(R"({"z_dim": 4})"), "latents_mean has 16 numbers, expected z_dim = 4"));
  EXPECT_TRUE(has(parsed(R"({"patch_size": 2})"), "'patch_size' is unknown"));
}

}  // namespace
}  // namespace mhla
