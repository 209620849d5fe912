// mhla sample, as a user runs it, with small models of random weights.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <map>

#include "mhla/core/error.h"
#include "mhla/io/codecs/image.h"
#include "mhla/io/codecs/npz.h"
#include "mhla/io/codecs/png_text.h"
#include "mhla/io/json.h"
#include "tests/cli/dit_fixture.h"
#include "tests/cli/expect.h"
#include "tests/cli/idx_fixture.h"
#include "tests/cli/train_fixture.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

// Names below a folder with their bytes.
std::map<std::string, std::string> files_in(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) files[fs::relative(entry.path(), folder).string()] = file_text(entry.path().string());
  return files;
}

ImageText text_in(const std::string& path) {
  const std::vector<std::byte> bytes = read_file(path);
  return decode_png_text(bytes, path);
}

std::string text_called(const ImageText& text, const std::string& key) {
  for (const auto& [name, value] : text)
    if (name == key) return value;
  return "none";
}

class CliSample : public testing::Test {
 protected:
  void SetUp() override {
    if (!MHLA_TORCH_BUILT) GTEST_SKIP() << "built without LibTorch";
    write_dit_folder(folder.path("dit"));
    write_file(folder.path("dit/classes.json"), R"(["Coat", "Sneaker", "T-shirt/top"])");
  }
  [[nodiscard]] std::vector<std::string> words(const std::string& out,
                                               const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = joined({"sample", "--model", folder.path("dit"), "--out", folder.path(out)}, more);
    for (const char* flag : {"--steps", "--threads"})
      if (std::find(more.begin(), more.end(), flag) == more.end())
        all = joined(all, {flag, flag == std::string("--steps") ? "4" : "1"});
    return all;
  }
  ProgramRun expect_done(const std::vector<std::string>& arguments) {
    ProgramRun run = run_program(arguments);
    EXPECT_EQ(run.code, 0) << run.err;
    return run;
  }
  void expect_refused_sample(const std::vector<std::string>& more, const std::vector<std::string>& parts) {
    expect_refused(words("refused", more), parts);
    EXPECT_FALSE(fs::exists(folder.path("refused")));
  }
  TemporaryFolder folder;
};

TEST_F(CliSample, WritesImagesSheetAndArrays) {
  const ProgramRun run = expect_done(words("out", {"--per-class", "2", "--classes", "Sneaker,0", "--guidance", "2",
                                                   "--seed", "9", "--sheet", "2x2", "--npz", "--preview", "2"}));
  for (const char* part :
       {"dit_d32 with softmax attention, ddim in 4 steps, guidance 2", "images", "4 in", "sheet", "samples.npz"})
    EXPECT_TRUE(has(run.out, part)) << part << " in " << run.out;
  const std::string images = folder.path("out/images/");
  const Image image = read_image(images + "000002-class1.png");
  EXPECT_EQ(image.height, 8);
  EXPECT_EQ(image.channels, 1);  // as the model has them
  const ImageText text = text_in(images + "000002-class1.png");
  EXPECT_EQ(text_called(text, "class_name"), "Sneaker");
  EXPECT_EQ(text_called(text, "number"), "2");
  EXPECT_EQ(text_called(text, "seed"), "9");
  EXPECT_EQ(text_called(text, "sampler"), "ddim");
  EXPECT_EQ(text_called(text, "guidance"), "2.0");
  EXPECT_EQ(text_called(text, "steps"), "4");
  EXPECT_EQ(text_called(text, "size"), "8x8");
  EXPECT_EQ(text_called(text, "weights"), "dit/model.safetensors");
  const Image sheet = read_image(folder.path("out/sheet.png"));
  EXPECT_EQ(sheet.height, 2 * 10 + 2);
  EXPECT_EQ(sheet.width, 2 * 10 + 2);
  EXPECT_TRUE(fs::exists(folder.path("out/previews/000003-step-0002.png")));

  const Npz arrays = Npz::read(folder.path("out/samples.npz"));
  const NpyArray all = arrays.array("arr_0"), labels = arrays.array("arr_1");
  EXPECT_EQ(shape_text(all.view), "[4, 8, 8, 3]");
  EXPECT_EQ(all.view.dtype, DType::kU8);
  const auto* label = static_cast<const std::int64_t*>(labels.view.data);
  EXPECT_EQ(std::vector<std::int64_t>(label, label + 4), (std::vector<std::int64_t>{1, 0, 1, 0}));
  const auto* pixel = static_cast<const std::uint8_t*>(all.view.data) + 2 * 8 * 8 * 3;
  for (std::size_t i = 0; i < image.pixels.size(); ++i)
    for (std::size_t c = 0; c < 3; ++c) ASSERT_EQ(pixel[3 * i + c], image.pixels[i]);
  const JsonValue settings = read_json(folder.path("out/sample.json"));
  EXPECT_EQ(settings.at("guidance").as_double(), 2.0);
  EXPECT_EQ(settings.at("per_class").as_int(), 2);
}

