// Text to video as a task on clips made here: what it draws, its loss and its teacher, its paired score, a run that
// resumes to the same bits, models that start from others, and what does not fit together.
#include "mhla/train/video/video_task.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "mhla/data/latent_set_fixture.h"
#include "mhla/io/file.h"
#include "mhla/testing/messages.h"
#include "mhla/train/runs/options_file.h"
#include "mhla/train/tiny_task_fixture.h"
#include "mhla/train/video/video_init.h"
#include "mhla/train/video/video_judge.h"
#include "mhla/train/weights.h"

namespace mhla::train {
namespace {

namespace fs = std::filesystem;

// Clips of a bright square that goes left or right, with their captions; clip 3 of `damaged` ones cannot be read.
VideoSetPtr squares(const std::string& name, int count, unsigned seed, bool damaged = false) {
  MemoryClips clips{name, {.frames = 4, .rows = 8, .columns = 12, .fps = 0}, {}, {}};
  std::mt19937 random(seed);
  for (int i = 0; i < count; ++i) {
    const bool right = random() % 2 == 0;
    std::vector<float> clip;
    for (int c = 0; c < 3; ++c)
      for (int f = 0; f < 4; ++f)
        for (int y = 0; y < 8; ++y)
          for (int x = 0; x < 12; ++x) {
            const int at = right ? 2 * f : 8 - 2 * f;
            clip.push_back(x >= at && x < at + 4 ? 0.8F : -0.6F + static_cast<float>(random() % 100) / 500.0F);
          }
    clips.clips.push_back(damaged && i == 3 ? std::vector<float>() : clip);
    clips.captions.emplace_back(right ? "a square goes right" : "a square goes left");
  }
  return videos_in_memory(std::move(clips));
}

CaptionWords square_words() { return CaptionWords::of({"a square goes right", "a square goes left"}); }

VideoOptions small_video(const std::string& attention = "mhla") {
  VideoOptions o;
  o.model = "wan_d64", o.attention = attention;
  o.network = parse_json(
      R"({"dim": 24, "depth": 3, "heads": 2, "mlp": 32, "text_dim": 6, "text_tokens": 5, "time_channels": 8,
          "blocks": [2, 2, 3]})",
      "n");
  o.train.batch = 8, o.train.max_steps = 12, o.train.threads = 1, o.train.checkpoint_every = 4, o.train.ema = 0.9;
  o.train.seed = 3, o.train.eval_steps = 6;
  o.eval_times = 3, o.sample_every = 6, o.sample_steps = 3, o.sample_clips = 2;
  return o;
}

struct MadeVideo {
  explicit MadeVideo(VideoOptions o = small_video(), bool damaged = false)
      : source(source_of(squares("train", 40, 1, damaged), squares("test", 10, 2), square_words(), 5, o.unshuffle)) {
    check(o);
    network = network_of(o, source);
    options = resolved(o, network, source);
    prepare(options.train);
    task = std::make_unique<VideoTask>(options, source, network);
  }
  VideoSource source;
  WanConfig network;
  VideoOptions options;
  std::unique_ptr<VideoTask> task;
};

void disturb(torch::nn::Module& model, double by = 0.05) {  // the last layer starts with 0
  const torch::NoGradGuard no_gradient;
  torch::manual_seed(11);
  for (const auto& item : model.named_parameters())
    if (item.key().find(".mix") == std::string::npos) item.value().add_(torch::randn_like(item.value()), by);
}

TEST(VideoClips, UnshuffleIsTorchsAndComesBack) {
  const torch::Tensor videos = torch::randn({2, 3, 5, 8, 6});
  const torch::Tensor places = unshuffled(videos, 2);
  EXPECT_EQ(places.sizes().vec(), (std::vector<std::int64_t>{2, 12, 5, 4, 3}));
  const torch::Tensor frames = torch::pixel_unshuffle(videos.transpose(1, 2), 2).transpose(1, 2);
  EXPECT_TRUE(torch::equal(places, frames));
  EXPECT_TRUE(torch::equal(shuffled(places, 2), videos));
}

