// The classification task on images made here: its loss against the formula, training that learns and resumes to the
// same bits, and what does not fit together.
#include "mhla/train/classify/classification.h"

#include <gtest/gtest.h>

#include "mhla/core/error.h"
#include "mhla/io/file.h"
#include "mhla/testing/messages.h"
#include "mhla/train/image_fixture.h"
#include "mhla/train/tiny_task_fixture.h"

namespace mhla::train {
namespace {

namespace fs = std::filesystem;

ClassifyOptions small_classification() {
  ClassifyOptions o;
  o.model = "vit_demo", o.augment = "none", o.shift = 1, o.mixup = 0.2;
  o.network = parse_json(
      R"({"image": [12, 12], "patch": 3, "dims": [16], "depths": [2], "heads": [2], "blocks": [[2, 2]],
          "cpe": 3})",
      "network");
  o.train.batch = 16, o.train.epochs = 20, o.train.lr = 3e-3, o.train.threads = 1, o.train.checkpoint_every = 10;
  o.train.ema = 0.9, o.train.seed = 3;
  return o;
}

TrainResult train_quarters(const fs::path& folder, ClassifyOptions options, bool resume, std::int64_t stop_at = -1) {
  const ClassifyData data{quarters("train", 192, 1), quarters("test", 40, 2)};
  const ClassifierConfig network = network_of(options, *data.train);
  options = resolved(options, network, *data.train);
  prepare(options.train);
  struct Stopped : ClassificationTask {
    using ClassificationTask::ClassificationTask;
    TrainBatch next_batch() override {
      if (count++ == at) ::raise(SIGINT);
      return ClassificationTask::next_batch();
    }
    std::int64_t count = 0, at = -1;
  } task(options, data, network);
  task.at = stop_at;
  Rows rows;
  return Trainer(task, options.train, folder, fields_to_json(options), rows).run(resume);
}

TEST(Classification, LearnsAndResumesToTheSameBits) {
  const TemporaryRun run;
  const TrainResult whole = train_quarters(run.path("whole"), small_classification(), false);
  EXPECT_EQ(whole.step, 240);
  ASSERT_EQ(whole.metrics.at(1).first, "top1");
  EXPECT_GE(whole.metrics.at(1).second, 0.9);
  EXPECT_EQ(whole.metrics.at(2).second, 1.0);  // top 5 of 4 classes
  const TrainResult cut = train_quarters(run.path("cut"), small_classification(), false, 29);
  EXPECT_EQ(cut.stopped, "SIGINT");
  EXPECT_EQ(cut.step, 30);
  EXPECT_EQ(train_quarters(run.path("cut"), small_classification(), true).step, 240);
  for (const char* name : {"model.safetensors", "ema.safetensors"})
    EXPECT_TRUE(read_file(run.path("cut") / name) == read_file(run.path("whole") / name)) << name;
  const AnyClassifier loaded = load_classifier(run.path("whole"));  // a run is a folder that models/ can read
  EXPECT_EQ(loaded->config().classes, 4);
}

TEST(Classification, ARunGoesOnWithTheSameImagesAndCountsTheSameDamage) {
  const auto task_of = [](const ClassifyData& data, std::int64_t max_damaged) {
    ClassifyOptions options = small_classification();
    options.max_damaged = max_damaged;
    prepare(options.train);
    return ClassificationTask(options, data, network_of(options, *data.train));
  };
  const ImageSetPtr images = quarters("train", 64, 1), others = quarters("others", 60, 1);
  ClassificationTask first = task_of({images, images}, 1);
  first.next_batch();
  const JsonValue cursor = first.cursor();
  task_of({quarters("moved", 64, 1), images}, 1).seek(cursor);
  EXPECT_EQ(message_of([&] {
              task_of({others, images}, 1).seek(cursor);
            }),
            "train: others has other labels than the data of the run, or in another order");
  JsonValue damaged = cursor;
  damaged.set("damaged", parse_json("[3, 9]", "items"));
  ClassificationTask resumed = task_of({images, images}, 2);
  resumed.seek(damaged);
  EXPECT_EQ(write_json(resumed.cursor()), write_json(damaged));  // also before the first batch
  resumed.next_batch();
  EXPECT_EQ(write_json(resumed.cursor().at("damaged")), "[3, 9]");
  damaged.set("damaged", parse_json("[64]", "items"));
  resumed.seek(damaged);
  EXPECT_TRUE(has(message_of([&] { resumed.next_batch(); }), "known_damaged has item 64, expected 0 to 63"));
}

