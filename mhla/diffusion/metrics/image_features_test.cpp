// Sets of features: filled in batches, saved and read, and the table of metrics over them.
#include "mhla/diffusion/metrics/image_features.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "mhla/core/error.h"
#include "mhla/diffusion/metrics/frechet.h"
#include "mhla/diffusion/metrics/metrics_fixture.h"
#include "mhla/io/codecs/npz.h"
#include "mhla/io/safetensors.h"
#include "mhla/testing/messages.h"

namespace mhla {
namespace {

const std::filesystem::path kFolder = testing::TempDir();
constexpr FeatureNeeds kAll{.stats = true, .spatial_stats = true, .rows = true, .logits = true};

ImageFeatures made_set(const std::string& label, std::int64_t images, unsigned seed, FeatureNeeds needs = kAll) {
  const MadeFeatures pool(images, 8, seed), spatial(images, 14, seed + 100), logits(images, 5, seed + 200);
  ImageFeatures set(label, "made up", needs);
  for (std::int64_t first = 0; first < images; first += 7) {
    const std::int64_t n = std::min<std::int64_t>(7, images - first);
    set.add({.features = {pool.values.data() + first * 8, DType::kF32, {n, 8}},
             .maybe_spatial = {spatial.values.data() + first * 14, DType::kF32, {n, 14}},
             .maybe_logits = {logits.values.data() + first * 5, DType::kF32, {n, 5}}});
  }
  return set;
}

TEST(ImageFeatures, SavedAndRead) {
  for (const std::int64_t images : {6, 30}) {  // fewer and more than features: a factor, a covariance
    const ImageFeatures set = made_set("reference", images, 1), samples = made_set("samples", 25, 2);
    const std::filesystem::path path = kFolder / "stats.safetensors";
    set.save(path);
    const ImageFeatures read = ImageFeatures::read(path, "unused");
    EXPECT_EQ(read.label(), "reference");
    EXPECT_EQ(read.network(), "made up");
    EXPECT_EQ(read.images(), images);
    const std::vector<std::string> names = {"fid", "sfid", "kid", "precision", "coverage"};
    const auto want = compute_metrics(names, samples, &set), got = compute_metrics(names, samples, &read);
    for (std::size_t i = 0; i < names.size(); ++i)
      EXPECT_LE(std::abs(got[i].value.value - want[i].value.value), 1e-9 * std::abs(want[i].value.value)) << names[i];
  }
}

TEST(ImageFeatures, ReadsNpzOfMoments) {
  const ImageFeatures reference = made_set("reference", 40, 1), samples = made_set("samples", 25, 2);
  const std::filesystem::path path = kFolder / "adm.npz";
  const auto write = [&](double corner) {
    NpzWriter writer(path);
    for (const auto& [stats, ending] :
         {std::pair{&reference.stats("t"), std::string()}, {&reference.spatial_stats("t"), std::string("_s")}}) {
      const std::vector<double> mean = stats->mean();
      Matrix covariance = stats->covariance();
      covariance.at(0, 1) += corner;
      writer.add("mu" + ending, {mean.data(), DType::kF64, {stats->dim()}});
      writer.add("sigma" + ending, {covariance.values.data(), DType::kF64, {stats->dim(), stats->dim()}});
    }
    writer.commit();
  };
  write(0.0);
  const ImageFeatures read = ImageFeatures::read(path, "made up");
  const auto want = compute_metrics({"fid", "sfid"}, samples, &reference),
             got = compute_metrics({"fid", "sfid"}, samples, &read);
  for (std::size_t i = 0; i < 2; ++i) EXPECT_NEAR(got[i].value.value, want[i].value.value, 1e-9);
  EXPECT_EQ(got[0].reference_images, 0);  // the file does not say
  EXPECT_EQ(message_of([&] { compute_metrics({"recall"}, samples, &read); }),
            str("recall: ", path.string(), " has no features of single images, only their statistics, or no images"));
  write(1.0);
  EXPECT_TRUE(has(message_of([&] { ImageFeatures::read(path, "made up"); }), path.string() + ": FeatureStats: "));
}

TEST(ImageFeatures, FilesThatAreRefused) {
  const std::filesystem::path path = kFolder / "other.safetensors";
  write_safetensors(path, {}, {{"format", "weights"}});
  EXPECT_TRUE(has(message_of([&] { ImageFeatures::read(path, ""); }), "format is 'weights', expected"));
  const std::vector<float> features(3, 1.0f);
  write_safetensors(path, {{"features", {features.data(), DType::kF32, {1, 3}}}},
                    {{"format", "mhla image features 1"}, {"images", "2"}, {"label", "l"}, {"network", "n"}});
  EXPECT_TRUE(has(message_of([&] { ImageFeatures::read(path, ""); }), "features of 1 images, expected 2"));
  EXPECT_TRUE(has(message_of([] { made_set("none", 0, 1).save(kFolder / "none"); }), "nothing to save"));
}

TEST(Metrics, AllOfThemByName) {
  const ImageFeatures samples = made_set("samples", 25, 2), reference = made_set("reference", 40, 1);
  MetricOptions options;
  options.kid_subsets = {.subsets = 3, .size = 20, .seed = 1};
  const auto results = compute_metrics(metric_names(), samples, &reference, options);
  ASSERT_EQ(results.size(), all_metrics().size());
  for (std::size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(results[i].name, all_metrics()[i].name);
    EXPECT_TRUE(std::isfinite(results[i].value.value)) << results[i].name;
    EXPECT_EQ(results[i].images, 25);
    EXPECT_EQ(results[i].features, "made up");
    const bool alone = results[i].name == "is" || results[i].name == "is-shuffled";
    EXPECT_EQ(results[i].reference, alone ? "" : "reference");
    EXPECT_EQ(results[i].reference_images, alone ? 0 : 40);
  }
  EXPECT_EQ(results[0].value.value, frechet_distance(samples.stats("t"), reference.stats("t")));
}

TEST(Metrics, NeedsFollowFromNames) {
  const MetricNeeds fid = needs_of({"fid"}), both = needs_of({"is", "recall"});
  EXPECT_TRUE(fid.samples.stats && fid.reference.stats && fid.any_reference && !fid.samples.rows);
  EXPECT_TRUE(both.samples.logits && both.samples.rows && both.reference.rows && !both.reference.logits);
  EXPECT_FALSE(needs_of({"is"}).any_reference);
}

TEST(Metrics, WhatIsRefused) {
  const ImageFeatures few = made_set("samples", 3, 2), reference = made_set("reference", 40, 1);
  EXPECT_EQ(message_of([&] {
              compute_metrics({"fid", "recall"}, few, &reference);
            }),
            "recall: samples has 3 images, expected at least 4");
  EXPECT_EQ(message_of([&] { compute_metrics({"kid-subsets"}, few, &reference); }),
            "kid-subsets: samples has 3 images, expected at least 1000");
  EXPECT_EQ(message_of([&] { compute_metrics({"fid"}, few, nullptr); }),
            "fid: needs a reference set, and none is given");
  EXPECT_TRUE(
      has(message_of([&] { compute_metrics({"fdi"}, few, nullptr); }), "'fdi' is unknown, expected one of fid"));
  ImageFeatures other("other", "another network", kAll);
  EXPECT_TRUE(has(message_of([&] { other.add({.features = MadeFeatures(4, 8, 1).view()}); }), "no spatial features"));
  const ImageFeatures rows = made_set("reference", 40, 1, {.rows = true});
  EXPECT_EQ(message_of([&] { compute_metrics({"fid"}, few, &rows); }),
            "fid: reference has no mean and covariance of features");
  ImageFeatures alien("alien", "another network", {.stats = true});
  alien.add({.features = MadeFeatures(9, 8, 1).view()});
  EXPECT_EQ(message_of([&] { compute_metrics({"fid"}, few, &alien); }),
            "fid: samples has features of made up and alien of another network, expected the same network");
}

}  // namespace
}  // namespace mhla