TEST(VideoTask, BatchesAreFlowMatchingOfTheirClips) {
  MadeVideo made;
  EXPECT_EQ(made.network.channels, 12);
  EXPECT_EQ(made.network.vocab, square_words().rows());
  const TrainBatch batch = made.task->next_batch();
  ASSERT_EQ(batch.inputs.size(), 4u);
  EXPECT_EQ(batch.inputs[0].sizes().vec(), (std::vector<std::int64_t>{8, 12, 4, 4, 6}));
  EXPECT_EQ(batch.inputs[1].sizes().vec(), (std::vector<std::int64_t>{8, 5}));
  const BatchResult first = made.task->forward(batch);
  const torch::Tensor target = batch.inputs[3] - batch.inputs[0];
  EXPECT_NEAR(first.loss.item<double>(), target.square().mean().item<double>(), 1e-5);  // the model answers 0
  // By hand, once it answers something.
  disturb(made.task->model());
  FlowOptions flow;
  flow.shift = 3.0;
  const FlowMatching process(flow);
  const torch::Tensor x_t = process.add_noise(batch.inputs[0], batch.inputs[3], batch.inputs[2]);
  const torch::Tensor out =
      made.task->wan().forward(x_t, process.model_t(batch.inputs[2]).to(torch::kFloat), batch.inputs[1]);
  EXPECT_NEAR(made.task->forward(batch).loss.item<double>(), (target - out).square().mean().item<double>(), 1e-5);
}

TEST(VideoTask, CaptionsAreDroppedToTheEmptyOne) {
  VideoOptions o = small_video();
  o.caption_dropout = 0.25;
  MadeVideo made(o);
  std::int64_t dropped = 0, all = 0;
  for (int i = 0; i < 40; ++i) {
    const torch::Tensor captions = made.task->next_batch().inputs[1];
    for (std::int64_t row = 0; row < captions.size(0); ++row, ++all) {
      const bool empty = captions[row][0].item<std::int64_t>() == CaptionWords::kEmpty;
      if (empty) {
        EXPECT_EQ(captions[row].sum().item<std::int64_t>(), CaptionWords::kEmpty);
      }
      dropped += empty ? 1 : 0;
    }
  }
  EXPECT_NEAR(static_cast<double>(dropped), 0.25 * static_cast<double>(all),
              4 * std::sqrt(0.1875 * static_cast<double>(all)));
}

TEST(VideoTask, TheSameBatchWhereverTheRunGoesOn) {
  MadeVideo whole, rest;
  TrainBatch third;
  JsonValue cursor;
  for (int i = 0; i < 7; ++i) cursor = whole.task->cursor(), third = whole.task->next_batch();  // in the second epoch
  rest.task->seek(cursor);
  const TrainBatch again = rest.task->next_batch();
  for (std::size_t i = 0; i < third.inputs.size(); ++i)
    EXPECT_TRUE(torch::equal(again.inputs[i], third.inputs[i])) << i;
  EXPECT_TRUE(has(message_of([&] { rest.task->seek(cursor.set("items", "others")); }), "has other clips"));
}

TEST(VideoTask, ATeacherSeesTheSameNoise) {
  MadeVideo made;
  disturb(made.task->model());
  const TrainBatch batch = made.task->next_batch();
  const double alone = made.task->forward(batch).loss.item<double>();
  Wan teacher(made.network);
  copy_weights(weights_of(*teacher), weights_of(made.task->wan()), "test");
  made.task->set_teacher(teacher);
  const BatchResult own = made.task->forward(batch);  // its own teacher: no distance
  ASSERT_EQ(own.sums.at(1).first, "teacher_mse");
  EXPECT_NEAR(own.sums[1].second.item<double>(), 0.0, 1e-9);
  EXPECT_NEAR(own.loss.item<double>(), 0.5 * alone, 1e-6);
  disturb(*teacher, 0.1);
  const BatchResult other = made.task->forward(batch);
  EXPECT_GT(other.sums[1].second.item<double>(), 1e-4);
  EXPECT_NEAR(other.loss.item<double>(), 0.5 * alone + 0.5 * other.sums[1].second.item<double>() / 8, 1e-5);
  other.loss.backward();
  for (const torch::Tensor& parameter : teacher->parameters()) EXPECT_FALSE(parameter.grad().defined());
}

