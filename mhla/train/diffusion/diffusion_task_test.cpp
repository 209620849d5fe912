// Diffusion as a task on images made here: what it draws, its loss, its paired score, a run that resumes to the same
// bits, and what does not fit together.
#include <gtest/gtest.h>

#include <cmath>

#include "mhla/io/file.h"
#include "mhla/testing/messages.h"
#include "mhla/train/diffusion/diffusion_fixture.h"
#include "mhla/train/image_fixture.h"

namespace mhla::train {
namespace {

namespace fs = std::filesystem;

DiffusionOptions small_diffusion() {
  DiffusionOptions o;
  o.model = "dit_d32";
  o.network = parse_json(R"({"image": [12, 8], "patch": 2, "dim": 16, "depth": 2, "heads": 2, "blocks": [2, 2]})", "n");
  o.train.batch = 16, o.train.max_steps = 12, o.train.threads = 1, o.train.checkpoint_every = 4, o.train.ema = 0.9;
  o.train.seed = 3, o.train.eval_steps = 6;
  o.eval_times = 3, o.sample_every = 6, o.sample_steps = 3, o.sample_columns = 2;
  return o;
}

DiffusionSource small_source() { return {{quarters("train", 96, 1), quarters("test", 20, 2), false}, nullptr}; }

struct SmallDiffusion : MadeDiffusion {
  explicit SmallDiffusion(const DiffusionOptions& o = small_diffusion()) : MadeDiffusion(o, small_source()) {}
};

std::vector<std::int64_t> numbers(std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> all;
  for (std::int64_t i = 0; i < count; ++i) all.push_back(first + i);
  return all;
}

TEST(DiffusionDraws, BelongToAnImageOfAnEpoch) {
  const DiffusionProcess process(small_diffusion(), true);
  const std::vector<std::int64_t> items = numbers(0, 4000);
  const std::vector<std::int64_t> times = process.draw_times(7, 2, items);
  EXPECT_EQ(process.draw_times(7, 2, {items[5], items[3]}), (std::vector<std::int64_t>{times[5], times[3]}));
  EXPECT_NE(process.draw_times(7, 3, items), times);
  EXPECT_NE(process.draw_times(8, 2, items), times);
  double sum = 0;
  for (const std::int64_t time : times) {
    ASSERT_TRUE(time >= 0 && time < 1000) << time;
    sum += static_cast<double>(time);
  }
  EXPECT_NEAR(sum / 4000, 499.5, 4 * 288.7 / std::sqrt(4000.0));  // uniform

  const torch::Tensor noise = training_noise(7, 2, 0, items, {2, 3}, torch::kCPU);
  EXPECT_TRUE(torch::equal(training_noise(7, 2, 99, {items[5]}, {2, 3}, torch::kCPU)[0], noise[5]));
  EXPECT_FALSE(torch::equal(training_noise(7, 3, 0, {items[5]}, {2, 3}, torch::kCPU)[0], noise[5]));
  EXPECT_NEAR(noise.mean().item<double>(), 0.0, 0.03);
  EXPECT_NEAR(noise.std().item<double>(), 1.0, 0.03);
}

TEST(DiffusionDraws, LabelsAreDroppedToTheNullClass) {
  const std::vector<std::int64_t> items = numbers(0, 4000), labels(4000, 3);
  const std::vector<std::int64_t> dropped = drop_labels(labels, 0.1, 10, 7, 2, items);
  const auto nulls = std::count(dropped.begin(), dropped.end(), 10);
  EXPECT_NEAR(static_cast<double>(nulls), 400.0, 4 * std::sqrt(360.0));
  EXPECT_EQ(std::count(dropped.begin(), dropped.end(), 3), 4000 - nulls);
  EXPECT_EQ(drop_labels(labels, 0.1, 10, 7, 2, items), dropped);
  EXPECT_NE(drop_labels(labels, 0.1, 10, 7, 3, items), dropped);
  EXPECT_EQ(drop_labels(labels, 0.0, 10, 7, 2, items), labels);
}

TEST(DiffusionDraws, FlowTimesAreLogitNormal) {
  DiffusionOptions o = small_diffusion();
  o.process = "flow", o.logit_mean = 1.0;
  const std::vector<std::int64_t> times = DiffusionProcess(o, false).draw_times(7, 2, numbers(0, 4000));
  const auto late = std::count_if(times.begin(), times.end(), [](std::int64_t time) { return time >= 731; });
  EXPECT_NEAR(static_cast<double>(late), 2000.0, 4 * std::sqrt(1000.0));  // sigmoid(1) = 0.731
}

TEST(DiffusionEval, TimesAreSpreadOverTheProcess) {
  const DiffusionProcess process(small_diffusion(), true);
  const std::vector<std::int64_t> times = process.times_to_judge(14);
  ASSERT_EQ(times.size(), 14u);
  for (std::size_t i = 0; i < times.size(); ++i) EXPECT_EQ(times[i], 20 + 70 * static_cast<std::int64_t>(i));
  EXPECT_EQ(process.times_to_judge(1000).back(), 999);
}

TEST(DiffusionTask, StartsAtTheVarianceOfTheNoise) {
  SmallDiffusion made;
  const TrainBatch batch = made.task->next_batch();
  ASSERT_EQ(batch.inputs.size(), 4u);
  const torch::Tensor& x = batch.inputs[0];
  EXPECT_EQ(x.sizes().vec(), (std::vector<std::int64_t>{16, 1, 12, 8}));
  EXPECT_GE(x.min().item<float>(), -1.0f);
  EXPECT_LE(x.max().item<float>(), 1.0f);
  const BatchResult result = made.task->forward(batch);
  ASSERT_EQ(result.sums.at(0).first, "mse");
  EXPECT_NEAR(result.sums[0].second.item<double>() / 16, 1.0, 0.1);  // the model answers 0
  EXPECT_NEAR(result.loss.item<double>() * 16,
              result.sums[0].second.item<double>() + result.sums[1].second.item<double>(), 1e-4);
}

TEST(DiffusionTask, TheSameBatchWhereverTheRunGoesOn) {
  SmallDiffusion whole, rest;
  TrainBatch third;
  JsonValue cursor;
  for (int i = 0; i < 3; ++i) cursor = whole.task->cursor(), third = whole.task->next_batch();
  rest.task->seek(cursor);
  const TrainBatch again = rest.task->next_batch();
  for (std::size_t i = 0; i < third.inputs.size(); ++i)
    EXPECT_TRUE(torch::equal(again.inputs[i], third.inputs[i])) << i;
}

TEST(DiffusionTask, FlowPredictsTheVelocity) {
  DiffusionOptions o = small_diffusion();
  o.process = "flow";
  SmallDiffusion made(o);
  EXPECT_FALSE(made.network.learn_sigma());
  const TrainBatch batch = made.task->next_batch();
  const BatchResult result = made.task->forward(batch);
  const torch::Tensor target = batch.inputs[3] - batch.inputs[0];
  EXPECT_NEAR(result.loss.item<double>(), target.square().mean().item<double>(), 1e-5);  // the model answers 0
  EXPECT_TRUE(result.sums.empty());
  EXPECT_EQ(made.task->generation().process, "flow");
}

TEST(DiffusionTask, ScoresAreOfTheSameNoiseWhateverTheSeedAndTheBatch) {
  SmallDiffusion made;
  const Metrics metrics = made.task->evaluate({});
  ASSERT_EQ(metrics.at(0).first, "mse");
  DiffusionOptions other = small_diffusion();
  other.train.seed = 99, other.train.batch = 7;
  SmallDiffusion second(other);  // at first every model answers 0: what is left is the noise
  const Metrics same = second.task->evaluate({});
  for (std::size_t i = 0; i < metrics.size(); ++i) EXPECT_NEAR(metrics[i].second, same[i].second, 1e-6);
  other.test_seed = 1;
  EXPECT_GT(std::abs(SmallDiffusion(other).task->evaluate({}).at(0).second - metrics[0].second), 1e-4);

  const auto held_out = held_out_samples(made.source, made.options, made.network);
  const DiffusionProcess process(made.options, made.network.learn_sigma());
  const DenoisingScore score = denoising_score(made.task->network(), *held_out, process, made.options);
  EXPECT_EQ(score.mse, metrics[0].second);
  EXPECT_EQ(score.images, 20);
  double mean = 0, square = 0;
  for (const double value : score.each) mean += value / 20, square += value * value / 20;
  EXPECT_NEAR(mean, score.mse, 1e-12);
  EXPECT_NEAR(score.mse_se, std::sqrt((square - mean * mean) / 19), 1e-9);
  // By hand: image 3 at the second time.
  const torch::Tensor noise = judging_noise(0, process.times_to_judge(3)[1], {3}, {1, 12, 8}, torch::kCPU);
  EXPECT_NEAR(noise.square().mean().item<double>(), 1.0, 0.5);
}

TrainResult train_diffusion(const fs::path& folder, bool resume, std::int64_t stop_at = -1, Rows* rows = nullptr) {
  Rows own;
  return train_made(SmallDiffusion(), folder, resume, stop_at, rows == nullptr ? own : *rows);
}

TEST(DiffusionTask, ResumesToTheSameBits) {
  const TemporaryRun run;
  Rows rows;
  const TrainResult whole = train_diffusion(run.path("whole"), false, -1, &rows);
  EXPECT_EQ(whole.step, 12);
  EXPECT_EQ(train_diffusion(run.path("cut"), false, 4).stopped, "SIGINT");
  EXPECT_EQ(train_diffusion(run.path("cut"), true).step, 12);
  for (const char* name :
       {"model.safetensors", "ema.safetensors", "samples/step-00000006.png", "samples/step-00000012.png"})
    EXPECT_TRUE(read_file(run.path("cut") / name) == read_file(run.path("whole") / name)) << name;
  const Image sheet = read_image(run.path("whole") / "samples/step-00000012.png");
  EXPECT_EQ(sheet.height, 4 * (12 + 2) + 2);  // four classes
  EXPECT_EQ(sheet.width, 2 * (8 + 2) + 2);
  EXPECT_EQ(std::count_if(rows.rows.begin(), rows.rows.end(),
                          [](const JsonValue& row) { return row.at("kind").as_string() == "samples"; }),
            2);

  const JsonValue names = read_json(run.path("whole") / "classes.json");
  EXPECT_EQ(names.at(3).as_string(), "bottom right");
  EXPECT_EQ(read_generation_config(run.path("whole"), {}), generation_of(small_diffusion(), true));
  Dit opened = load_dit(run.path("whole"));  // a run is a folder that models/ can read
  const torch::Tensor out =
      opened->denoise(torch::zeros({1, 1, 12, 8}), torch::zeros({1}), {torch::zeros({1}, torch::kLong), {}, {}});
  EXPECT_EQ(out.size(1), 2);
}

TEST(DiffusionTask, OverwriteRemovesTheSamplesToo) {
  const TemporaryRun run;
  train_diffusion(run.path(), false);
  write_file(run.path() / "samples/mine.txt", std::string("kept"));
  remove_run(run.path());
  EXPECT_FALSE(fs::exists(run.path() / "generation.json"));
  EXPECT_FALSE(fs::exists(run.path() / "samples/step-00000006.png"));
  EXPECT_TRUE(fs::exists(run.path() / "samples/mine.txt"));
}

TEST(DiffusionTask, SaysWhatDoesNotFitTogether) {
  const auto refused = [](const std::function<void(DiffusionOptions&)>& change) {
    DiffusionOptions o = small_diffusion();
    change(o);
    return message_of([&] {
      check(o);
      SmallDiffusion made(o);
    });
  };
  const auto with = [](const char* fields) {
    return [fields](DiffusionOptions& o) { o.network = parse_json(fields, "n"); };
  };
  EXPECT_EQ(refused(with(R"({"image": [13, 8]})")), "config: image has 13 rows, expected a multiple of patch = 2");
  EXPECT_EQ(refused(with(R"({"channels": 4})")), "network: channels is 4, expected 1 or 3 for the pixels of train");
  EXPECT_EQ(refused(with(R"({"classes": 10})")), "network: classes is 10, expected the 4 of train");
  EXPECT_EQ(refused([](DiffusionOptions& o) { o.process = "score"; }),
            "generation: process is 'score', expected noise or flow");
  EXPECT_EQ(refused([](DiffusionOptions& o) { o.process = "flow", o.learned_variance = true; }),
            "train: learned_variance is on, expected off for process flow");
  EXPECT_EQ(refused([](DiffusionOptions& o) { o.shift = 3; }), "train: shift is 3, expected 1 for process noise");
  EXPECT_EQ(refused([](DiffusionOptions& o) { o.logit_std = 2; }),
            "train: logit_std is 2, expected 1 for process noise");
  EXPECT_EQ(refused([](DiffusionOptions& o) { o.process = "flow", o.noise_schedule = "squaredcos_cap_v2"; }),
            "train: noise_schedule is squaredcos_cap_v2, expected linear for process flow");
  EXPECT_EQ(refused([](DiffusionOptions& o) { o.eval_times = 0; }), "train: eval_times is 0, expected 1 to 1000");
  EXPECT_EQ(refused([](DiffusionOptions& o) { o.flip = 2.0; }), "train: flip is 2, expected 0 to 1");
  EXPECT_TRUE(has(refused([](DiffusionOptions& o) { o.fit = "squash"; }), "fit is 'squash'"));
  EXPECT_TRUE(has(refused([](DiffusionOptions& o) { o.variant = "some"; }), "variant is 'some'"));
  EXPECT_TRUE(has(refused([](DiffusionOptions& o) { o.noise_schedule = "cubic"; }), "cubic"));
  EXPECT_TRUE(has(refused([](DiffusionOptions& o) { o.train.batch = 97; }), "expected at most the 96 images"));
  EXPECT_EQ(refused([](DiffusionOptions&) {}), "nothing was thrown");
}

}  // namespace
}  // namespace mhla::train
