// Files under published names, in shards: written, loaded, run, saved, loaded again, with every key used. Tiny models
// always; those of MHLA_REAL_SHAPES (a comma-separated list of sd_vae, dc_ae, sana_600m, gemma2_2b) at their real
// sizes, which takes up to 12 GB of memory and disk:
//   MHLA_REAL_SHAPES=sd_vae,dc_ae,sana_600m build/release/tests/real_shapes_test
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "mhla/models/autoencoder/autoencoder.h"
#include "mhla/models/sana/sana.h"
#include "mhla/models/text_encoder/gemma2.h"
#include "mhla/models/weights_folder.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

bool is_real(const std::string& name) {
  const char* list = std::getenv("MHLA_REAL_SHAPES");
  return list != nullptr && ("," + std::string(list) + ",").find("," + name + ",") != std::string::npos;
}

// What a family of models has to say to be tried.
template <class Model>
struct Family {
  std::function<Model()> make;                                      // random weights
  std::function<void(const Model&, const fs::path&, double)> save;  // under published names, in shards
  std::function<Model(const fs::path&)> load;
  std::function<torch::Tensor(const Model&)> run;  // a small input
};

// Random numbers in every weight, so that each of them counts.
template <class Model>
Model shaken(Model model) {
  const torch::NoGradGuard no_gradient;
  for (torch::Tensor& parameter : model->parameters()) parameter.normal_(0.0, 0.02);
  return model;
}

template <class Model>
void expect_the_same_again(const std::string& name, double parameters, double shard_bytes,
                           const Family<Model>& family) {
  const auto start = std::chrono::steady_clock::now();
  const auto tell = [&](const char* step) {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (parameters > 1e7)
      std::cout << name << ": " << step << " after " << seconds << " s, peak "
                << static_cast<double>(usage.ru_maxrss) / 1048576.0 << " GiB\n";
  };
  const char* base = std::getenv("MHLA_REAL_SHAPES_DIR");
  const fs::path root = (base != nullptr ? fs::path(base) : fs::temp_directory_path()) / ("mhla_shapes_" + name);
  fs::remove_all(root);
  const torch::NoGradGuard no_gradient;
  std::size_t keys = 0;
  torch::Tensor want;
  {
    const Model model = family.make();
    double count = 0;
    for (const torch::Tensor& parameter : model->parameters()) count += static_cast<double>(parameter.numel());
    EXPECT_EQ(count, parameters) << name;
    tell("made");
    family.save(model, root / "first", shard_bytes);
    tell("saved");
  }
  {
    const Model model = family.load(root / "first");
    tell("loaded");
    want = family.run(model);
    tell("run");
    EXPECT_TRUE(want.isfinite().all().template item<bool>()) << name;
    EXPECT_GT(want.abs().max().template item<double>(), 0.0) << name;
    family.save(model, root / "second", shard_bytes);
  }
  {
    const Weights first = mapped_weights(root / "first"), second = mapped_weights(root / "second");
    keys = first.size();
    EXPECT_EQ(second.size(), keys) << name;
    for (const auto& [key, value] : first) {
      const auto found = second.find(key);
      ASSERT_NE(found, second.end()) << name << ": " << key << " was not used";
      EXPECT_TRUE(torch::equal(found->second, value)) << name << ": " << key;
    }
    EXPECT_GT(std::distance(fs::directory_iterator(root / "first"), fs::directory_iterator()), 3) << name;  // shards
  }
  fs::remove_all(root / "first");
  EXPECT_TRUE(torch::equal(family.run(family.load(root / "second")), want)) << name;
  tell(("done, " + std::to_string(keys) + " tensors,").c_str());
  fs::remove_all(root);
}

void try_autoencoder(const std::string& name, const AutoencoderConfig& config, double parameters, double shard_bytes,
                     AutoencoderNames names) {
  Family<AnyAutoencoder> family;
  family.make = [&] { return shaken(make_autoencoder(config)); };
  family.save = [&](const AnyAutoencoder& model, const fs::path& folder, double bytes) {
    save_autoencoder(*model, folder, names, bytes);
  };
  family.load = [](const fs::path& folder) { return load_autoencoder(folder); };
  family.run = [](const AnyAutoencoder& model) {
    torch::manual_seed(3);
    const std::int64_t side = 2 * model->downsampling();
    return model->decode(model->encode(torch::randn({1, 3, side, side})));
  };
  expect_the_same_again(name, parameters, shard_bytes, family);
}