TEST(VideoTask, RecomputedBlocksHaveTheSameGradients) {
  MadeVideo kept, again;
  disturb(kept.task->model()), disturb(again.task->model());
  again.task->wan().set_recompute(true);
  kept.task->forward(kept.task->next_batch()).loss.backward();
  again.task->forward(again.task->next_batch()).loss.backward();
  const Weights want = gradients_of(kept.task->wan());
  for (const auto& [name, gradient] : gradients_of(again.task->wan())) {
    ASSERT_TRUE(gradient.defined() && want.at(name).defined()) << name;
    EXPECT_TRUE(torch::allclose(gradient, want.at(name), 1e-5, 1e-8)) << name;
  }
}

TEST(VideoScore, IsOfTheSameNoiseWhateverTheSeedAndTheBatch) {
  EXPECT_EQ(video_times(5), (std::vector<double>{0.1, 0.3, 0.5, 0.7, 0.9}));
  MadeVideo made;
  const Metrics metrics = made.task->evaluate({});
  VideoOptions other = small_video();
  other.train.seed = 99, other.train.batch = 3;
  EXPECT_NEAR(MadeVideo(other).task->evaluate({})[0].second, metrics[0].second, 1e-6);  // every new model answers 0
  other.test_seed = 1;
  EXPECT_GT(std::abs(MadeVideo(other).task->evaluate({})[0].second - metrics[0].second), 1e-4);
  disturb(made.task->model());
  const VideoScore score = video_score(made.task->wan(), *made.source.test, made.options);
  EXPECT_EQ(score.clips, 10);
  double mean = 0, by_time = 0;
  for (const double value : score.each) mean += value / 10;
  for (const double value : score.by_time) by_time += value / 3;
  EXPECT_NEAR(mean, score.mse, 1e-12);
  EXPECT_NEAR(by_time, score.mse, 1e-12);
  // By hand: clip 4 at s = 0.5.
  std::vector<std::string> none;
  const VideoBatch one = made.source.test->read({4}, torch::kCPU, none);
  const torch::Tensor noise = judging_noise(0, 500, {4}, one.x.sizes().slice(1), torch::kCPU);
  const torch::NoGradGuard no_gradient;
  const torch::Tensor out = made.task->wan().forward(0.5 * one.x + 0.5 * noise, torch::full({1}, 500.0F), one.captions);
  VideoOptions middle = made.options;
  middle.eval_times = 1;
  EXPECT_NEAR(video_score(made.task->wan(), *made.source.test, middle).each[4],
              (noise - one.x - out).square().mean().item<double>(), 1e-6);
}

TEST(VideoTask, DamagedClipsAreLeftOutAndCounted) {
  VideoOptions o = small_video();
  MadeVideo made(o, /*damaged=*/true);
  std::int64_t clips = 0;
  for (int i = 0; i < 5; ++i) clips += made.task->next_batch().weight;
  EXPECT_EQ(clips, 39);
  const std::vector<std::string> warnings = made.task->take_warnings();
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_EQ(warnings[0], "left out: train, clip 3: is damaged");
  o.max_damaged = 0;
  MadeVideo strict(o, true);
  EXPECT_TRUE(has(message_of([&] {
                    for (int i = 0; i < 5; ++i) strict.task->next_batch();
                  }),
                  "1 clips cannot be read, expected at most max_damaged = 0"));
}

