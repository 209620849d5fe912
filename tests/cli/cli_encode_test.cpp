// `mhla data encode`: latents and captions on the disk, runs that are killed, and what is refused.
#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <filesystem>

#include "mhla/io/codecs/image.h"
#include "mhla/io/file.h"
#include "mhla/io/json.h"
#include "mhla/io/safetensors.h"
#include "tests/cli/expect.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

void write_text(const std::string& path, const std::string& text) { write_file(path, text); }

class CliEncode : public testing::Test {
 protected:
  void SetUp() override {
    if (!MHLA_TORCH_BUILT) GTEST_SKIP() << "built without LibTorch";
  }

  // The autoencoder of the recorded case, two pixels to a latent's side.
  std::string autoencoder() {
    const std::string place = folder.path("vae");
    if (fs::exists(place)) return place;
    fs::create_directory(place);
    const Safetensors golden = Safetensors::read(MHLA_SOURCE_DIR "/tests/golden/image/vae_kl.safetensors");
    std::vector<NamedView> tensors;
    const std::string head = "kl_small/param.";
    for (std::size_t i = 0; i < golden.size(); ++i) {
      const std::string name(golden.entry(i).name);
      if (name.rfind(head, 0) == 0) tensors.push_back({name.substr(head.size()), golden.view(i)});
    }
    write_safetensors(place + "/diffusion_pytorch_model.safetensors", tensors);
    JsonValue config = parse_json(golden.metadata().at("kl_small"), "case");
    write_text(place + "/config.json", write_json(config.set("_class_name", "AutoencoderKL")));
    return place;
  }