TEST(Classification, OfficialTrainingIsWhatFlagsDoNotSay) {
  const ImageSetPtr images = quarters("train", 16, 1);
  const auto train_of = [&](bool official, std::optional<double> decay, std::optional<bool> apart) {
    ClassifyOptions o = small_classification();
    o.official = official, o.train.mix_weight_decay = decay, o.train.clip_mix_apart = apart;
    ClassifierConfig network = network_of(small_classification(), *images);
    network.official = official;
    return resolved(o, network, *images).train;
  };
  EXPECT_EQ(train_of(false, {}, {}).mix_weight_decay, 0.0);
  EXPECT_EQ(train_of(false, {}, {}).clip_mix_apart, true);
  EXPECT_EQ(train_of(true, {}, {}).mix_weight_decay, small_classification().train.weight_decay);
  EXPECT_EQ(train_of(true, {}, {}).clip_mix_apart, false);
  EXPECT_EQ(train_of(true, 0.0, true).mix_weight_decay, 0.0);
  EXPECT_EQ(train_of(true, 0.0, true).clip_mix_apart, true);
}

TEST(Classification, SmoothedAndSoftTargetsFollowTheFormula) {
  torch::manual_seed(0);
  const torch::Tensor logits = torch::randn({3, 4}, torch::kDouble).to(torch::kFloat);
  Batch batch;
  batch.size = 3, batch.labels = {0, 2, 3}, batch.other_labels = {1, 2, 0}, batch.weights = {0.75f, 0.25f, 1.0f};
  const torch::Tensor soft = soft_targets(batch, 4);
  const torch::Tensor want = torch::tensor({0.75, 0.25, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0}).view({3, 4});
  EXPECT_LT((soft - want).abs().max().item<double>(), 1e-7);
  const torch::Tensor smooth = 0.9 * want + 0.1 / 4;
  const double loss = -(smooth * logits.log_softmax(-1)).sum(-1).mean().item<double>();
  EXPECT_NEAR(soft_cross_entropy(logits, soft, 0.1).item<double>(), loss, 1e-6);
  const torch::Tensor hard = torch::tensor({0, 2, 3}, torch::kLong);
  EXPECT_NEAR(soft_cross_entropy(logits, hard, 0.1).item<double>(),
              soft_cross_entropy(logits, torch::one_hot(hard, 4).to(torch::kFloat), 0.1).item<double>(), 1e-6);
}

TEST(Classification, TheScoreCountsEveryImageOnce) {
  const ClassifyOptions options = small_classification();
  const ImageSetPtr images = quarters("test", 37, 5);  // no multiple of the batch
  const ClassifierConfig network = network_of(options, *images);
  prepare(options.train);
  const AnyClassifier model = make_classifier(network);
  const Score got = score(*model, images, augment_of(options, network, *images), options);
  EXPECT_EQ(got.images, 37);
  std::int64_t all = 0, right = 0;
  for (std::size_t i = 0; i < 16; ++i) all += got.confusion[i], right += i % 5 == 0 ? got.confusion[i] : 0;
  EXPECT_EQ(all, 37);
  EXPECT_DOUBLE_EQ(got.top1, static_cast<double>(right) / 37.0);
  std::int64_t first_class = 0;
  for (std::size_t j = 0; j < 4; ++j) first_class += got.confusion[j];
  EXPECT_EQ(first_class, 10);  // row: the true class
}