TrainResult train_video(const fs::path& folder, bool resume, std::int64_t stop_at = -1) {
  MadeVideo made;
  struct Stopped : VideoTask {
    using VideoTask::VideoTask;
    TrainBatch next_batch() override {
      if (count++ == at) ::raise(SIGINT);
      return VideoTask::next_batch();
    }
    std::int64_t count = 0, at = -1;
  };
  prepare(made.options.train);
  Stopped task(made.options, made.source, made.network);
  task.at = stop_at;
  Rows rows;
  return Trainer(task, made.options.train, folder, options_to_json(made.options), rows).run(resume);
}

TEST(VideoTask, ResumesToTheSameBits) {
  const TemporaryRun run;
  EXPECT_EQ(train_video(run.path("whole"), false).step, 12);
  EXPECT_EQ(train_video(run.path("cut"), false, 4).stopped, "SIGINT");
  EXPECT_EQ(train_video(run.path("cut"), true).step, 12);
  for (const char* name :
       {"model.safetensors", "ema.safetensors", "samples/step-00000006.png", "samples/step-00000012.png"})
    EXPECT_TRUE(read_file(run.path("cut") / name) == read_file(run.path("whole") / name)) << name;
  const Image sheet = read_image(run.path("whole") / "samples/step-00000012.png");
  EXPECT_EQ(sheet.height, 2 * (8 + 2) + 2);  // two clips
  EXPECT_EQ(sheet.width, 4 * (12 + 2) + 2);  // four frames
  const GenerationConfig generation = read_generation_config(run.path("whole"), {});
  EXPECT_EQ(generation.process, "flow");
  EXPECT_EQ(generation.unshuffle, 2);
  EXPECT_EQ(generation.shift, 3.0);
  EXPECT_TRUE(CaptionWords::read(run.path("whole")) == square_words());
  EXPECT_EQ(read_wan_config(run.path("whole") / "config.json"), MadeVideo().network);
}

TEST(VideoInit, ASoftmaxModelBecomesTheArms) {
  const TemporaryRun run;
  const fs::path base = run.path("base");
  MadeVideo softmax(small_video("softmax"));
  disturb(softmax.task->model());
  fs::create_directories(base);
  write_tensors(base / "model.safetensors", tensors_of(softmax.task->model()));
  write_file(base / "config.json", write_json(softmax.task->model_config()));
  const InitSource source{"base", base / "model.safetensors", "", base / "config.json", base};
  const Weights theirs = weights_of(softmax.task->wan());
  const auto started = [&](const std::string& attention, const std::string& layers, const std::string& gate,
                           std::vector<std::string>& changes) {
    VideoOptions o = small_video(attention);
    o.layers = layers;
    o.network.set("gate", gate);
    auto made = std::make_unique<MadeVideo>(o);
    changes = start_from(made->task->wan(), source);
    return made;
  };
  std::vector<std::string> changes;
  for (const char* attention : {"mhla", "linear"}) {
    const auto made = started(attention, "all", "none", changes);
    const Weights own = weights_of(made->task->wan());
    for (const auto& [name, value] : theirs) EXPECT_TRUE(torch::equal(own.at(name), value)) << name;
    EXPECT_EQ(
        changes,
        (std::vector<std::string>{str(attention, " attention in 3 of 3 layers, from weights of softmax attention")}));
  }
  const auto hybrid = started("mhla", "every-3rd-kept", "none", changes);
  EXPECT_EQ(hybrid->network.layers, (std::vector<std::int64_t>{1, 2}));
  EXPECT_FALSE(hybrid->task->wan().blocks()[0]->attention()->mix.defined());
  EXPECT_TRUE(has(changes.at(0), "mhla attention in 2 of 3 layers"));
  // A gate that starts open changes nothing.
  const auto plain = started("mhla", "all", "none", changes), gated = started("mhla", "all", "silu", changes);
  const TrainBatch batch = plain->task->next_batch();
  EXPECT_NEAR(plain->task->forward(batch).loss.item<double>(), gated->task->forward(batch).loss.item<double>(), 1e-5);
  // And the other way round, and onto itself.
  MadeVideo again(small_video("softmax"));
  EXPECT_TRUE(start_from(again.task->wan(), source).empty());
  for (const auto& [name, value] : weights_of(again.task->wan())) EXPECT_TRUE(torch::equal(theirs.at(name), value));
  VideoOptions wide = small_video();
  wide.network.set("dim", 36);
  MadeVideo other(wide);
  EXPECT_TRUE(
      has(message_of([&] { start_from(other.task->wan(), source); }), "whose dim is 24, but the network has 36"));
}