TEST(RealShapes, KlAutoencoder) {
  KlConfig tiny;
  tiny.block_out_channels = {8, 16}, tiny.layers_per_block = 1, tiny.norm_num_groups = 4;
  for (const AutoencoderNames names : {AutoencoderNames::kDiffusers, AutoencoderNames::kOriginal}) {
    try_autoencoder("kl_tiny", tiny, size_of(tiny, 8, 8).parameters, 20000, names);
    if (is_real("sd_vae")) try_autoencoder("sd_vae", KlConfig(), 83653863, 1e8, names);
  }
}

TEST(RealShapes, DcAutoencoder) {
  DcConfig tiny;
  tiny.latent_channels = 4, tiny.attention_head_dim = 4;
  for (auto* widths : {&tiny.encoder_block_out_channels, &tiny.decoder_block_out_channels})
    *widths = {8, 8, 8, 8, 16, 16};
  for (const AutoencoderNames names : {AutoencoderNames::kDiffusers, AutoencoderNames::kOriginal}) {
    try_autoencoder("dc_tiny", tiny, size_of(tiny, 32, 32).parameters, 40000, names);
    if (is_real("dc_ae")) try_autoencoder("dc_ae", DcConfig(), 312250275, 4e8, names);
  }
}

void try_sana(const std::string& name, SanaConfig config, double parameters, double shard_bytes, SanaNames names) {
  if (names == SanaNames::kDiffusers) config.truncate_t = false, config.eps = 1e-15;  // as its config says
  Family<Sana> family;
  family.make = [&] { return shaken(Sana(config)); };
  family.save = [&](const Sana& model, const fs::path& folder, double bytes) {
    save_sana(*model, folder, names, bytes);
  };
  family.load = [](const fs::path& folder) { return load_sana(folder); };
  family.run = [](const Sana& model) {
    torch::manual_seed(3);
    const SanaConfig& c = model->config();
    return model.ptr()->forward(torch::randn({1, c.channels, 4, 6}), torch::tensor({500.0F}),
                                torch::randn({1, c.caption_tokens, c.caption_dim}),
                                torch::ones({1, c.caption_tokens}, torch::kLong));
  };
  expect_the_same_again(name, parameters, shard_bytes, family);
}

TEST(RealShapes, Sana) {
  for (const SanaNames names : {SanaNames::kOriginal, SanaNames::kDiffusers}) {
    for (const char* attention : {"linear", "mhla"}) {
      SanaConfig tiny = sana_config("sana_600m", attention);
      tiny.dim = 32, tiny.depth = 2, tiny.cross_heads = 2, tiny.caption_dim = 12, tiny.blocks = {2, 2};
      try_sana("sana_tiny", tiny, size_of(tiny, 4, 4).parameters, 60000, names);
    }
    if (is_real("sana_600m")) try_sana("sana_600m", sana_config("sana_600m"), 591747872, 1e9, names);
  }
}

TEST(RealShapes, Gemma2) {
  const auto attempt = [](const std::string& name, const Gemma2Config& config, double parameters, double shard_bytes) {
    Family<Gemma2> family;
    family.make = [&] { return shaken(Gemma2(config, torch::kBFloat16)); };
    family.save = [](const Gemma2& model, const fs::path& folder, double bytes) { save_gemma2(*model, folder, bytes); };
    family.load = [](const fs::path& folder) { return load_gemma2(folder); };
    family.run = [](const Gemma2& model) {
      torch::manual_seed(3);
      const torch::Tensor ids = torch::randint(model->config().vocab_size, {1, 16}, torch::kLong);
      return model.ptr()->forward(ids, torch::ones_like(ids));
    };
    expect_the_same_again(name, parameters, shard_bytes, family);
  };
  Gemma2Config tiny;
  tiny.vocab_size = 40, tiny.hidden_size = 24, tiny.intermediate_size = 32, tiny.num_hidden_layers = 2;
  tiny.num_attention_heads = 4, tiny.num_key_value_heads = 2, tiny.head_dim = 8;
  attempt("gemma2_tiny", tiny, size_of(tiny, 1).parameters, 8000);
  if (is_real("gemma2_2b")) attempt("gemma2_2b", Gemma2Config(), 2614341888, 2e9);
}

}  // namespace
}  // namespace mhla
