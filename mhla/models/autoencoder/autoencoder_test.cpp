// Autoencoders: tiles, published names in and out, folders with shards, sizes by formula, and what does not fit.
#include "mhla/models/autoencoder/autoencoder.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>

#include "mhla/io/file.h"
#include "mhla/models/weights_folder.h"
#include "mhla/testing/messages.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

KlConfig small_kl() {
  KlConfig c;
  c.block_out_channels = {8, 16, 16}, c.layers_per_block = 1, c.norm_num_groups = 4;
  return c;
}

DcConfig small_dc(bool shuffle = false) {
  DcConfig c;
  c.latent_channels = 4, c.attention_head_dim = 4;
  c.encoder_block_types = c.decoder_block_types = {"ResBlock", "EfficientViTBlock", "EfficientViTBlock"};
  c.encoder_block_out_channels = c.decoder_block_out_channels = {8, 8, 16};
  c.encoder_layers_per_block = {1, 2, 1}, c.decoder_layers_per_block = {2, 1, 1};
  c.encoder_qkv_multiscales = c.decoder_qkv_multiscales = {{}, {5}, {3, 5}};
  if (shuffle) c.upsample_block_type = "pixel_shuffle", c.downsample_block_type = "pixel_unshuffle";
  return c;
}

std::vector<AutoencoderConfig> small_ones() { return {small_kl(), small_dc(), small_dc(true)}; }

AnyAutoencoder seeded_autoencoder(const AutoencoderConfig& config, int seed = 1) {
  torch::manual_seed(seed);
  return make_autoencoder(config);
}

// The first shard in a folder.
std::string first_shard(const fs::path& folder) {
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (has(entry.path().filename().string(), "-00001-of-")) return entry.path().filename().string();
  return {};
}

class AutoencoderFolder : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() /
              (std::string("mhla_autoencoder_") + testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  fs::path folder_;
};

// ---- Tiles

TEST(Tiles, WeightsOfWhatOverlapsSumToOne) {
  for (const auto& [rows, columns] : std::vector<std::pair<int, int>>{{8, 8}, {9, 8}, {21, 30}, {8, 15}, {31, 7}}) {
    const torch::Tensor x = torch::randn({2, 3, rows, columns}, torch::kDouble);
    std::int64_t largest = 0;
    const torch::Tensor y = in_tiles(x, {8, 6, 16, 12}, [&](const torch::Tensor& tile) {
      largest = std::max(largest, tile.size(2) * tile.size(3));
      return tile.repeat_interleave(2, 2).repeat_interleave(2, 3);
    });
    EXPECT_LE((y - x.repeat_interleave(2, 2).repeat_interleave(2, 3)).abs().max().item<double>(), 1e-12)
        << rows << " x " << columns;
    EXPECT_LE(largest, 64);
  }
}

TEST(Tiles, BlendLinearly) {
  int tiles = 0;  // the first answers 0, the second 1
  const torch::Tensor y = in_tiles(torch::zeros({1, 1, 8, 12}), {8, 4, 8, 4},
                                   [&](const torch::Tensor& tile) { return torch::full_like(tile, tiles++); });
  ASSERT_EQ(tiles, 2);
  const torch::Tensor row = y[0][0][3];
  const std::vector<float> want{0, 0, 0, 0, 0, 0.25F, 0.5F, 0.75F, 1, 1, 1, 1};
  EXPECT_TRUE(torch::equal(row, torch::tensor(want))) << row;
}

TEST(Tiles, OfANetwork) {
  for (const AutoencoderConfig& config : small_ones()) {
    const AnyAutoencoder model = seeded_autoencoder(config);
    const torch::NoGradGuard no_gradient;
    const torch::Tensor images = torch::randn({1, 3, 24, 48}), latents = torch::randn({1, 4, 6, 12});
    const torch::Tensor whole = model->encode(images), decoded = model->decode(latents);
    model->set_tiling(Tiling{48, 40});
    EXPECT_TRUE(torch::equal(model->encode(images), whole));  // one tile is enough
    EXPECT_TRUE(torch::equal(model->decode(latents), decoded));
    model->set_tiling(Tiling{24, 20});
    EXPECT_EQ(model->encode(images).sizes(), whole.sizes());
    EXPECT_EQ(model->decode(latents).sizes(), decoded.sizes());
    EXPECT_FALSE(torch::equal(model->decode(latents), decoded));
    for (const Tiling bad : {Tiling{26, 24}, Tiling{24, 28}, Tiling{24, 8}, Tiling{0, 0}})
      EXPECT_TRUE(has(message_of([&] { model->set_tiling(bad); }), "expected multiples of 4"));
    EXPECT_NO_THROW(model->set_tiling({}));
  }
  EXPECT_EQ(seeded_autoencoder(small_kl())->usual_tiling().stride, 384);
  EXPECT_EQ(seeded_autoencoder(small_dc())->usual_tiling().stride, 448);
}

