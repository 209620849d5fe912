// mhla convert for models that generate images, as a user runs it: names in and out, MHLA instead of softmax and linear
// attention, another size. Folders are then sampled from.
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <filesystem>

#include "mhla/io/codecs/image.h"
#include "mhla/io/json.h"
#include "tests/cli/dit_fixture.h"
#include "tests/cli/expect.h"
#include "tests/cli/train_fixture.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

std::map<std::string, Tensor> tensors_in(const std::string& path) {
  const Safetensors file = Safetensors::read(path);
  std::map<std::string, Tensor> found;
  for (std::size_t i = 0; i < file.size(); ++i) found[std::string(file.entry(i).name)] = contiguous(file.view(i));
  return found;
}

void expect_same_tensors(const std::string& a, const std::string& b) {
  const auto left = tensors_in(a), right = tensors_in(b);
  EXPECT_EQ(left.size(), right.size());
  for (const auto& [name, value] : left) {
    const auto other = right.find(name);
    ASSERT_NE(other, right.end()) << name;
    EXPECT_TRUE(value.same_bits(other->second)) << name;
  }
}

class ConvertGenerator : public testing::Test {
 protected:
  void SetUp() override {
    if (!MHLA_TORCH_BUILT) GTEST_SKIP() << "built without LibTorch";
  }
  ProgramRun expect_done(const std::vector<std::string>& arguments) {
    ProgramRun run = run_program(arguments);
    EXPECT_EQ(run.code, 0) << run.out << run.err;
    return run;
  }
  [[nodiscard]] std::string at(const std::string& name) const { return folder.path(name); }
  [[nodiscard]] JsonValue config_in(const std::string& name) const { return read_json(at(name) + "/config.json"); }
  // Pixels of the first images of a folder that is sampled with a few steps.
  std::vector<double> sampled(const std::string& model, const std::vector<std::string>& more = {}) {
    const std::string out = at("samples_" + fs::path(model).filename().string());
    expect_done(
        joined({"sample", "--model", model, "--out", out, "--steps", "3", "--threads", "1", "--overwrite"}, more));
    std::vector<double> pixels;
    for (const fs::directory_entry& entry : fs::directory_iterator(out + "/images")) {
      const Image image = read_image(entry.path());
      pixels.insert(pixels.end(), image.pixels.begin(), image.pixels.end());
    }
    return pixels;
  }
  TemporaryFolder folder;
};

TEST_F(ConvertGenerator, OriginalNamesInAndOut) {
  SmallDit o;
  o.channels = 4;
  write_dit_weights(at("dit.safetensors"), o);
  write_file(at("start.json"), dit_config_text(o));
  const ProgramRun made = expect_done({"convert", at("dit.safetensors"), at("dit"), "--model", at("start.json")});
  EXPECT_TRUE(has(made.out, "dit_d32 with softmax attention")) << made.out;
  EXPECT_EQ(config_in("dit").at("dim").as_int(), 16);
  const JsonValue generation = read_json(at("dit/generation.json"));
  EXPECT_EQ(generation.at("process").as_string(), "noise");
  EXPECT_EQ(generation.at("space").as_string(), "latents");
  expect_done({"convert", at("dit"), at("back.safetensors"), "--to", "published"});
  expect_same_tensors(at("dit.safetensors"), at("back.safetensors"));
  // A name is enough where the sizes in the file are those of the model, and wrong where they are not.
  expect_refused({"convert", at("dit.safetensors"), at("x"), "--model", "dit_d33"}, {"dit_d33"});
  EXPECT_FALSE(fs::exists(at("x")));
}