TEST_F(CliSample, TheBatchChangesNothing) {
  const std::vector<std::string> more{"--per-class", "2", "--sampler", "ancestral", "--guidance", "1.5", "--npz"};
  expect_done(words("one", joined(more, {"--batch", "1"})));
  expect_done(words("three", joined(more, {"--batch", "3", "--threads", "2"})));
  const auto one = files_in(folder.path("one"));
  EXPECT_EQ(one.size(), 6u + 3u);  // and .lock, sample.json, samples.npz
  EXPECT_TRUE(one == files_in(folder.path("three")));
  EXPECT_NE(one.at("images/000000-class0.png"), one.at("images/000003-class0.png"));
  expect_done(words("seed", joined(more, {"--seed", "1"})));
  EXPECT_NE(read_image(folder.path("one/images/000000-class0.png")),
            read_image(folder.path("seed/images/000000-class0.png")));
}

// Close to f32, and as independent of the batch.
TEST_F(CliSample, InBf16WhereTheCpuHasIt) {
  const std::vector<std::string> more{"--per-class", "2", "--guidance", "1.5", "--precision"};
  if (!cpu_has_bf16()) {
    expect_refused_sample(joined(more, {"bf16"}),
                          {"precision is bf16, expected f32 on cpu: this CPU has no AVX-512 BF16"});
    return;
  }
  expect_done(words("wide", joined(more, {"f32"})));
  expect_done(words("narrow", joined(more, {"bf16", "--batch", "1"})));
  expect_done(words("batch", joined(more, {"bf16", "--batch", "5", "--threads", "2"})));
  EXPECT_TRUE(files_in(folder.path("narrow")) == files_in(folder.path("batch")));
  const std::string name = "/images/000002-class2.png";
  EXPECT_EQ(text_called(text_in(folder.path("narrow") + name), "precision"), "bf16");
  const Image wide = read_image(folder.path("wide") + name), narrow = read_image(folder.path("narrow") + name);
  double sum = 0;
  for (std::size_t i = 0; i < wide.pixels.size(); ++i) sum += std::abs(int{wide.pixels[i]} - int{narrow.pixels[i]});
  EXPECT_GT(sum, 0);
  EXPECT_LT(sum / static_cast<double>(wide.pixels.size()), 4.0);
}

TEST_F(CliSample, GoesOnAfterAKill) {
  const std::vector<std::string> more{"--per-class", "4", "--steps", "40", "--sheet", "3x4", "--npz"};
  expect_done(words("whole", more));
  const auto whole = files_in(folder.path("whole"));
  for (const int signal : {SIGKILL, SIGINT}) {
    const std::string name = signal == SIGKILL ? "killed" : "stopped";
    const ProgramRun cut = run_program(words(name, joined(more, {"--batch", "2"})),
                                       {folder.path(name + "/images/000002-class2.png"), signal});
    EXPECT_NE(cut.code, 0);
    if (signal == SIGINT) {
      EXPECT_EQ(cut.code, 1);
      for (const char* part : {"stopped by SIGINT", "of 12 images are in", "--resume"})
        EXPECT_TRUE(has(cut.err, part)) << cut.err;
    }
    EXPECT_FALSE(fs::exists(folder.path(name + "/samples.npz")));
    const auto before = fs::last_write_time(folder.path(name + "/images/000000-class0.png"));
    const ProgramRun rest = expect_done(words(name, joined(more, {"--resume", "--batch", "5"})));
    EXPECT_TRUE(has(rest.out, " were there")) << rest.out;
    EXPECT_EQ(fs::last_write_time(folder.path(name + "/images/000000-class0.png")), before);
    EXPECT_TRUE(files_in(folder.path(name)) == whole);
  }
}

