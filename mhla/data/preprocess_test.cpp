// What travels with a model: the evaluation of every recipe, through its file and back.
#include "mhla/data/preprocess.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "mhla/core/error.h"
#include "mhla/data/augment_item.h"
#include "mhla/data/loader.h"
#include "mhla/io/file.h"
#include "mhla/testing/messages.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

ImageSetPtr set_of(int height, int width, int channels) {
  MemoryImages images{.name = "set", .class_names = {"a", "b"}, .images = {}, .labels = {0, 1, 0}};
  for (int i = 0; i < 3; ++i) {
    Image& image = images.images.emplace_back();
    image.resize(height, width, channels);
    for (std::size_t p = 0; p < image.pixels.size(); ++p)
      image.pixels[p] = static_cast<std::uint8_t>(p * 7 + static_cast<std::size_t>(i) * 50);
  }
  return images_in_memory(images);
}

std::vector<float> evaluated(const ImageSetPtr& set, const Augment& augment) {
  LoaderOptions o;
  o.batch_size = set->size(), o.epochs = 1, o.shuffle = o.drop_last = false, o.threads = 1;
  o.augment = augment;
  Loader loader(set, o);
  Batch batch;
  EXPECT_TRUE(loader.next(batch));
  return batch.images;
}

TEST(Preprocess, EveryRecipeIsEvaluatedAlikeThroughItsFile) {
  for (const std::string& recipe : augment_recipes()) {
    for (const auto& [height, channels] : {std::pair{28, 1}, {28, 3}, {40, 3}}) {
      SCOPED_TRACE(recipe + " " + std::to_string(height) + " " + std::to_string(channels));
      const ImageSetPtr set = set_of(height, 24, channels);
      Augment augment = augment_recipe(recipe, *set, 32, 32);
      augment.channels = channels;
      const std::string text = preprocess_text(fields_to_json(preprocess_of(augment)));
      const Preprocess back = parse_preprocess(parse_json(text, "file"), "file");
      EXPECT_EQ(evaluated(set, augment_of(back, 32, 32, channels)), evaluated(set, without_chance(augment)));
    }
  }
  const Preprocess p = preprocess_of(augment_recipe("small", *set_of(28, 28, 1), 32, 32));
  EXPECT_EQ(p.fit, "pad");
  EXPECT_EQ(preprocess_of("small", "fashion-mnist", "mnist", 1).mean, std::vector<double>{0.286});  // as it was written
}

TEST(Preprocess, LargerImagesAreResizedWhereOthersArePadded) {
  Preprocess p;
  p.fit = "pad", p.mean = {0}, p.std = {1};
  Augment resize = augment_of(p, 32, 32, 1);
  resize.fit = Fit::kResize;
  EXPECT_EQ(evaluated(set_of(50, 20, 1), augment_of(p, 32, 32, 1)), evaluated(set_of(50, 20, 1), resize));
  EXPECT_NE(evaluated(set_of(20, 20, 1), augment_of(p, 32, 32, 1)), evaluated(set_of(20, 20, 1), resize));
}

// Runs made before there was a file: what their options say must be what their evaluation does.
TEST(Preprocess, OptionsOfATrainingSayTheSame) {
  for (const std::string& recipe : augment_recipes()) {
    const Preprocess by_set = preprocess_of(augment_recipe(recipe, *set_of(28, 28, 1), 28, 28));
    EXPECT_EQ(preprocess_of(recipe, "", "memory", 1), by_set) << recipe;
  }
  EXPECT_EQ(preprocess_of("none", "", "folder", 1).mean.size(), 3u);  // folders have colour
  EXPECT_EQ(preprocess_of("none", "", "folder", 3).fit, "resize");
  EXPECT_EQ(preprocess_of("none", "", "", 1).mean, std::vector<double>{0.5});
  EXPECT_EQ(preprocess_of("deit", "cifar10", "cifar10", 3).fit, "center_crop");
}

TEST(Preprocess, MistakesNameTheFile) {
  const fs::path folder = fs::path(testing::TempDir()) / "preprocess";
  fs::create_directories(folder);
  EXPECT_FALSE(read_preprocess(folder));
  const auto said = [&](const std::string& text) {
    write_file(folder / kPreprocessFile, text);
    return message_of([&] { read_preprocess(folder); });
  };
  const std::string file = (folder / kPreprocessFile).string();
  EXPECT_TRUE(
      has(said(R"({"fit": "stretch"})"), file + ": fit is 'stretch', expected one of pad, resize, center_crop"));
  EXPECT_TRUE(has(said(R"({"means": [0]})"), file + ": 'means' is unknown, nearest is 'mean'"));
  EXPECT_TRUE(has(said(R"({"mean": [0], "std": [0]})"), file + ": augment: mean 0 and std 0"));
  EXPECT_TRUE(has(said(R"({"interpolation": "nearest"})"), "expected one of bilinear, bicubic"));
  fs::remove_all(folder);
}

TEST(Preprocess, OfText) {
  const JsonValue options = parse_json(
      R"({"data": "text.txt", "packing": "concatenate", "context": 64, "mqar_pairs": 3, "lr": 1})", "options");
  EXPECT_EQ(text_preprocess(options), parse_json(R"({"packing": "concatenate", "context": 64})", "want"));
  EXPECT_EQ(text_preprocess(parse_json(R"({"data": "mqar", "context": 8, "mqar_pairs": 3})", "options")),
            parse_json(R"({"context": 8, "data": "mqar", "mqar_pairs": 3})", "want"));
}

TEST(ImageKind, ByNameAndByWhatLiesThere) {
  const fs::path folder = fs::path(testing::TempDir()) / "kinds";
  fs::create_directories(folder);
  EXPECT_EQ(image_kind("fashion-mnist"), "fashion-mnist");
  EXPECT_EQ(image_kind("cifar10:/nowhere"), "cifar10");
  EXPECT_EQ(image_kind("/nowhere"), "folder");
  EXPECT_EQ(image_kind(folder.string()), "folder");
  write_file(folder / "t10k-images-idx3-ubyte", std::string("x"));
  write_file(folder / "t10k-labels-idx1-ubyte", std::string("x"));
  EXPECT_EQ(image_kind(folder.string()), "mnist");
  fs::remove_all(folder);
}

TEST(ImageFiles, AreDecodedToTheChannelsAskedFor) {
  Image grey;
  grey.resize(3, 4, 1);
  for (std::size_t i = 0; i < grey.pixels.size(); ++i) grey.pixels[i] = static_cast<std::uint8_t>(20 * i);
  const ImageSetPtr set =
      images_in_files({{"-", encode_png(grey)}, {"/nowhere.png", {}}, {"-", std::vector<std::byte>{}}}, 3);
  Image got;
  set->decode(0, got);
  convert_channels(grey, 3);
  EXPECT_EQ(got, grey);
  EXPECT_TRUE(has(message_of([&] { set->decode(1, got); }), "/nowhere.png"));
  EXPECT_TRUE(has(message_of([&] { set->decode(2, got); }), "-: is empty"));
}

}  // namespace
}  // namespace mhla