TEST_F(ConvertGenerator, NamesOfDiffusersInAndOut) {
  fs::create_directory(at("theirs"));
  write_recorded("image/dit_model.safetensors", "dit_diffusers", at("theirs/diffusion_pytorch_model.safetensors"));
  write_file(at("theirs/config.json"),
             R"({"_class_name": "DiTTransformer2DModel", "_diffusers_version": "0.42.1", "num_attention_heads": 2,
                 "attention_head_dim": 12, "in_channels": 4, "out_channels": 8, "num_layers": 1, "sample_size": 8,
                 "patch_size": 2, "num_embeds_ada_norm": 4, "norm_eps": 1e-5, "dropout": 0.0})");
  expect_done({"convert", at("theirs"), at("ours")});
  EXPECT_EQ(config_in("ours").at("freq_shift").as_int(), 1);
  EXPECT_EQ(config_in("ours").at("heads").as_int(), 2);
  expect_done({"convert", at("ours"), at("back"), "--to", "diffusers"});
  expect_same_tensors(at("theirs/diffusion_pytorch_model.safetensors"), at("back/diffusion_pytorch_model.safetensors"));
  const JsonValue config = config_in("back");
  EXPECT_EQ(config.at("attention_head_dim").as_int(), 12);
  EXPECT_EQ(config.at("_class_name").as_string(), "DiTTransformer2DModel");
  expect_done({"convert", at("back"), at("again")});
  expect_same_tensors(at("ours/model.safetensors"), at("again/model.safetensors"));
  // A model with other frequencies is another function under the names of the original code.
  expect_refused({"convert", at("ours"), at("o.safetensors"), "--to", "published"}, {"freq_shift is 1, expected 0"});
  // In shards.
  const auto all = tensors_in(at("theirs/diffusion_pytorch_model.safetensors"));
  fs::create_directory(at("shards"));
  fs::copy_file(at("theirs/config.json"), at("shards/config.json"));
  std::vector<NamedView> parts[2];
  std::string map;
  for (const auto& [name, value] : all) {
    const std::size_t part = map.size() % 2;
    parts[part].push_back({name, value.view()});
    map += (map.empty() ? "\"" : ", \"") + name + "\": \"model-" + std::to_string(part) + ".safetensors\"";
  }
  for (std::size_t i = 0; i < 2; ++i)
    write_safetensors(at("shards/model-" + std::to_string(i) + ".safetensors"), parts[i]);
  write_file(at("shards/model.safetensors.index.json"), "{\"metadata\": {}, \"weight_map\": {" + map + "}}");
  expect_done({"convert", at("shards"), at("whole")});
  expect_same_tensors(at("ours/model.safetensors"), at("whole/model.safetensors"));
}

TEST_F(ConvertGenerator, SoftmaxToMhlaAndLinearToMhlaWithTheSameFunction) {
  write_dit_folder(at("dit"));
  write_file(at("dit/classes.json"), R"(["a", "b", "c"])");
  write_file(at("dit/generation.json"), R"({"schedule": "squaredcos_cap_v2"})");
  expect_done({"convert", at("dit"), at("mhla"), "--attention", "mhla", "--blocks", "2x2", "--variant", "cpe"});
  EXPECT_EQ(config_in("mhla").at("attention").as_string(), "mhla");
  EXPECT_EQ(config_in("mhla").at("lepe").as_int(), 3);
  EXPECT_EQ(config_in("mhla").at("mix_init").as_string(), "linear");
  EXPECT_EQ(file_text(at("mhla/classes.json")), file_text(at("dit/classes.json")));
  EXPECT_EQ(file_text(at("mhla/generation.json")), file_text(at("dit/generation.json")));
  const auto softmax = tensors_in(at("dit/model.safetensors")), mhla = tensors_in(at("mhla/model.safetensors"));
  EXPECT_TRUE(softmax.at("blocks.1.attn.qkv.weight").same_bits(mhla.at("blocks.1.attn.qkv.weight")));
  EXPECT_EQ(mhla.at("blocks.0.attn.mix").shape(), (std::vector<std::int64_t>{4, 4}));
  (void)sampled(at("mhla"));

  expect_done({"convert", at("dit"), at("linear"), "--attention", "linear"});
  expect_done({"convert", at("linear"), at("uniform"), "--attention", "mhla", "--blocks", "2"});
  EXPECT_EQ(config_in("uniform").at("mix_init").as_string(), "uniform");
  expect_done({"convert", at("linear"), at("local"), "--attention", "mhla", "--blocks", "4", "--mix-init", "exp"});
  const std::vector<double> linear = sampled(at("linear")), uniform = sampled(at("uniform")),
                            local = sampled(at("local"));
  ASSERT_EQ(linear.size(), uniform.size());
  double same = 0, other = 0;
  for (std::size_t i = 0; i < linear.size(); ++i) {
    same = std::max(same, std::abs(linear[i] - uniform[i]));
    other = std::max(other, std::abs(linear[i] - local[i]));
  }
  EXPECT_LE(same, 1.0);  // a level of rounding
  EXPECT_GT(other, 1.0);
  expect_refused({"convert", at("dit"), at("x"), "--mix-init", "uniform"}, {"--mix-init", "the attention stays"});
  expect_refused({"convert", at("dit"), at("x"), "--blocks", "2"}, {"--blocks", "softmax attention"});
  expect_refused({"convert", at("uniform"), at("x"), "--attention", "gla"}, {"from mhla to gla"});
}