// As a power cut may leave them: images are written without waiting for the disk.
TEST_F(CliSample, ImagesThatAreNotWholeAreMadeAgain) {
  const std::vector<std::string> more{"--per-class", "2", "--npz", "--sheet", "2x3"};
  expect_done(words("out", more));
  const auto whole = files_in(folder.path("out"));
  const std::string half = folder.path("out/images/000002-class2.png"),
                    damaged = folder.path("out/images/000001-class1.png");
  write_file(folder.path("out/images/000000-class0.png"), "");
  write_file(half, file_text(half).substr(0, 100));
  std::string text = file_text(damaged);
  text[text.size() - 30] ^= 0x20;  // pixels; the end of the file is as it should be
  write_file(damaged, text);
  const ProgramRun again = expect_done(words("out", joined(more, {"--resume"})));
  EXPECT_TRUE(has(again.out, "3 were there")) << again.out;
  EXPECT_TRUE(files_in(folder.path("out")) == whole);
}

TEST_F(CliSample, ResumesOnlyTheSameSettings) {
  expect_done(words("out"));
  const auto before = files_in(folder.path("out"));
  expect_refused(words("out"), {folder.path("out") + " has images already", "--resume", "--overwrite"});
  expect_refused(words("out", {"--resume", "--guidance", "3"}), {"guidance 1.0, now it is 3.0", "--overwrite"});
  expect_refused(words("out", {"--resume", "--classes", "1"}), {"classes [0, 1, 2], now it is [1]"});
  expect_refused(words("out", {"--resume", "--overwrite"}), {"--resume and --overwrite"});
  SmallDit other;
  other.deviation = 0.1;
  const std::string weights = folder.path("dit/model.safetensors"), kept = file_text(weights);
  write_dit_weights(weights, other);
  expect_refused(words("out", {"--resume"}), {weights + " has changed since " + folder.path("out") + " was begun"});
  write_file(weights, kept);
  const std::string config = folder.path("dit/config.json"), text = file_text(config);
  write_file(config, text + " ");
  expect_refused(words("out", {"--resume"}), {config + " has changed since " + folder.path("out") + " was begun"});
  write_file(config, text);
  EXPECT_TRUE(files_in(folder.path("out")) == before);
  // More of each class: those that are there stay.
  expect_done(words("out", {"--resume", "--per-class", "2"}));
  const auto more = files_in(folder.path("out"));
  EXPECT_EQ(more.at("images/000001-class1.png"), before.at("images/000001-class1.png"));
  EXPECT_EQ(more.count("images/000005-class2.png"), 1u);
  expect_refused(words("out", {"--resume"}), {"per_class 2, now it is 1"});
  // Other settings instead; nothing of the old ones stays.
  write_file(folder.path("out/mine.txt"), "mine");
  expect_done(words("out", {"--overwrite", "--classes", "2"}));
  const auto after = files_in(folder.path("out"));
  EXPECT_EQ(after.count("images/000000-class2.png") + after.count("mine.txt"), 2u);
  EXPECT_EQ(after.count("images/000001-class1.png"), 0u);
  fs::create_directory(folder.path("other"));
  write_file(folder.path("other/letter.txt"), "dear");
  for (const char* flag : {"--resume", "--overwrite"})
    expect_refused(words("other", {flag}), {folder.path("other"), "has files but no sample.json"});
}