// ---- What it computes

TEST(Autoencoder, ScalesAndShiftsLatents) {
  KlConfig c = small_kl();
  c.scaling_factor = 0.5, c.shift_factor = 0.25;
  const AnyAutoencoder model = seeded_autoencoder(c);
  const torch::NoGradGuard no_gradient;
  const torch::Tensor images = torch::randn({2, 3, 8, 12}), noise = torch::randn({2, 4, 2, 3});
  const Posterior p = model->posterior(images);
  EXPECT_TRUE(torch::allclose(model->encode(images), (p.mean - 0.25) * 0.5));
  EXPECT_TRUE(torch::allclose(model->encode(images, noise), (p.mean + p.std() * noise - 0.25) * 0.5));
  EXPECT_TRUE(torch::allclose(model->decode(noise), model->decode_unscaled(noise * 2 + 0.25)));
  EXPECT_EQ(model->channels(), 4);
  EXPECT_EQ(model->downsampling(), 4);
}

TEST(Autoencoder, RefusesWhatItCannotTake) {
  const AnyAutoencoder kl = seeded_autoencoder(small_kl()), dc = seeded_autoencoder(small_dc());
  EXPECT_TRUE(has(message_of([&] { kl->encode(torch::zeros({1, 3, 10, 8})); }), "multiples of 4"));
  EXPECT_TRUE(has(message_of([&] { kl->encode(torch::zeros({1, 1, 8, 8})); }), "expected [B, 3, rows"));
  EXPECT_TRUE(has(message_of([&] { kl->decode(torch::zeros({1, 8, 4, 4})); }), "expected [B, 4, rows"));
  EXPECT_TRUE(has(message_of([&] { kl->encode(torch::zeros({1, 3, 8, 8}), torch::zeros({1})); }), "noise has shape"));
  EXPECT_TRUE(has(message_of([&] {
                    dc->encode(torch::zeros({1, 3, 8, 8}), torch::zeros({1, 4, 2, 2}));
                  }),
                  "this encoder has no variance"));
}

TEST(Autoencoder, HasTheSizeOfTheFormula) {
  for (const AutoencoderConfig& config : small_ones()) {
    double count = 0;
    for (const torch::Tensor& parameter : seeded_autoencoder(config)->parameters())
      count += static_cast<double>(parameter.numel());
    EXPECT_EQ(size_of(config, 8, 8).parameters, count);
  }
  EXPECT_EQ(size_of(KlConfig(), 256, 256).parameters, 83653863.0);   // sd-vae-ft-*
  EXPECT_EQ(size_of(DcConfig(), 512, 512).parameters, 312250275.0);  // dc-ae-f32c32-sana
  EXPECT_GT(size_of(DcConfig(), 1024, 1024).passing, 3 * size_of(DcConfig(), 512, 512).passing);
}

// ---- Names and files