TEST_F(ConvertGenerator, AnotherSizeAndOtherTypes) {
  write_dit_folder(at("dit"));
  expect_done({"convert", at("dit"), at("mhla"), "--attention", "mhla", "--blocks", "2"});
  expect_done({"convert", at("mhla"), at("large"), "--image", "16x12", "--blocks", "4x3", "--dtype", "bf16"});
  const JsonValue config = config_in("large");
  EXPECT_EQ(write_json(config.at("image")), "[16, 12]");
  EXPECT_EQ(write_json(config.at("blocks")), "[4, 3]");
  EXPECT_EQ(write_json(config.at("pos_base")), "[4, 4]");
  const auto tensors = tensors_in(at("large/model.safetensors"));
  EXPECT_EQ(tensors.at("blocks.0.attn.mix").shape(), (std::vector<std::int64_t>{12, 12}));
  EXPECT_EQ(tensors.at("pos_embed").shape(), (std::vector<std::int64_t>{1, 48, 16}));
  EXPECT_EQ(tensors.at("pos_embed").dtype(), DType::kF32);
  EXPECT_EQ(tensors.at("blocks.0.mlp.fc1.weight").dtype(), DType::kBF16);
  EXPECT_EQ(sampled(at("large")).size(), 3u * 16 * 12);
  expect_refused({"convert", at("mhla"), at("x"), "--image", "15x16"}, {"image has 15 rows, expected a multiple"});
  // Weights of a run.
  fs::copy_file(at("dit/model.safetensors"), at("dit/ema.safetensors"));
  expect_done({"convert", at("dit"), at("ema"), "--weights", "ema"});
  expect_same_tensors(at("ema/model.safetensors"), at("dit/model.safetensors"));
  expect_refused({"convert", at("dit"), at("x"), "--weights", "best"}, {"has no best.safetensors"});
  for (const std::vector<std::string>& one : {std::vector<std::string>{"--model", "dit_d32"}, {"--classes", "3"}})
    expect_refused(joined({"convert", at("dit"), at("x")}, one), {"are for files, but " + at("dit") + " has a config"});
  write_kl_folder(at("vae"));
  expect_refused({"convert", at("vae"), at("x")}, {"vae/config.json is of AutoencoderKL, expected DiTTransformer2D"});
  // A file does not say how many heads there are: the named model must be of its size.
  expect_done({"convert", at("dit"), at("p.safetensors"), "--to", "published"});
  expect_refused({"convert", at("p.safetensors"), at("x"), "--model", "dit_t32"},
                 {"16 channels, expected a multiple of the 3 heads of dit_t32"});
  expect_refused({"convert", at("p.safetensors"), at("x"), "--model", "dit_xl_2"},
                 {"has 2 blocks of 16 channels and patches of 2, expected 28 of 1152 and 2 for --model dit_xl_2"});
}

TEST_F(ConvertGenerator, SanaOfLinearAttentionToMhla) {
  fs::create_directory(at("sana"));
  write_recorded("image/sana.safetensors", "sana_diffusers", at("sana/diffusion_pytorch_model.safetensors"));
  write_file(at("sana/config.json"), kSanaConfig);
  const ProgramRun made = expect_done({"convert", at("sana"), at("mhla"), "--attention", "mhla", "--blocks", "2x3"});
  EXPECT_TRUE(has(made.out, "with mhla attention")) << made.out;
  EXPECT_EQ(config_in("mhla").at("mix_init").as_string(), "uniform");
  EXPECT_EQ(read_json(at("mhla/generation.json")).at("process").as_string(), "flow");
  expect_done({"convert", at("sana"), at("ours")});
  expect_done({"convert", at("ours"), at("back"), "--to", "diffusers"});
  expect_same_tensors(at("sana/diffusion_pytorch_model.safetensors"), at("back/diffusion_pytorch_model.safetensors"));
  expect_refused({"convert", at("sana"), at("x"), "--image", "64"}, {"SANA takes samples of any size"});
}

// A model replaces another one as a whole: never weights of one with the config.json of the other.
TEST_F(ConvertGenerator, ReplacesAModelAsAWhole) {
  SmallDit small, large;
  large.dim = 32;
  write_dit_folder(at("small"), small), write_dit_folder(at("large"), large);
  write_file(at("small/classes.json"), R"(["a", "b", "c"])");
  expect_done({"convert", at("small"), at("out")});
  write_file(at("out/mine.txt"), "mine");
  expect_done({"convert", at("large"), at("out")});
  EXPECT_EQ(config_in("out").at("dim").as_int(), 32);
  EXPECT_FALSE(fs::exists(at("out/classes.json")));  // of the model before
  EXPECT_EQ(file_text(at("out/mine.txt")), "mine");
  // While weights are written the old model is whole; then a full disk leaves it.
  const std::string before = file_text(at("out/model.safetensors"));
  {
    const FullDisk disk(4096);
    const ProgramRun run = run_program({"convert", at("small"), at("out")});
    EXPECT_EQ(run.code, 1) << run.err;
    EXPECT_EQ(lines_of(run.err).size(), 1u) << run.err;
  }
  EXPECT_EQ(file_text(at("out/model.safetensors")), before);
  EXPECT_EQ(config_in("out").at("dim").as_int(), 32);
  for (const fs::directory_entry& entry : fs::directory_iterator(at("out")))
    EXPECT_NE(entry.path().filename().string()[0], '.') << entry.path();
}

}  // namespace
}  // namespace mhla