TEST_F(CliSample, MistakesAreNamed) {
  expect_refused_sample({"--classes", "Sneker"}, {"class 'Sneker' does not exist, nearest is 'Sneaker'"});
  expect_refused_sample({"--classes", ""}, {"a class has no name, expected numbers or names"});
  expect_refused_sample({"--classes", "0,7"}, {"class 7 does not exist, expected 0 to 2"});
  expect_refused_sample({"--size", "9x8"}, {"--size is 9x8, expected multiples of 2 (patch 2): 8 or 10 instead of 9"});
  expect_refused_sample({"--vae", folder.path()}, {"--vae is given, but dit_d32 generates pixels"});
  expect_refused_sample({"--sampler", "euler"}, {"sampler is 'euler', expected ancestral, ddim or dpm++"});
  expect_refused_sample({"--shift", "3"}, {"--shift is given", "flow matching"});
  expect_refused_sample({"--sampler", "dpm++", "--eta", "1"}, {"--eta is given for dpm++, expected it for ddim"});
  expect_refused_sample({"--guidance-channels", "4", "--guidance", "2"}, {"--guidance-channels is 4", "at most the 1"});
  expect_refused_sample({"--guidance-channels", "none"}, {"expected all or a number such as 3"});
  expect_refused_sample({"--guidance-interval", "5,1"}, {"interval is 5 to 1, expected the lower end first"});
  expect_refused_sample({"--guidance-interval", "5"}, {"--guidance-interval has 1 numbers, expected two"});
  expect_refused_sample({"--guidance", "-1"}, {"guidance: scale is -1, expected 0 or more"});
  expect_refused_sample({"--prompt", "a house"}, {"dit_d32 generates classes, expected --classes"});
  expect_refused_sample({"--negative", "Coat"}, {"--negative is given, but --guidance is 1"});
  expect_refused_sample({"--guidance-interval", "1,5"}, {"--guidance-interval is given, but --guidance is 1"});
  expect_refused_sample({"--guidance-channels", "1"}, {"--guidance-channels is given, but --guidance is 1"});
  expect_refused_sample({"--preview", "4"}, {"--preview is 4, expected less than the 4 steps"});
  expect_refused_sample({"--text-encoder", folder.path()}, {"--text-encoder is given, but dit_d32 generates classes"});
  expect_refused_sample({"--sheet", "9000x9"}, {"--sheet is 9000x9"});
  expect_refused_sample({"--weights", "ema"}, {"--weights is ema, but", "has no ema.safetensors"});
  expect_refused_sample({"--run", folder.path("dit")}, {"expected one of --run and --model"});
  expect_refused({"sample", "--run", folder.path("dit"), "--out", folder.path("x")}, {"train.json"});
  expect_refused({"sample", "--model", folder.path("none"), "--out", folder.path("x")}, {"which is not there"});
  write_file(folder.path("dit/generation.json"), R"({"learned_variance": false})");
  expect_refused_sample({}, {"generation.json", "learned_variance is false"});
  write_file(folder.path("dit/generation.json"), R"({"processes": "noise"})");
  expect_refused_sample({}, {"'processes' is unknown, nearest is 'process'"});
  fs::remove(folder.path("dit/generation.json"));
  write_file(folder.path("dit/config.json"), R"({"family": "lm", "model": "mhla_10m"})");
  expect_refused_sample({}, {"config.json: is of lm, expected a model that generates images"});
  write_file(folder.path("dit/config.json"), R"({"_class_name": "DiTTransformer2DModel"})");
  expect_refused_sample({}, {"is of diffusers", "mhla convert"});
}

TEST_F(CliSample, NotANumberEndsTheRunAndLosesNothing) {
  expect_done(words("out"));
  const auto before = files_in(folder.path("out"));
  // The embedding of class 1 is NaN: images of class 0 are made, then it ends.
  const Safetensors file = Safetensors::read(folder.path("dit/model.safetensors"));
  std::deque<Tensor> kept;
  std::vector<NamedView> views;
  for (std::size_t i = 0; i < file.size(); ++i) {
    kept.push_back(contiguous(file.view(i)));
    if (file.entry(i).name == "y_embedder.embedding_table.weight") kept.back().set(16, std::nan(""));
    views.push_back({std::string(file.entry(i).name), kept.back().view()});
  }
  write_dit_folder(folder.path("bad"));
  write_safetensors(folder.path("bad/model.safetensors"), views);
  const ProgramRun run = run_program(
      {"sample", "--model", folder.path("bad"), "--out", folder.path("nan"), "--steps", "4", "--threads", "1"});
  EXPECT_EQ(run.code, 1);
  EXPECT_EQ(lines_of(run.err).size(), 1u) << run.err;
  EXPECT_TRUE(has(run.err, "sample 1 is NaN or infinite after step 0")) << run.err;
  EXPECT_EQ(read_image(folder.path("nan/images/000000-class0.png")).width, 8);
  EXPECT_TRUE(files_in(folder.path("out")) == before);
}