TEST(VideoTask, SaysWhatDoesNotFitTogether) {
  const auto refused = [](const std::function<void(VideoOptions&)>& change) {
    VideoOptions o = small_video();
    change(o);
    return message_of([&] { MadeVideo made(o); });
  };
  const auto with = [](const char* key, JsonValue value) {
    return [=](VideoOptions& o) { o.network.set(key, value); };
  };
  EXPECT_EQ(refused([](VideoOptions&) {}), "nothing was thrown");
  EXPECT_TRUE(has(refused(with("channels", 4)), "channels are 4 and 12, expected the 12 of test"));
  EXPECT_TRUE(has(refused(with("vocab", 9)), "vocab is 9, expected 7 for test"));
  EXPECT_TRUE(has(refused(with("patch", parse_json("[1, 2, 4]", "p"))), "expected multiples of the patch 1, 2, 4"));
  EXPECT_TRUE(has(refused(with("blocks", parse_json("[8, 2, 2]", "p"))), "expected at most 4, 2, 3, the tokens"));
  EXPECT_TRUE(has(refused([](VideoOptions& o) { o.attention = "softmax", o.layers = "1"; }), "with softmax attention"));
  EXPECT_TRUE(has(refused([](VideoOptions& o) { o.layers = "1,7"; }), "layers has 7, expected 0 to 2"));
  EXPECT_TRUE(has(refused([](VideoOptions& o) { o.caption_dropout = 2; }), "caption_dropout is 2, expected 0 to 1"));
  EXPECT_TRUE(has(refused([](VideoOptions& o) { o.shift = 0; }), "shift is 0"));
  EXPECT_TRUE(has(refused([](VideoOptions& o) { o.train.batch = 41; }), "expected at most the 40 clips of train"));
  EXPECT_TRUE(has(refused([](VideoOptions& o) { o.eval_times = 0; }), "eval_times is 0"));
  VideoOptions o = small_video();
  o.size = "63x64";
  EXPECT_TRUE(
      has(message_of([&] { open_source(o, 16, {}); }), "size has 63 rows, expected a multiple of unshuffle = 2: 62"));
  o.size = "big";
  EXPECT_TRUE(has(message_of([&] { open_source(o, 16, {}); }), "size is 'big', expected ROWSxCOLUMNS"));
}

