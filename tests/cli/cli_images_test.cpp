// `mhla eval images`: what it computes from folders, .npz files and saved statistics, and what it refuses.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>

#include "mhla/io/codecs/image.h"
#include "mhla/io/codecs/npz.h"
#include "mhla/io/codecs/png_text.h"
#include "mhla/io/file.h"
#include "mhla/io/json.h"
#include "tests/cli/dit_fixture.h"
#include "tests/cli/expect.h"
#include "tests/cli/train_fixture.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

class CliImages : public testing::Test {
 protected:
  // Images of waves, `count` of them, as a folder of PNG files and as an .npz of the same pixels.
  std::string make(const std::string& name, int count, int step) {
    fs::create_directory(folder.path(name));
    std::vector<std::uint8_t> all;
    for (int i = 0; i < count; ++i) {
      Image image;
      image.resize(12, 12, 3);
      for (std::size_t at = 0; at < image.pixels.size(); ++at)
        image.pixels[at] = static_cast<std::uint8_t>((at * static_cast<std::size_t>(step + i) + at / 7) % 251);
      all.insert(all.end(), image.pixels.begin(), image.pixels.end());
      write_file(folder.path(name + "/" + std::to_string(10 + i) + ".png"), encode_png(image));
    }
    NpzWriter npz(folder.path(name + ".npz"));
    npz.add("arr_0", {all.data(), DType::kU8, {count, 12, 12, 3}});
    npz.commit();
    return folder.path(name);
  }
  ProgramRun eval(std::vector<std::string> more) {
    more.insert(more.begin(), {"eval", "images"});
    return run_program(more);
  }
  void refused(const std::vector<std::string>& more, const std::string& part) {
    const ProgramRun run = eval(more);
    EXPECT_EQ(run.code, 2) << run.err;
    EXPECT_EQ(lines_of(run.err).size(), 1u) << run.err;
    EXPECT_TRUE(has(run.err, part)) << run.err;
  }
  TemporaryFolder folder;
};

TEST_F(CliImages, RefusesWhatItCannotJudge) {
  if (!MHLA_TORCH_BUILT) GTEST_SKIP() << "built without LibTorch";
  const std::string a = make("a", 3, 3), network = "inception:" + folder.path("none.safetensors");
  refused({"--samples", a, "--features", network}, "--reference is missing");
  refused({"--samples", a, "--reference", a, "--features", "resnet"},
          "expected inception:FILE, classifier:RUN, clip:DIR or pixels");
  refused({"--samples", a, "--reference", a, "--features", network}, "none.safetensors");
  refused({"--samples", a, "--reference", a, "--features", network, "--metrics", "fad"}, "fad");
  // Before the network is read, and so before hours of features.
  refused({"--samples", a, "--reference", make("more", 5, 3), "--features", network, "--metrics", "fid,precision",
           "--neighbours", "3"},
          "precision: " + a + " has 3 images, expected at least 4");
  refused({"--samples", make("more", 5, 3), "--reference", a, "--features", network, "--metrics", "fid,recall"},
          "recall: " + a + " has 3 images, expected at least 4");
  const auto samples = [&](const std::string& path, const std::string& part) {
    refused({"--samples", path, "--metrics", "is", "--features", network}, part);
  };
  samples(folder.path("nowhere"), "nowhere");
  fs::create_directory(folder.path("empty"));
  samples(folder.path("empty"), "has no image");
  samples(a + "/10.png", "is no folder, .npz or .safetensors file");
  const std::vector<float> numbers(12);
  for (const char* name : {"arr_0", "other"}) {
    NpzWriter npz(folder.path("bad.npz"));
    npz.add(name, {numbers.data(), DType::kF32, {2, 2, 3}});
    npz.commit();
    samples(folder.path("bad.npz"),
            std::string(name) == "other" ? "has neither arr_0 nor mu" : "arr_0 is f32 [2, 2, 3], expected u8");
  }
}

// ---- CLIP

// The recorded CLIP with a tokenizer of letters; its last two ids stand before and after a prompt.
void write_clip_folder(const std::string& place) {
  fs::create_directory(place);
  write_recorded("image/clip.safetensors", "clip_quick_gelu", place + "/model.safetensors");
  const Safetensors golden = Safetensors::read(MHLA_SOURCE_DIR "/tests/golden/image/clip.safetensors");
  write_file(place + "/config.json",
             write_json(parse_json(golden.metadata().at("clip_quick_gelu"), "case").at("config")));
  std::string vocab;
  for (int i = 0; i < 36; ++i)
    vocab +=
        "\"" + std::string(1, static_cast<char>(i < 26 ? 'a' + i : '0' + i - 26)) + "\": " + std::to_string(i) + ", ";
  const auto mark = [](const std::string& text, int id) {
    return "{\"id\": " + std::to_string(id) + ", \"content\": \"" + text +
           "\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": "
           "true}";
  };
  write_file(place + "/tokenizer.json",
             "{\"version\": \"1.0\", \"added_tokens\": [" + mark("<start>", 38) + ", " + mark("<end>", 39) +
                 R"(], "normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "Whitespace"},
                     "post_processor": {"type": "RobertaProcessing", "sep": ["<end>", 39], "cls": ["<start>", 38],
                     "trim_offsets": false, "add_prefix_space": false}, "decoder": null, "model": {"type": "BPE",
                     "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
                     "fuse_unk": false, "byte_fallback": false, "vocab": {)" +
                 vocab + R"("<start>": 38, "<end>": 39}, "merges": []}})");
}