TEST_F(CliSample, HalfPrecisionWeightsAndAnotherSize) {
  SmallDit half;
  half.dtype = DType::kBF16, half.channels = 3;
  write_dit_folder(folder.path("half"), half);
  expect_done({"sample", "--model", folder.path("half"), "--out", folder.path("half_out"), "--size", "12x8", "--steps",
               "2", "--sampler", "dpm++", "--classes", "all", "--threads", "1"});
  const Image image = read_image(folder.path("half_out/images/000002-class2.png"));
  EXPECT_EQ(image.height, 12);
  EXPECT_EQ(image.width, 8);
  EXPECT_EQ(image.channels, 3);
}

TEST_F(CliSample, LatentsThroughTheAutoencoder) {
  SmallDit latent;
  latent.channels = 4;
  write_dit_folder(folder.path("dit"), latent);
  expect_refused_sample({}, {"dit_d32 generates latents, expected --vae DIR"});
  write_kl_folder(folder.path("vae"));
  const std::string vae = folder.path("vae");
  expect_refused_sample({"--vae", vae, "--size", "18x16"}, {"multiples of 4 (2 pixels of a latent times patch 2)"});
  expect_done(words("out", {"--vae", vae, "--sheet", "1x3"}));
  const Image image = read_image(folder.path("out/images/000000-class0.png"));
  EXPECT_EQ(image.height, 16);
  EXPECT_EQ(image.channels, 3);
  // The autoencoder of the training, and its scale.
  write_file(folder.path("dit/generation.json"),
             R"({"space": "latents", "latent_scale": 0.18215, "autoencoder": ")" + vae + "\"}");
  expect_done(words("own"));
  EXPECT_EQ(read_image(folder.path("own/images/000000-class0.png")), image);
  expect_done(words("tiles", {"--tile"}));  // smaller than a tile
  EXPECT_EQ(read_image(folder.path("tiles/images/000000-class0.png")), image);
  // Longer than a tile of 512 pixels: two of them, blended. Norms and attention see a tile instead of the image, which
  // changes pixels a little and nowhere much.
  expect_done(words("long", {"--size", "640x16"}));
  expect_done(words("long_tiles", {"--size", "640x16", "--tile"}));
  const Image whole = read_image(folder.path("long/images/000000-class0.png")),
              tiled = read_image(folder.path("long_tiles/images/000000-class0.png"));
  ASSERT_EQ(tiled.height, 640);
  ASSERT_EQ(tiled.width, 16);
  EXPECT_NE(tiled, whole);
  double sum = 0;
  int most = 0;
  for (std::size_t i = 0; i < whole.pixels.size(); ++i) {
    const int off = std::abs(int{whole.pixels[i]} - int{tiled.pixels[i]});
    sum += off, most = std::max(most, off);
  }
  EXPECT_LT(sum / static_cast<double>(whole.pixels.size()), 2.0);
  EXPECT_LT(most, 30);
  write_kl_folder(folder.path("other"), "0.5");
  expect_refused_sample({"--vae", folder.path("other")}, {"scales latents by 0.5, expected the 0.18215"});
  SmallDit wide = latent;
  wide.channels = 6;
  write_dit_folder(folder.path("dit"), wide);
  fs::remove(folder.path("dit/generation.json"));
  expect_refused_sample({"--vae", vae}, {vae + " has latents of 4 channels, expected the 6 of dit_d32"});
}

TEST_F(CliSample, FromARunThatIsFinishedOrNot) {
  fs::create_directory(folder.path("data"));
  write_idx(folder.path("data"), "train", 40), write_idx(folder.path("data"), "t10k", 10);
  const std::string run = folder.path("run");
  expect_done({"train",
               "diffusion",
               "--model",
               "dit_d32",
               "--data",
               "fashion-mnist:" + folder.path("data"),
               "--out",
               run,
               "--batch",
               "16",
               "--threads",
               "1",
               "--set",
               "dim=16",
               "--set",
               "heads=2",
               "--set",
               "depth=1",
               "--process",
               "flow",
               "--checkpoint-every",
               "2",
               "--sample-every",
               "0",
               "--max-steps",
               "4",
               "--eval-times",
               "2",
               "--shift",
               "2"});
  const auto made = [&](const std::string& out, const std::vector<std::string>& more = {}) {
    return joined(
        {"sample", "--run", run, "--out", folder.path(out), "--steps", "2", "--threads", "1", "--classes", "Bag"},
        more);
  };
  const ProgramRun averaged = expect_done(made("ema", {"--guidance", "2"}));
  EXPECT_TRUE(has(averaged.out, "dit_d32 with mhla attention, dpm++ in 2 steps, guidance 2")) << averaged.out;
  const ImageText text = text_in(folder.path("ema/images/000000-class8.png"));
  EXPECT_EQ(text_called(text, "weights"), "run/ema.safetensors");
  EXPECT_EQ(text_called(text, "shift"), "2.0");
  EXPECT_EQ(text_called(text, "class_name"), "Bag");
  EXPECT_EQ(read_image(folder.path("ema/images/000000-class8.png")).height, 32);
  expect_done(made("model", {"--weights", "model"}));
  EXPECT_EQ(text_called(text_in(folder.path("model/images/000000-class8.png")), "weights"), "run/model.safetensors");
  for (const char* name : {"/model.safetensors", "/ema.safetensors"}) fs::remove(run + name);
  const ProgramRun early = expect_done(made("early"));
  EXPECT_TRUE(has(early.err, "the run is not at its end")) << early.err;
  expect_refused({"sample", "--run", folder.path("data"), "--out", folder.path("x")}, {"train.json"});
}