TEST(VideoLatents, AreReadWithTheStatesOfTheirCaptions) {
  const TemporaryRun run;
  const MadeLatents made{
      .count = 9, .shard_items = 4, .labels = false, .flipped = false, .captions = true, .video = true};
  make_latent_set(run.path("data/train").string(), made), make_latent_set(run.path("data/val").string(), made);
  VideoOptions o = small_video();
  o.data = run.path("data").string(), o.model = "wan_1_3b";
  const VideoSource source = open_source(o, 512, {});
  EXPECT_TRUE(source.is_latent());
  EXPECT_EQ(source.shape(), (std::vector<std::int64_t>{4, 2, 4, 6}));
  std::vector<std::string> none;
  const VideoBatch batch = source.test->read({3, 5}, torch::kCPU, none);
  EXPECT_EQ(batch.x.sizes().vec(), (std::vector<std::int64_t>{2, 4, 2, 4, 6}));
  EXPECT_EQ(batch.x[0].flatten()[7].item<float>(), 3 + 7 / 16.0F);
  EXPECT_EQ(batch.captions.sizes().vec(), (std::vector<std::int64_t>{2, 5, 2}));
  EXPECT_NE(batch.captions[0][2][0].item<float>(), 0.0F);
  EXPECT_EQ(batch.captions[0].narrow(0, 3, 2).abs().sum().item<float>(), 0.0F);  // of three tokens: the rest is padding
  EXPECT_EQ(source.empty_caption.sizes().vec(), (std::vector<std::int64_t>{1, 5, 2}));
  EXPECT_TRUE(has(message_of([&] { network_of(o, source); }), "and 6 channels, expected the 5 and 2 of"));
  o.network.set("text_dim", 2);
  const WanConfig network = network_of(o, source);
  EXPECT_EQ(network.vocab, 0);
  EXPECT_EQ(network.channels, 4);
  o.train.batch = 4;
  prepare(o.train);
  VideoTask task(resolved(o, network, source), source, network);
  const BatchResult result = task.forward(task.next_batch());
  result.loss.backward();
  EXPECT_TRUE(std::isfinite(result.loss.item<double>()));
  EXPECT_EQ(task.picture_every(1000), 0);  // there is no autoencoder to show them with
}

TEST(VideoJudge, ReadsMotionOffClips) {
  const ClipShape shape{.frames = 6, .rows = 64, .columns = 64, .fps = 0};
  Image garment;
  garment.resize(28, 28, 1);
  std::fill(garment.pixels.begin(), garment.pixels.end(), std::uint8_t{200});
  GarmentScene scene;
  scene.attributes.values = {0, 0, 3, 0, 2}, scene.start = {20, 30};
  torch::Tensor clip = torch::empty({1, 3, 6, 64, 64});
  paint_garment(scene, garment, shape, clip.data_ptr<float>());
  const torch::Tensor ground = torch::tensor({2}, torch::kLong);
  const Motion even = motion_of(clip, ground);
  EXPECT_LT(even.jitter.item<double>(), 0.15);
  EXPECT_LT(even.flicker.item<double>(), 0.02);
  torch::Tensor shaken = clip.clone();
  for (std::int64_t f = 1; f < 6; f += 2)
    shaken.select(2, f).copy_(clip.select(2, f).roll(3, -1) * (f == 3 ? 0.9 : 1.0));
  const Motion uneven = motion_of(shaken, ground);
  EXPECT_NEAR(uneven.jitter.item<double>(), 6.0, 0.5);  // three pixels there and back
  EXPECT_GT(uneven.flicker.item<double>(), even.flicker.item<double>());
}

TEST(VideoJudge, SurvivesItsFolder) {
  const TemporaryRun run;
  const VideoJudge judge;
  const torch::Tensor clips = torch::randn({2, 3, 4, 16, 16});
  const std::vector<std::int64_t> shape{12, 4, 8, 8};
  save_judge(*judge, shape, 5, run.path("judge"));
  ASSERT_TRUE(has_judge(run.path("judge")));
  const VideoJudge again = load_judge(run.path("judge"), shape);
  const torch::NoGradGuard no_gradient;
  const torch::Tensor features = judge.ptr()->features(clips);
  EXPECT_EQ(features.sizes().vec(), (std::vector<std::int64_t>{2, 128}));
  EXPECT_TRUE(torch::equal(again.ptr()->features(clips), features));
  const std::vector<torch::Tensor> said = judge.ptr()->read(features);
  for (std::size_t i = 0; i < said.size(); ++i) EXPECT_EQ(said[i].size(1), GarmentAttributes::kValues[i]);
  EXPECT_TRUE(has(message_of([&] { load_judge(run.path("judge"), {12, 4, 8, 9}); }), "is a judge of clips of shape"));
}

}  // namespace
}  // namespace mhla::train