TEST_F(CliImages, ScoresPromptsWithClip) {
  if (!MHLA_TORCH_BUILT) GTEST_SKIP() << "built without LibTorch";
  const std::string clip = folder.path("clip"), images = make("a", 3, 3);
  write_clip_folder(clip);
  const std::vector<std::string> all{"--samples", images, "--features", "clip:" + clip, "--metrics", "clip", "--json"};
  const auto score = [&](const std::vector<std::string>& more) {
    const ProgramRun done = eval(joined(all, more));
    EXPECT_EQ(done.code, 0) << done.err;
    if (done.code != 0) return std::nan("");
    const JsonValue row = parse_json(lines_of(done.out).at(0), "row");
    EXPECT_EQ(row.at("metric").as_string(), "clip");
    EXPECT_EQ(row.at("images").as_int(), 3);
    EXPECT_GE(row.at("deviation").as_double(), 0.0);
    return row.at("value").as_double();
  };
  write_file(folder.path("prompts.txt"), "a house\nA House\nsome words that are longer than the context\n");
  const double mixed = score({"--prompts", folder.path("prompts.txt")});
  EXPECT_TRUE(mixed >= 0.0 && mixed <= 100.0) << mixed;
  const double one = score({"--prompt", "a house", "--prompt", "a house", "--prompt", "a house"}),
               other = score({"--prompt", "zzz", "--prompt", "zzz", "--prompt", "zzz"});
  EXPECT_GT(std::abs(one - other), 1e-3);
  // As `mhla sample` writes them.
  refused(all, "10.png does not say its prompt, expected --prompts FILE");
  for (const char* name : {"/10.png", "/11.png", "/12.png"})
    write_file(images + name, encode_png(read_image(images + name), {{"prompt", "a house"}}));
  EXPECT_DOUBLE_EQ(score({}), one);
  refused(joined(all, {"--prompt", "a"}), "1 prompts are given, expected one for each of the 3 samples");
  refused({"--samples", images, "--features", "pixels", "--metrics", "clip"}, "pixels reads no prompts");
  refused({"--samples", images, "--reference", images, "--features", "pixels", "--prompt", "a"}, "--prompts without");
  fs::remove(clip + "/tokenizer.json");
  refused(all, "has no tokenizer.json");
}

// ---- A classifier as judge

class CliJudge : public ClassifyFixture {
 protected:
  void SetUp() override {
    ClassifyFixture::SetUp();
    if (IsSkipped()) return;
    run = folder.path("run");
    ASSERT_EQ(run_program(words(run, {"--max-steps", "4"})).code, 0);
    for (const char* name : {"a", "b"}) {
      fs::create_directory(folder.path(name));
      for (int i = 0; i < 12; ++i) {
        Image image;
        image.resize(28, 28, 3);
        for (std::size_t at = 0; at < image.pixels.size(); ++at)
          image.pixels[at] =
              static_cast<std::uint8_t>((at * static_cast<std::size_t>(i + 3) + at / (name[0] == 'a' ? 5 : 9)) % 251);
        write_file(folder.path(name) + "/" + std::to_string(100 + i) + ".png", encode_png(image));
      }
    }
  }
  // Rows of kind "metric" by name.
  std::map<std::string, JsonValue> metrics(const std::vector<std::string>& more) {
    const ProgramRun done = run_program(joined({"eval", "images", "--json"}, more));
    EXPECT_EQ(done.code, 0) << done.err;
    std::map<std::string, JsonValue> rows;
    for (const std::string& line : lines_of(done.out)) {
      const JsonValue row = parse_json(line, "row");
      if (row.at("kind").as_string() == "metric") rows[std::string(row.at("metric").as_string())] = row;
    }
    return rows;
  }
  std::string run;
};