// SANA as diffusers publishes it: transformer/, vae/, text_encoder/ and tokenizer/ in one folder.
void write_sana_pipeline(const std::string& folder) {
  for (const char* part : {"transformer", "vae", "text_encoder"}) fs::create_directories(folder + "/" + part);
  write_recorded("image/sana.safetensors", "sana_diffusers", folder + "/transformer/model.safetensors");
  write_file(folder + "/transformer/config.json", kSanaConfig);
  write_recorded("image/vae_dc.safetensors", "dc_sana", folder + "/vae/model.safetensors");
  write_file(folder + "/vae/config.json",
             R"({"_class_name": "AutoencoderDC", "latent_channels": 4, "attention_head_dim": 4,
                 "encoder_block_types": ["ResBlock", "ResBlock", "EfficientViTBlock"],
                 "decoder_block_types": ["ResBlock", "ResBlock", "EfficientViTBlock"],
                 "encoder_block_out_channels": [8, 8, 16], "decoder_block_out_channels": [8, 8, 16],
                 "encoder_layers_per_block": [1, 1, 1], "decoder_layers_per_block": [1, 1, 2],
                 "encoder_qkv_multiscales": [[], [], [5]], "decoder_qkv_multiscales": [[], [], [5]],
                 "upsample_block_type": "interpolate", "downsample_block_type": "Conv", "scaling_factor": 0.41407})");
  Random random(3);
  std::deque<Tensor> kept;
  std::vector<NamedView> views;
  const auto add = [&](const std::string& name, std::vector<std::int64_t> shape) {
    kept.emplace_back(DType::kF32, std::move(shape));
    kept.back().normal(random, 0.5);
    views.push_back({name, kept.back().view()});
  };
  add("embed_tokens.weight", {300, 10}), add("norm.weight", {10});
  for (const char* norm : {"input", "post_attention"}) add(str("layers.0.", norm, "_layernorm.weight"), {10});
  for (const char* norm : {"pre", "post"}) add(str("layers.0.", norm, "_feedforward_layernorm.weight"), {10});
  add("layers.0.self_attn.q_proj.weight", {8, 10}), add("layers.0.self_attn.k_proj.weight", {4, 10});
  add("layers.0.self_attn.v_proj.weight", {4, 10}), add("layers.0.self_attn.o_proj.weight", {10, 8});
  add("layers.0.mlp.gate_proj.weight", {12, 10}), add("layers.0.mlp.up_proj.weight", {12, 10});
  add("layers.0.mlp.down_proj.weight", {10, 12});
  write_safetensors(folder + "/text_encoder/model.safetensors", views);
  write_file(folder + "/text_encoder/config.json",
             R"({"model_type": "gemma2", "vocab_size": 300, "hidden_size": 10, "intermediate_size": 12,
                 "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4,
                 "query_pre_attn_scalar": 4, "hidden_activation": "gelu_pytorch_tanh"})");
  write_file(folder + "/text.txt", "a house and a tree");
  const ProgramRun made = run_program({"data", "tokenize", "--data", folder + "/text.txt", "--tokenizer", "bytes",
                                       "--out", folder + "/tokenizer", "--valid", "0"});
  ASSERT_EQ(made.code, 0) << made.err;
}