TEST(AutoencoderNames, AreThoseOfTheirProjects) {
  const auto names = [](const AutoencoderConfig& c, AutoencoderNames which) {
    return to_published(c, weights_of(*seeded_autoencoder(c)), which);
  };
  const Weights ldm = names(small_kl(), AutoencoderNames::kOriginal);
  for (const char* name : {"encoder.down.1.block.0.nin_shortcut.weight", "encoder.down.0.downsample.conv.bias",
                           "encoder.mid.block_2.norm1.weight", "decoder.up.2.block.1.conv2.weight",
                           "decoder.up.2.upsample.conv.weight", "decoder.up.0.block.0.nin_shortcut.bias",
                           "decoder.norm_out.weight", "encoder.mid.attn_1.norm.bias", "quant_conv.weight"})
    EXPECT_EQ(ldm.count(name), 1u) << name;
  EXPECT_EQ(ldm.at("decoder.mid.attn_1.proj_out.weight").dim(), 4);
  EXPECT_EQ(ldm.count("decoder.up.0.upsample.conv.weight"), 0u);
  const Weights dc = names(small_dc(), AutoencoderNames::kOriginal);
  for (const char* name :
       {"encoder.project_in.conv.weight", "encoder.stages.0.op_list.0.main.conv1.conv.bias",
        "encoder.stages.0.op_list.0.main.conv2.norm.weight", "encoder.stages.0.op_list.1.main.conv.weight",
        "encoder.stages.2.op_list.0.context_module.main.aggreg.1.0.weight",
        "encoder.stages.1.op_list.0.context_module.main.proj.norm.bias",
        "decoder.stages.1.op_list.0.main.conv.conv.weight", "decoder.project_out.op_list.2.conv.bias",
        "decoder.stages.2.op_list.0.local_module.main.point_conv.norm.weight", "decoder.project_in.main.conv.weight"})
    EXPECT_EQ(dc.count(name), 1u) << name;
  const torch::Tensor qkv = dc.at("encoder.stages.2.op_list.0.context_module.main.qkv.conv.weight");
  EXPECT_EQ(qkv.sizes(), (std::vector<std::int64_t>{48, 16, 1, 1}));
}

TEST(AutoencoderNames, ComeBackFromEveryNaming) {
  for (const AutoencoderConfig& config : small_ones()) {
    const AnyAutoencoder model = seeded_autoencoder(config);
    const Weights own = weights_of(*model);
    const auto expect_same = [&](const Weights& file, const char* what) {
      const AnyAutoencoder other = seeded_autoencoder(config, 2);
      load_published(*other, file);
      for (const auto& [name, value] : weights_of(*other))
        EXPECT_TRUE(torch::equal(value, own.at(name))) << what << name;
    };
    for (const AutoencoderNames names : {AutoencoderNames::kDiffusers, AutoencoderNames::kOriginal}) {
      const Weights file = to_published(config, own, names);
      expect_same(file, "bare ");
      Weights whole{{"model.diffusion_model.out.weight", torch::zeros({1})}};
      for (const auto& [name, value] : file) whole["first_stage_model." + name] = value;
      expect_same(whole, "of a pipeline ");
    }
  }
  Weights old;
  const AnyAutoencoder kl = seeded_autoencoder(small_kl());
  for (const auto& [name, value] : weights_of(*kl)) {
    std::string other = name;
    for (const auto& [ours, theirs] : {std::pair("to_q", "query"), std::pair("to_k", "key"), std::pair("to_v", "value"),
                                       std::pair("to_out.0", "proj_attn")})
      if (const std::size_t at = other.find(ours); at != std::string::npos)
        other.replace(at, std::string(ours).size(), theirs);
    old[other] = value;
  }
  EXPECT_EQ(old.count("encoder.mid_block.attentions.0.proj_attn.bias"), 1u);
  const AnyAutoencoder again = seeded_autoencoder(small_kl(), 2);
  load_published(*again, old);
  EXPECT_TRUE(torch::equal(weights_of(*again).at("encoder.mid_block.attentions.0.to_v.weight"),
                           weights_of(*kl).at("encoder.mid_block.attentions.0.to_v.weight")));
}

TEST(AutoencoderNames, ThatDoNotFitAreRefused) {
  const AnyAutoencoder model = seeded_autoencoder(small_kl());
  Weights file = weights_of(*model);
  file.erase("encoder.conv_in.bias");
  file["extra"] = torch::zeros({1});
  const std::string text = message_of([&] { load_published(*model, file); });
  EXPECT_EQ(text, "load_published: missing: encoder.conv_in.bias; left over: extra");
  KlConfig wide = small_kl();
  wide.latent_channels = 8;
  EXPECT_TRUE(has(message_of([&] { load_published(*model, weights_of(*seeded_autoencoder(wide))); }),
                  "decoder.conv_in.weight has shape [16, 8, 3, 3], expected [16, 4, 3, 3]"));
  const std::string other = message_of([&] { load_published(*model, weights_of(*seeded_autoencoder(small_dc()))); });
  EXPECT_TRUE(has(other, " more; left over: ")) << other;  // lists a few of the hundreds of names
  EXPECT_LT(other.size(), 1000u);
}