  // A Gemma-2 of two layers over bytes.
  std::string text_encoder() {
    const std::string place = folder.path("gemma");
    if (fs::exists(place)) return place;
    fs::create_directory(place);
    write_text(folder.path("words.txt"), "some words\n");
    EXPECT_EQ(run_program({"data", "tokenize", "--data", folder.path("words.txt"), "--tokenizer", "bytes", "--valid",
                           "0", "--out", folder.path("tokens")})
                  .code,
              0);
    fs::copy_file(folder.path("tokens/tokenizer.json"), place + "/tokenizer.json");
    write_text(place + "/config.json",
               R"({"model_type": "gemma2", "vocab_size": 257, "hidden_size": 8, "intermediate_size": 12,
                   "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4,
                   "query_pre_attn_scalar": 4, "sliding_window": 16})");
    std::vector<std::pair<std::string, std::vector<std::int64_t>>> shapes{{"embed_tokens", {257, 8}}, {"norm", {8}}};
    for (const char* layer : {"layers.0.", "layers.1."}) {
      for (const char* norm :
           {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"})
        shapes.push_back({std::string(layer) + norm, {8}});
      for (const auto& [name, shape] :
           std::vector<std::pair<std::string, std::vector<std::int64_t>>>{{"self_attn.q_proj", {8, 8}},
                                                                          {"self_attn.k_proj", {4, 8}},
                                                                          {"self_attn.v_proj", {4, 8}},
                                                                          {"self_attn.o_proj", {8, 8}},
                                                                          {"mlp.gate_proj", {12, 8}},
                                                                          {"mlp.up_proj", {12, 8}},
                                                                          {"mlp.down_proj", {8, 12}}})
        shapes.push_back({layer + name, shape});
    }
    std::vector<std::vector<float>> values;
    std::vector<NamedView> tensors;
    values.reserve(shapes.size());
    for (const auto& [name, shape] : shapes) {
      values.emplace_back(static_cast<std::size_t>(View(nullptr, DType::kF32, shape).numel()));
      for (std::size_t i = 0; i < values.back().size(); ++i)
        values.back()[i] = 0.3f * std::sin(static_cast<float>(7 * i + values.size()));
      tensors.push_back({name + ".weight", ConstView(values.back().data(), DType::kF32, shape)});
    }
    write_safetensors(place + "/model.safetensors", tensors);
    return place;
  }

  static void picture(const std::string& path, int height, int width, int step) {
    Image image;
    image.resize(height, width, 3);
    for (std::size_t i = 0; i < image.pixels.size(); ++i)
      image.pixels[i] = static_cast<std::uint8_t>((i * static_cast<std::size_t>(step) + i / 5) % 253);
    write_file(path, encode_png(image));
  }
  // Two classes of `each` images.
  std::string classes(int each, int height = 16, int width = 16) {
    const std::string place = folder.path("classes");
    for (const char* name : {"ant", "bee"}) {
      fs::create_directories(place + "/" + name);
      for (int i = 0; i < each; ++i)
        picture(place + "/" + name + "/" + std::to_string(10 + i) + ".png", height, width, i + 2 + name[0] % 5);
    }
    return place;
  }

  static std::vector<std::string> with(const std::vector<std::string>& more, const std::string& out) {
    std::vector<std::string> all{"data", "encode", "--out", out};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  ProgramRun encode(const std::vector<std::string>& more, const std::string& out = "out") {
    return run_program(with(more, folder.path(out)));
  }
  void refused(const std::vector<std::string>& more, const std::string& part, const std::string& out = "out") {
    const ProgramRun run = encode(more, out);
    EXPECT_EQ(run.code, 2) << run.err;
    EXPECT_EQ(lines_of(run.err).size(), 1u) << run.err;
    EXPECT_TRUE(has(run.err, part)) << run.err << "\n expected " << part;
  }
  void expect_same_files(const std::string& a, const std::string& b) {
    std::size_t files = 0;
    for (const auto& item : fs::directory_iterator(folder.path(a))) {
      const std::string name = item.path().filename().string();
      if (name == ".lock") continue;
      ++files;
      ASSERT_TRUE(fs::exists(folder.path(b + "/" + name))) << name;
      EXPECT_EQ(read_file(item.path()), read_file(folder.path(b + "/" + name))) << name;
    }
    EXPECT_GE(files, 2u);
  }
  TemporaryFolder folder;
};

TEST_F(CliEncode, LatentsOfClassesPlainAndFlipped) {
  const std::vector<std::string> words{"--data", classes(3),      "--vae", autoencoder(), "--flip", "--dtype",
                                       "f32",    "--shard-items", "4",     "--posterior", "mean"};
  const ProgramRun run = encode(words);
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_TRUE(has(run.out, "6 items of ")) << run.out;
  EXPECT_TRUE(has(run.out, "4 x 8 x 8 f32 of images of 16 x 16, plain and flipped, scale 0.18215")) << run.out;
  const Safetensors first = Safetensors::read(folder.path("out/shard-00000.safetensors")),
                    last = Safetensors::read(folder.path("out/shard-00001.safetensors"));
  EXPECT_EQ(first.view("latents").shape[0], 4);
  EXPECT_EQ(last.view("flipped").shape[0], 2);
  const auto* labels = data_as<std::int64_t>(first.view("labels"));
  EXPECT_EQ(std::vector<std::int64_t>(labels, labels + 4), (std::vector<std::int64_t>{0, 0, 0, 1}));
  const ProgramRun info = run_program({"data", "info", "--data", folder.path("out")});
  EXPECT_EQ(info.code, 0) << info.err;
  EXPECT_TRUE(has(info.out, "damaged   none")) << info.out;

  // The mirror image of every picture: what was flipped is plain.
  for (const char* name : {"ant", "bee"})
    for (const auto& item : fs::directory_iterator(folder.path("classes/") + name)) {
      Image image = read_image(item.path()), mirror = image;
      for (int y = 0; y < image.height; ++y)
        for (int x = 0; x < image.width; ++x)
          for (int c = 0; c < 3; ++c) mirror.row(y)[3 * x + c] = image.row(y)[3 * (image.width - 1 - x) + c];
      write_file(item.path(), encode_png(mirror));
    }
  ASSERT_EQ(encode(words, "mirrored").code, 0);
  const Safetensors other = Safetensors::read(folder.path("mirrored/shard-00000.safetensors"));
  const auto* a = data_as<float>(first.view("latents"));
  const auto* b = data_as<float>(other.view("flipped"));
  double difference = 0, itself = 0;
  for (std::int64_t i = 0; i < first.view("latents").numel(); ++i)
    difference = std::max(difference, static_cast<double>(std::abs(a[i] - b[i]))),
    itself = std::max(itself, static_cast<double>(std::abs(a[i] - data_as<float>(first.view("flipped"))[i])));
  EXPECT_LE(difference, 1e-5);
  EXPECT_GT(itself, 1e-2);
}

TEST_F(CliEncode, KilledAndRunAgainHasTheSameBytes) {
  const std::vector<std::string> words{"--data", classes(6), "--vae", autoencoder(),   "--seed", "3",
                                       "--flip", "--batch",  "2",     "--shard-items", "3"};
  ASSERT_EQ(encode(words, "whole").code, 0);
  const ProgramRun killed =
      run_program(with(words, folder.path("out")), {folder.path("out/shard-00001.safetensors"), SIGKILL});
  EXPECT_EQ(killed.code, -1);
  const ProgramRun info = run_program({"data", "info", "--data", folder.path("out")});
  EXPECT_EQ(info.code, 2);
  EXPECT_TRUE(has(info.err, "shards are there; run `mhla data encode` again")) << info.err;
  const ProgramRun again = encode(words);
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_TRUE(has(again.out, "of 4 shards are there already")) << again.out;
  expect_same_files("whole", "out");

  // A damaged shard is found, and made again by the same command.
  std::vector<std::byte> bytes = read_file(folder.path("out/shard-00002.safetensors"));
  bytes.back() ^= std::byte{1};
  write_file(folder.path("out/shard-00002.safetensors"), bytes);
  const ProgramRun damaged = run_program({"data", "info", "--data", folder.path("out")});
  EXPECT_EQ(damaged.code, 2);
  EXPECT_EQ(lines_of(damaged.err).size(), 1u) << damaged.err;
  EXPECT_TRUE(has(damaged.err, "shard-00002.safetensors: SHA-256 is ")) << damaged.err;
  EXPECT_TRUE(has(encode(words).out, "3 of 4 shards are there already"));
  expect_same_files("whole", "out");

  std::vector<std::string> other = words;
  other[5] = "4";  // --seed
  refused(other, "'seed' is 3, but now it would be 4");
  picture(folder.path("classes/bee/99.png"), 16, 16, 9);
  refused(words, "was made of other images, labels or captions");
}

TEST_F(CliEncode, CaptionsBesidePicturesAndInAFile) {
  const std::string place = folder.path("pictures");
  fs::create_directories(place + "/more");
  for (const char* name : {"a", "b", "more/c"}) picture(place + "/" + name + ".png", 20, 30, 3 + name[0] % 3);
  write_text(place + "/a.txt", "a cat\n"), write_text(place + "/b.txt", "two dogs"),
      write_text(place + "/more/c.txt", "a very long sentence about a house");
  const std::vector<std::string> words{"--data",           place,          "--vae",   autoencoder(),
                                       "--text-encoder",   text_encoder(), "--image", "16",
                                       "--caption-tokens", "12",           "--dtype", "f32"};
  const ProgramRun run = encode(words);
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_TRUE(has(run.out, "captions  12 tokens of 8 channels, f32")) << run.out;
  EXPECT_TRUE(has(run.err,
                  "1 of 3 captions do not fit in 12 tokens and lose their ends, 'a very long sentence about a "
                  "house' the most, 24 tokens: --caption-tokens keeps more"))
      << run.err;
  const Safetensors shard = Safetensors::read(folder.path("out/shard-00000.safetensors"));
  EXPECT_EQ(shard.view("captions").shape[0], 3);
  EXPECT_FALSE(shard.contains("labels"));
  const auto* mask = data_as<std::int64_t>(shard.view("captions_mask"));
  std::vector<std::int64_t> tokens(3);
  for (std::size_t i = 0; i < 36; ++i) tokens[i / 12] += mask[i];
  EXPECT_LT(tokens[0], tokens[1]);  // "a cat", "two dogs"
  EXPECT_EQ(tokens[2], 12);         // cut
  EXPECT_TRUE(fs::exists(folder.path("out/null.safetensors")));

  write_text(folder.path("captions.jsonl"), R"({"image": "a.png", "caption": "a cat"}
{"image": "more/c.png", "caption": "a very long sentence about a house"}
{"image": "b.png", "caption": "two dogs"}
)");
  std::vector<std::string> from_file = words;
  from_file.insert(from_file.end(), {"--captions", folder.path("captions.jsonl")});
  ASSERT_EQ(encode(from_file, "file").code, 0);
  expect_same_files("out", "file");

  // Without images.
  const std::vector<std::string> only{"--captions",       folder.path("captions.jsonl"),
                                      "--text-encoder",   text_encoder(),
                                      "--caption-tokens", "12",
                                      "--dtype",          "f32"};
  ASSERT_EQ(encode(only, "only").code, 0);
  EXPECT_FALSE(Safetensors::read(folder.path("only/shard-00000.safetensors")).contains("latents"));
  EXPECT_EQ(run_program({"data", "info", "--data", folder.path("only")}).code, 0);

  write_text(folder.path("captions.jsonl"), R"({"image": "z.png", "caption": "a cat"})");
  refused(from_file, "image 'z.png' is not in ", "new");
  write_text(folder.path("captions.jsonl"), "{\"image\": \"a.png\", \"caption\": \"x\"}\n{\"image\": \"a.png\"}\n");
  refused(from_file, "captions.jsonl: line 2: has no 'caption'", "new");
  write_text(folder.path("captions.jsonl"), "");
  refused(from_file, "has no captions", "new");
  fs::remove(place + "/b.txt");
  refused(words, "b.png: has no caption, expected b.txt beside it", "new");
}

TEST_F(CliEncode, CaptionsOfASplit) {
  for (const char* name : {"train/a", "train/b", "test/c"}) {
    const std::string path = folder.path("split/") + name;
    fs::create_directories(fs::path(path).parent_path());
    picture(path + ".png", 16, 16, 5), write_text(path + ".txt", "a cat");
  }
  const auto words = [&](const std::string& place, const std::string& split) {
    return std::vector<std::string>{"--data",       folder.path(place), "--vae", autoencoder(), "--text-encoder",
                                    text_encoder(), "--image",          "16",    "--split",     split};
  };
  const auto count = [&](const std::string& out) {
    return Safetensors::read(folder.path(out + "/shard-00000.safetensors")).view("captions").shape[0];
  };
  ASSERT_EQ(encode(words("split", "train"), "of-train").code, 0);
  ASSERT_EQ(encode(words("split", "test"), "of-test").code, 0);
  EXPECT_EQ(count("of-train"), 2);
  EXPECT_EQ(count("of-test"), 1);
  refused(words("split/train", "test"), "has no train/ with val/ or test/ beside it", "new");
  write_text(folder.path("captions.jsonl"), R"({"image": "train/a.png", "caption": "a cat"})");
  std::vector<std::string> both = words("split", "test");
  both.insert(both.end(), {"--captions", folder.path("captions.jsonl")});
  refused(both, "--split test with --captions, expected one", "new");
}

// Pictures with captions to latents, a SANA trained on them, killed and continued, and images from it by prompts.
TEST_F(CliEncode, CaptionsAreTrainedOnAndSampledFrom) {
  const std::string place = folder.path("pictures"), data = folder.path("out");
  fs::create_directories(place);
  for (int i = 0; i < 24; ++i) {
    const std::string name = place + "/" + std::to_string(10 + i);
    picture(name + ".png", 16, 16, 2 + i), write_text(name + ".txt", "picture " + std::to_string(i));
  }
  ASSERT_EQ(encode({"--data", place, "--vae", autoencoder(), "--text-encoder", text_encoder(), "--caption-tokens", "12",
                    "--flip"})
                .code,
            0);
  write_text(folder.path("prompts.txt"), "a cat\ntwo dogs\n");
  const auto words = [&](const std::string& out, const std::vector<std::string>& more) {
    std::vector<std::string> all{"train",
                                 "diffusion",
                                 "--model",
                                 "sana_600m",
                                 "--process",
                                 "flow",
                                 "--data",
                                 data,
                                 "--shift",
                                 "3",
                                 "--sample-every",
                                 "3",
                                 "--batch",
                                 "8",
                                 "--sample-steps",
                                 "2",
                                 "--eval-times",
                                 "2",
                                 "--threads",
                                 "1",
                                 "--max-steps",
                                 "6",
                                 "--checkpoint-every",
                                 "2",
                                 "--sample-columns",
                                 "1",
                                 "--out",
                                 folder.path(out)};
    for (const char* field : {"dim=16", "depth=1", "head_dim=8", "cross_heads=2", "blocks=[2,2]"})
      all.insert(all.end(), {"--set", field});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const std::vector<std::string> prompts{"--sample-prompts", folder.path("prompts.txt")};
  const ProgramRun run = run_program(words("run", prompts));
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_TRUE(has(run.out, "tested on 2 images held out of the training set")) << run.out;
  EXPECT_EQ(read_image(folder.path("run/samples/step-00000006.png")).height, 2 * 18 + 2);
  const JsonValue config = read_json(folder.path("run/config.json"));
  EXPECT_EQ(config.at("family").as_string(), "sana");
  EXPECT_EQ(config.at("attention").as_string(), "mhla");
  EXPECT_EQ(config.at("caption_dim").as_int(), 8);
  EXPECT_EQ(run_program({"eval", "diffusion", "--run", folder.path("run"), "--weights", "ema"}).code, 0);

  run_program(words("cut", prompts), {folder.path("cut/checkpoints/step-00000002"), SIGKILL});
  ASSERT_EQ(run_program({"train", "diffusion", "--resume", "--out", folder.path("cut")}).code, 0);
  for (const char* name : {"model.safetensors", "ema.safetensors", "samples/step-00000006.png"})
    EXPECT_EQ(read_file(folder.path(std::string("cut/") + name)), read_file(folder.path(std::string("run/") + name)));

  // The run knows its autoencoder, its text encoder and its size.
  const ProgramRun made = run_program({"sample", "--run", folder.path("run"), "--prompts", folder.path("prompts.txt"),
                                       "--guidance", "2", "--steps", "2", "--out", folder.path("images")});
  ASSERT_EQ(made.code, 0) << made.err;
  EXPECT_EQ(read_image(folder.path("images/images/000001.png")).height, 16);

  // The averaged weights under published names; MHLA from linear attention in one command.
  ASSERT_EQ(
      run_program({"convert", folder.path("run"), folder.path("linear"), "--weights", "ema", "--attention", "linear"})
          .code,
      0);
  const ProgramRun tuned = run_program({"train",          "diffusion",
                                        "--init",         folder.path("linear"),
                                        "--attention",    "mhla",
                                        "--process",      "flow",
                                        "--shift",        "3",
                                        "--data",         data,
                                        "--max-steps",    "1",
                                        "--batch",        "8",
                                        "--sample-every", "0",
                                        "--threads",      "1",
                                        "--out",          folder.path("tuned")});
  ASSERT_EQ(tuned.code, 0) << tuned.err;
  EXPECT_TRUE(has(tuned.out, "mhla attention from the weights of linear, mixing uniform at first")) << tuned.out;

  const auto refuses = [&](const std::vector<std::string>& more, const std::string& part) {
    const ProgramRun wrong = run_program(words("x", more));
    EXPECT_EQ(wrong.code, 2) << wrong.err;
    EXPECT_EQ(lines_of(wrong.err).size(), 1u) << wrong.err;
    EXPECT_TRUE(has(wrong.err, part)) << wrong.err;
  };
  refuses({"--sample-prompts", folder.path("none.txt")}, "none.txt");
  write_file(folder.path("config.json"), file_text(autoencoder() + "/config.json"));
  std::string other = file_text(folder.path("config.json"));
  other.replace(other.find("0.18215"), 7, "0.13025");
  write_file(folder.path("config.json"), other);
  refuses({"--vae", folder.path()},
          "has latents of 4 channels scaled by 0.13025, expected the 4 and 0.18215 of the data");
  write_text(folder.path("empty.txt"), "");
  refuses({"--sample-prompts", folder.path("empty.txt")}, "has no prompts");
  refuses({"--sample-prompts", folder.path("prompts.txt"), "--text-encoder", folder.path("none")},
          "expected --text-encoder DIR");
  EXPECT_FALSE(fs::exists(folder.path("x")));
  fs::rename(folder.path("gemma"), folder.path("moved"));
  const ProgramRun lost = run_program(
      {"sample", "--run", folder.path("run"), "--prompts", folder.path("prompts.txt"), "--out", folder.path("lost")});
  EXPECT_EQ(lost.code, 2);
  EXPECT_TRUE(has(lost.err, "the text encoder of the model is not in ")) << lost.err;
}

TEST_F(CliEncode, RefusesWhatItCannotEncode) {
  const std::string data = classes(2), vae = autoencoder();
  refused({"--data", data}, "neither --vae nor --text-encoder is given");
  refused({"--vae", vae}, "--data is missing");
  refused({"--data", data, "--vae", folder.path("none")}, "none/config.json");
  refused({"--data", folder.path("none"), "--vae", vae}, "none");
  refused({"--data", data, "--vae", vae, "--captions", "x.jsonl"}, "--captions without --text-encoder");
  refused({"--data", data, "--vae", vae, "--image", "15"}, "15 x 15 pixels, expected multiples of 2");
  refused({"--data", data, "--vae", vae, "--image", "0"}, "--image");
  refused({"--data", data, "--vae", vae, "--dtype", "f64"}, "f64");
  refused({"--data", data, "--text-encoder", text_encoder()}, "--vae is missing, expected one for images");
  refused({"--data", data, "--vae", vae, "--image", "16384", "--batch", "8192"}, "GiB");
  picture(data + "/ant/99.png", 18, 16, 3);
  refused({"--data", data, "--vae", vae}, "ant/99.png: is 18 x 16, expected 16 x 16 as the first: give --image",
          "sizes");
  write_text(data + "/ant/98.png", "no picture");
  refused({"--data", data, "--vae", vae, "--image", "16"}, "98.png", "damaged");
  fs::remove(data + "/ant/98.png");
  fs::create_directory(folder.path("full"));
  write_text(folder.path("full/notes.txt"), "mine");
  refused({"--data", data, "--vae", vae, "--image", "16"}, "has notes.txt, expected a new folder", "full");
  EXPECT_FALSE(fs::exists(folder.path("out")));
}

}  // namespace
}  // namespace mhla