TEST_F(CliJudge, MeasuresWithItsFeatures) {
  const std::string judge = "classifier:" + run;
  auto rows = metrics({"--samples", folder.path("a"), "--reference", folder.path("b"), "--features", judge, "--metrics",
                       "fid,kid,precision,is"});
  EXPECT_EQ(rows.at("fid").at("features").as_string(), "classifier run");
  EXPECT_EQ(rows.at("fid").at("images").as_int(), 12);
  EXPECT_EQ(rows.at("fid").at("reference_images").as_int(), 12);
  EXPECT_GT(rows.at("fid").at("value").as_double(), 1e-6);
  EXPECT_GE(rows.at("is").at("value").as_double(), 1.0);
  rows = metrics({"--samples", folder.path("a"), "--reference", folder.path("a"), "--features", judge});
  EXPECT_LE(rows.at("fid").at("value").as_double(), 1e-6);
  expect_refused({"eval", "images", "--samples", folder.path("a"), "--reference", folder.path("b"), "--features", judge,
                  "--metrics", "sfid"},
                 {"classifier run has no spatial features, expected inception:FILE for sfid"});
  expect_refused({"eval", "images", "--samples", folder.path("a"), "--reference", folder.path("b"), "--features",
                  "classifier:" + folder.path("none")},
                 {folder.path("none")});
  // Features of another network are other features.
  ASSERT_EQ(run_program({"eval", "images", "--samples", folder.path("b"), "--features", judge, "--save-stats",
                         folder.path("b.safetensors")})
                .code,
            0);
  expect_refused({"eval", "images", "--samples", folder.path("a"), "--reference", folder.path("b.safetensors"),
                  "--features", "pixels"},
                 {"classifier run"});
}

TEST_F(CliJudge, CountsTheClassesThatWereAskedFor) {
  std::vector<std::int64_t> answers;
  std::string right, wrong;
  for (const std::string& line :
       lines_of(run_program({"predict", "--run", run, folder.path("a"), "--json", "--top", "1"}).out)) {
    const JsonValue row = parse_json(line, "row");
    if (row.at("kind").as_string() == "image") answers.push_back(row.at("top").at(0).at("class").as_int());
  }
  ASSERT_EQ(answers.size(), 12u);
  for (std::size_t i = 0; i < 12; ++i) {
    right += std::to_string(answers[i]) + "\n";
    wrong += std::to_string(i < 3 ? answers[i] : (answers[i] + 1) % 10) + "\n";
  }
  const std::vector<std::string> all{"--samples", folder.path("a"), "--features", "classifier:" + run, "--classes"};
  write_file(folder.path("classes.txt"), right);
  auto rows = metrics(joined(all, {folder.path("classes.txt")}));
  EXPECT_EQ(rows.at("accuracy").at("value").as_double(), 1.0);
  EXPECT_EQ(rows.size(), 1u);
  write_file(folder.path("classes.txt"), wrong);
  EXPECT_EQ(metrics(joined(all, {folder.path("classes.txt")})).at("accuracy").at("value").as_double(), 0.25);

  // As `mhla sample` names its files, in a folder of its own beside other pictures.
  fs::create_directories(folder.path("samples/images"));
  for (std::size_t i = 0; i < 12; ++i)
    fs::copy_file(
        folder.path("a/") + std::to_string(100 + i) + ".png",
        folder.path("samples/images/") + std::to_string(100 + i) + "-class" + std::to_string(answers[i]) + ".png");
  write_file(folder.path("samples/sample.json"), std::string("{}"));
  fs::copy_file(folder.path("b/100.png"), folder.path("samples/sheet.png"));
  rows = metrics({"--samples", folder.path("samples"), "--features", "classifier:" + run, "--classes", "from-names"});
  EXPECT_EQ(rows.at("accuracy").at("value").as_double(), 1.0);
  EXPECT_EQ(rows.at("accuracy").at("images").as_int(), 12);

  write_file(folder.path("classes.txt"), std::string("3\n"));
  const auto refused = [&](const std::string& classes, const std::string& part) {
    expect_refused(joined({"eval", "images"}, joined(all, {classes})), {part});
  };
  refused(folder.path("classes.txt"), "has 1 classes, expected one for each of the 12 samples");
  write_file(folder.path("classes.txt"), std::string("10\n"));
  refused(folder.path("classes.txt"), "class '10', expected a number from 0 to 9");
  refused("from-names", "100.png does not say its class");
  refused(folder.path("none.txt"), "none.txt");
  expect_refused({"eval", "images", "--samples", folder.path("a"), "--features", "pixels", "--classes", "from-names"},
                 {"expected --features classifier:RUN"});
}