TEST_F(AutoencoderFolder, ComesBackWithItsShards) {
  const torch::NoGradGuard no_gradient;
  for (const AutoencoderConfig& config : small_ones()) {
    for (const AutoencoderNames names : {AutoencoderNames::kDiffusers, AutoencoderNames::kOriginal}) {
      fs::remove_all(folder_);
      const AnyAutoencoder model = seeded_autoencoder(config);
      save_autoencoder(*model, folder_, names, /*shard_bytes=*/20000);
      EXPECT_TRUE(fs::exists(folder_ / "diffusion_pytorch_model.safetensors.index.json"));
      const AnyAutoencoder other = load_autoencoder(folder_);
      EXPECT_EQ(other->config(), model->config());
      const torch::Tensor z = torch::randn({1, 4, 3, 2});
      EXPECT_TRUE(torch::equal(model->decode(z), other->decode(z)));
      EXPECT_EQ(load_autoencoder(folder_, torch::kBFloat16)->parameters()[0].scalar_type(), torch::kBFloat16);
    }
  }
}

TEST_F(AutoencoderFolder, RefusesBrokenShards) {
  const AnyAutoencoder model = seeded_autoencoder(small_kl());
  save_autoencoder(*model, folder_, AutoencoderNames::kDiffusers, 20000);
  const fs::path index = folder_ / "diffusion_pytorch_model.safetensors.index.json";
  const std::vector<std::byte> bytes = read_file(index);
  const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto with = [&](const std::string& part, const std::string& other) {
    std::string changed = text;
    changed.replace(changed.find(part), part.size(), other);
    write_file(index, changed);
    return message_of([&] { load_autoencoder(folder_); });
  };
  EXPECT_TRUE(has(with("\"diffusion_pytorch_model-00001", "\"../x-00001"), "expected a safetensors file in the same"));
  EXPECT_TRUE(has(with("decoder.conv_in.bias", "decoder.conv_in.bais"), "decoder.conv_in.bias is not in"));
  EXPECT_TRUE(has(with("weight_map", "weight_mop"), "weight_map"));
  write_file(index, text);
  const std::string first = first_shard(folder_);
  ASSERT_TRUE(fs::remove(folder_ / first));
  const std::string missing = message_of([&] { load_autoencoder(folder_); });
  EXPECT_TRUE(has(missing, first)) << missing;
}

TEST(AutoencoderConfigs, OfDiffusers) {
  const auto parse = [](const std::string& text) {
    return parse_autoencoder_config(parse_json(text, "config.json"), "config.json");
  };
  const AutoencoderConfig sd =
      parse(R"({"_class_name": "AutoencoderKL", "_diffusers_version": "0.4.2", "act_fn": "silu",
      "block_out_channels": [128, 256, 512, 512], "down_block_types": ["DownEncoderBlock2D", "DownEncoderBlock2D",
      "DownEncoderBlock2D", "DownEncoderBlock2D"], "in_channels": 3, "latent_channels": 4, "layers_per_block": 2,
      "norm_num_groups": 32, "out_channels": 3, "sample_size": 256, "up_block_types": ["UpDecoderBlock2D",
      "UpDecoderBlock2D", "UpDecoderBlock2D", "UpDecoderBlock2D"]})");
  EXPECT_EQ(std::get<KlConfig>(sd), KlConfig());
  EXPECT_EQ(parse(write_json(autoencoder_json(DcConfig()))), AutoencoderConfig(DcConfig()));
  const auto refusal = [&](const std::string& text) { return message_of([&] { parse(text); }); };
  EXPECT_TRUE(has(refusal(R"({"_class_name": "VQModel"})"), "expected AutoencoderKL or AutoencoderDC"));
  EXPECT_TRUE(has(refusal(R"({"_class_name": "AutoencoderDC", "decoder_norm_types": ["batch_norm", "rms_norm"]})"),
                  "'decoder_norm_types' has batch_norm, expected rms_norm"));
  EXPECT_TRUE(has(refusal(R"({"_class_name": "AutoencoderDC", "encoder_layers_per_block": [0, 4, 8, 2, 2, 2]})"),
                  "encoder_layers_per_block is 0, expected 1"));
  EXPECT_TRUE(has(refusal(R"({"_class_name": "AutoencoderKL", "latents_mean": [1]})"), "'latents_mean' is given"));
  EXPECT_TRUE(has(refusal(R"({"_class_name": "AutoencoderKL", "blocks": 1})"), "'blocks' is unknown"));
  EXPECT_TRUE(has(refusal(R"({"in_channels": 3})"), "_class_name"));
}

}  // namespace
}  // namespace mhla