TEST(Classification, TestImagesAreTheSameForEverySeed) {
  const TemporaryRun run;
  for (const char* name : {"cat", "dog"}) {
    fs::create_directories(run.path("pets") / name);
    for (int i = 0; i < 20; ++i) write_file(run.path("pets") / name / str(i, ".png"), std::string("never read here"));
  }
  const auto items = [&](std::int64_t seed, std::optional<std::int64_t> test_seed) {
    ClassifyOptions o;
    o.data = str("folder:", run.path("pets").string());
    o.hold_out = 0.5, o.test_images = 6, o.train_images = 6, o.train.seed = seed, o.test_seed = test_seed;
    const ClassifyData data = open_data(o);
    std::vector<std::string> test, train;
    for (std::int64_t i = 0; i < 6; ++i)
      test.push_back(data.test->item_name(i)), train.push_back(data.train->item_name(i));
    return std::pair(test, train);
  };
  EXPECT_EQ(items(0, {}).first, items(1, {}).first);
  EXPECT_EQ(items(0, {}).first, items(1, 0).first);
  EXPECT_NE(items(0, {}).first, items(0, 1).first);
  EXPECT_NE(items(0, {}).second, items(1, {}).second);
}

TEST(Classification, WhatDoesNotFitIsNamed) {
  const ImageSetPtr images = quarters("train", 16, 1);
  ClassifyOptions o = small_classification();
  o.network.set("dimms", 3);
  EXPECT_EQ(message_of([&] { network_of(o, *images); }), "network: 'dimms' is unknown, nearest is 'dims'");
  o = small_classification();
  o.network.set("classes", 10);
  EXPECT_EQ(message_of([&] { network_of(o, *images); }), "network: classes is 10, expected the 4 of train");
  o = small_classification();
  o.model = "deit_huge";
  EXPECT_TRUE(has(message_of([&] { network_of(o, *images); }), "deit_huge"));
  o = small_classification();
  o.train.batch = 17;
  const ClassifierConfig network = network_of(o, *images);
  EXPECT_EQ(message_of([&] {
              ClassificationTask(o, {images, images}, network);
            }),
            "train: batch is 17, expected at most the 16 images of train");
}

TEST(Classification, WhatWasAskedForIsWhatTheRunSays) {
  const ImageSetPtr images = quarters("test", 40, 1);
  const TemporaryRun run;
  fs::create_directories(run.path());
  const fs::path file = run.path() / "tiny.json";
  const auto network_with = [&](const char* text, const std::function<void(ClassifyOptions&)>& change) {
    write_file(file, std::string(text));
    ClassifyOptions o = small_classification();
    o.model = file.string(), o.network = JsonValue::object(), o.attention.reset();
    change(o);
    return network_of(o, *images);
  };
  const char* linear = R"({"model": "vit_demo", "attention": "linear"})";
  EXPECT_EQ(network_with(linear, [](ClassifyOptions&) {}).attention, "linear");
  EXPECT_EQ(network_with(linear, [](ClassifyOptions& o) { o.attention = "softmax"; }).attention, "softmax");
  EXPECT_TRUE(has(message_of([&] { network_with(R"({"model": "vit_demo", "classes": 7})", [](ClassifyOptions&) {}); }),
                  "classes is 7, expected the 4"));
  EXPECT_TRUE(has(message_of([&] { network_with("[]", [](ClassifyOptions&) {}); }), "tiny.json: is no object"));
  const ClassifyOptions o = resolved(small_classification(), network_of(small_classification(), *images), *images);
  EXPECT_EQ(o.attention, "mhla");
  EXPECT_EQ(o.normalize, "half");  // of grey images that nobody knows
  ClassifyOptions other = o;
  other.normalize = "mnist";
  EXPECT_EQ(augment_of(other, network_of(o, *images), *images).mean, std::vector<float>{0.1307f});
  other.normalize = "cifar10";
  EXPECT_TRUE(has(message_of([&] { augment_of(other, network_of(o, *images), *images); }), "of colour"));
  for (const auto& [change, text] :
       {std::pair<std::function<void(ClassifyOptions&)>, const char*>{[](auto& c) { c.repeats = 0; }, "repeats is 0"},
        {[](auto& c) { c.shift = std::int64_t{1} << 32; }, "shift is 4294967296"},
        {[](auto& c) { c.max_damaged = -1; }, "max_damaged is -1"}}) {
    ClassifyOptions bad = small_classification();
    change(bad);
    EXPECT_TRUE(has(message_of([&] { open_data(bad); }), text)) << text;
  }
}

}  // namespace
}  // namespace mhla::train