TEST_F(CliSample, PromptsThroughTheTextEncoder) {
  const std::string sana = folder.path("sana");
  ASSERT_NO_FATAL_FAILURE(write_sana_pipeline(sana));
  write_file(folder.path("prompts.txt"), "a house\na tree\n");
  const auto made = [&](const std::string& out, const std::vector<std::string>& more) {
    return joined(
        {"sample", "--model", sana, "--out", folder.path(out), "--size", "24x16", "--steps", "3", "--threads", "1"},
        more);
  };
  const std::vector<std::string> prompts{"--prompts", folder.path("prompts.txt")};
  expect_done(made("out", joined(prompts, {"--per-prompt", "2", "--guidance", "3", "--sheet", "2x2"})));
  const Image house = read_image(folder.path("out/images/000000.png")),
              tree = read_image(folder.path("out/images/000001.png"));
  EXPECT_EQ(house.height, 24);
  EXPECT_EQ(house.width, 16);
  EXPECT_EQ(text_called(text_in(folder.path("out/images/000003.png")), "prompt"), "a tree");
  EXPECT_EQ(text_called(text_in(folder.path("out/images/000003.png")), "shift"), "3.0");
  EXPECT_NE(house, tree);
  expect_done(made("batch", joined(prompts, {"--per-prompt", "2", "--guidance", "3", "--batch", "3"})));
  EXPECT_EQ(file_text(folder.path("out/images/000001.png")), file_text(folder.path("batch/images/000001.png")));
  // Other weights than those of the images that are there, in any part of the pipeline.
  for (const char* part : {"transformer", "vae", "text_encoder"}) {
    const std::string file = sana + "/" + part + "/model.safetensors", kept = file_text(file);
    std::string changed = kept;
    changed.back() = static_cast<char>(changed.back() ^ 1);
    write_file(file, changed);
    expect_refused(made("batch", joined(prompts, {"--per-prompt", "2", "--guidance", "3", "--resume"})),
                   {sana + "/" + part, " has changed since " + folder.path("batch") + " was begun"});
    write_file(file, kept);
  }
  const std::string words = sana + "/tokenizer/tokenizer.json", vocabulary = file_text(words);
  write_file(words, vocabulary + " ");
  expect_refused(made("batch", joined(prompts, {"--per-prompt", "2", "--guidance", "3", "--resume"})),
                 {sana + "/tokenizer has changed since "});
  write_file(words, vocabulary);
  expect_done(made("negative", joined(prompts, {"--guidance", "3", "--negative", "a tree", "--sampler", "euler"})));
  const std::string long_one(310, 'x');
  expect_refused(made("x", {"--prompt", long_one}),
                 {"'" + long_one.substr(0, 40) + "...' is 12 tokens too long for the model, which sees 300"});
  expect_refused(made("x", {"--prompt", "a house", "--guidance", "3", "--negative", long_one}), {" tokens too long"});
  expect_refused(made("x", {}), {"no prompt is given, expected --prompts FILE"});
  expect_refused(made("x", {"--classes", "1"}), {"generates captions, expected --prompts"});
  expect_refused(made("x", joined(prompts, {"--sampler", "ddim"})), {"expected dpm++, unipc or euler"});
  expect_refused(joined({"sample", "--model", sana, "--out", folder.path("x"), "--size", "30"}, prompts),
                 {"expected multiples of 4 (4 pixels of a latent times patch 1): 28 or 32 instead of 30"});
  // Size and shift as the pipeline has them.
  fs::create_directory(sana + "/scheduler");
  write_file(sana + "/scheduler/scheduler_config.json",
             R"({"_class_name": "DPMSolverMultistepScheduler", "flow_shift": 6.0})");
  expect_done(
      joined({"sample", "--model", sana, "--out", folder.path("own"), "--steps", "1", "--threads", "1"}, prompts));
  EXPECT_EQ(text_called(text_in(folder.path("own/images/000000.png")), "shift"), "6.0");
  EXPECT_EQ(read_image(folder.path("own/images/000000.png")).width, 32 * 4);  // sample_size, times 4 of the autoencoder
  fs::remove_all(sana + "/text_encoder");
  expect_refused(made("x", prompts), {"--prompts needs --text-encoder DIR"});
}

}  // namespace
}  // namespace mhla