TEST_F(CliJudge, FindsCopiesOfTrainingImages) {
  // Of 12 samples three are training images; b has other ones, of which half are held out.
  const std::string training = "fashion-mnist:" + data;
  fs::create_directory(folder.path("training"));
  for (int i = 0; i < 6; ++i)
    for (const char* to : {"training/", "held/"}) {
      fs::create_directories(folder.path(to));
      fs::copy_file(folder.path("b/") + std::to_string(100 + i + (to[0] == 'h' ? 6 : 0)) + ".png",
                    folder.path(to) + std::to_string(i) + ".png");
    }
  for (const int i : {0, 2, 4})
    fs::copy_file(folder.path("training/") + std::to_string(i) + ".png",
                  folder.path("a/") + std::to_string(i) + ".png");
  const ProgramRun done =
      run_program({"eval", "images", "--samples", folder.path("a"), "--reference", folder.path("training"),
                   "--held-out", folder.path("held"), "--features", "pixels", "--metrics", "nearest", "--sheet",
                   folder.path("sheet.png"), "--json"});
  ASSERT_EQ(done.code, 0) << done.err;
  std::vector<JsonValue> pairs;
  for (const std::string& line : lines_of(done.out)) {
    const JsonValue row = parse_json(line, "row");
    if (row.at("kind").as_string() == "nearest") pairs.push_back(row);
    if (row.at("kind").as_string() != "metric") continue;
    EXPECT_GE(row.at("copies").as_double(), 3.0 / 15.0) << line;
    EXPECT_EQ(row.at("held_out_images").as_int(), 6);
    EXPECT_GT(row.at("value").as_double(), 0.3);
  }
  ASSERT_EQ(pairs.size(), 10u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(pairs[i].at("distance").as_double(), 0.0);
    EXPECT_EQ(pairs[i].at("sample").as_string(), pairs[i].at("training").as_string());
  }
  EXPECT_GT(pairs[3].at("distance").as_double(), 1.0);
  const Image sheet = read_image(folder.path("sheet.png"));
  EXPECT_EQ(sheet.width, 8 * 30 + 2);  // 15 pairs, four in a row
  EXPECT_EQ(sheet.height, 4 * 30 + 2);

  // Sets by name, through a network.
  const auto rows = metrics({"--samples", training + "@train", "--reference", training, "--held-out",
                             folder.path("held"), "--features", "classifier:" + run, "--metrics", "nearest"});
  EXPECT_EQ(rows.at("nearest").at("value").as_double(), 0.0);
  EXPECT_EQ(rows.at("nearest").at("reference_images").as_int(), 80);
  const std::vector<std::string> all{
      "eval", "images", "--samples", folder.path("a"), "--reference", folder.path("training"), "--features", "pixels"};
  expect_refused(joined(all, {"--metrics", "nearest"}), {"--held-out is missing"});
  expect_refused(joined(all, {"--sheet", "x.png"}), {"--sheet without --metrics nearest"});
  expect_refused(joined(all, {"--metrics", "is"}), {"--reference is given, but no metric that compares with it"});
  expect_refused({"eval", "images", "--samples", folder.path("a"), "--features", "pixels", "--metrics", "is"},
                 {"pixels have no classes"});
  expect_refused(joined(all, {"--metrics", "nearest", "--held-out", folder.path("training")}),
                 {"expected images that were not trained on"});
}

// One colour an image, so that nothing is lost when they are scaled and cut.
TEST_F(CliImages, PixelsAreComparedAtTheSizeOfTheFirstSample) {
  if (!MHLA_TORCH_BUILT) GTEST_SKIP() << "built without LibTorch";
  const auto made = [&](const std::string& name, const std::vector<std::pair<int, int>>& sizes) {
    fs::create_directory(folder.path(name));
    for (std::size_t i = 0; i < 6; ++i) {
      Image image;
      image.resize(sizes[i % sizes.size()].first, sizes[i % sizes.size()].second, 3);
      for (std::size_t at = 0; at < image.pixels.size(); ++at)
        image.pixels[at] = static_cast<std::uint8_t>(40 * i + (at % 3) * i);
      write_file(folder.path(name + "/" + std::to_string(i) + ".png"), encode_png(image));
    }
    return folder.path(name);
  };
  const std::string samples = made("samples", {{8, 12}}), mixed = made("mixed", {{12, 8}, {30, 20}, {8, 12}, {9, 40}});
  const ProgramRun run = eval({"--samples", samples, "--reference", mixed, "--features", "pixels", "--json"});
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_NEAR(parse_json(lines_of(run.out).at(0), "row").at("value").as_double(), 0.0, 1e-9);
  refused({"--samples", made("large", {{80, 90}}), "--reference", samples, "--features", "pixels"},
          "samples of 80 x 90 pixels are 21600 numbers, expected at most 16384 for --features pixels");
}

TEST_F(CliImages, HelpNamesEveryMetric) {
  const ProgramRun help = eval({"--help"});
  EXPECT_EQ(help.code, 0);
  for (const char* name :
       {"fid", "sfid", "is", "is-shuffled", "kid", "precision", "recall", "density", "coverage", "nearest"})
    EXPECT_TRUE(has(help.out, name)) << help.out;
}

}  // namespace
}  // namespace mhla
