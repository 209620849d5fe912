// mhla train video and mhla eval video as a user runs them, on moving garments made of images made here and on a folder
// of videos: a base, its arms, a teacher, a judge, runs that are interrupted, and every mistake with its line.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "mhla/io/codecs/image.h"
#include "mhla/io/json.h"
#include "tests/cli/train_fixture.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

class CliVideo : public ClassifyFixture {
 protected:
  [[nodiscard]] std::vector<std::string> words(const std::string& out,
                                               const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all{"train", "video", "--out", out};
    const std::vector<std::pair<std::string, std::string>> usual{
        {"--model", "wan_d64"},  {"--data", "moving-garments:" + data},
        {"--batch", "4"},        {"--threads", "1"},
        {"--frames", "4"},       {"--size", "16x16"},
        {"--test-clips", "8"},   {"--log-every", "2"},
        {"--eval-times", "2"},   {"--sample-steps", "2"},
        {"--sample-clips", "2"}, {"--max-steps", "6"}};
    for (const auto& [flag, value] : usual)
      if (std::find(more.begin(), more.end(), flag) == more.end()) all = joined(all, {flag, value});
    for (const char* field : {"dim=24", "heads=2", "depth=3", "mlp=32", "blocks=[2,2,2]"})
      if (std::find(more.begin(), more.end(), "--init") == more.end()) all = joined(all, {"--set", field});
    if (std::find(more.begin(), more.end(), "--init") != more.end())  // the network comes with it
      all.erase(
          std::remove_if(all.begin(), all.end(), [](const std::string& w) { return w == "--model" || w == "wan_d64"; }),
          all.end());
    return joined(all, more);
  }
  static JsonValue score(const std::string& out, const std::vector<std::string>& more = {}) {
    const ProgramRun run = run_program(joined({"eval", "video", "--run", out, "--json", "--threads", "1"}, more));
    EXPECT_EQ(run.code, 0) << run.err;
    return parse_json(lines_of(run.out).at(0), "score");
  }
  static std::vector<JsonValue> logged(const std::string& out, const std::string& kind) {
    std::vector<JsonValue> rows;
    std::ifstream log(out + "/log.jsonl");
    for (std::string line; std::getline(log, line);) {
      const JsonValue row = parse_json(line, "log");
      if (row.at("kind").as_string() == kind) rows.push_back(row);
    }
    return rows;
  }
};

TEST_F(CliVideo, ABaseItsArmsATeacherAndAJudge) {
  const std::string base = folder.path("base"), arm = folder.path("arm"), taught = folder.path("taught");
  const ProgramRun run = run_program(words(base, {"--attention", "softmax", "--sample-every", "3", "--ema", "0.9"}));
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_TRUE(has(run.out, "6 steps on cpu, warm-up shortened to 0, tested on 8 clips")) << run.out;
  for (const char* name : {"model.safetensors", "ema.safetensors", "config.json", "train.json", "generation.json",
                           "words.json", "samples/step-00000003.png", "samples/step-00000006.png"})
    EXPECT_TRUE(fs::exists(base + "/" + name)) << name;
  EXPECT_EQ(read_json(base + "/train.json").at("task").as_string(), "video");
  EXPECT_EQ(read_json(base + "/generation.json").at("unshuffle").as_int(), 2);
  EXPECT_EQ(read_json(base + "/words.json").size(), 35u);
  const JsonValue last = logged(base, "eval").back(), model = score(base);
  EXPECT_DOUBLE_EQ(model.at("mse").as_double(), last.at("mse").as_double());
  EXPECT_DOUBLE_EQ(score(base, {"--weights", "ema"}).at("mse").as_double(), last.at("ema_mse").as_double());
  EXPECT_LT(last.at("mse").as_double(), 1.6);
  EXPECT_EQ(model.at("by_time").size(), 2u);

  const ProgramRun hybrid = run_program(
      words(arm, {"--init", base, "--attention", "mhla", "--layers", "every-3rd-kept", "--sample-every", "0"}));
  ASSERT_EQ(hybrid.code, 0) << hybrid.err;
  EXPECT_TRUE(has(hybrid.out, "mhla attention in 2 of 3 layers, from weights of softmax attention")) << hybrid.out;
  EXPECT_EQ(write_json(read_json(arm + "/config.json").at("layers")), "[1, 2]");
  const JsonValue pair = score(arm, {"--against", base, "--each"});
  EXPECT_EQ(pair.at("each").size(), 8u);
  EXPECT_NEAR(pair.at("difference").as_double(), pair.at("mse").as_double() - model.at("mse").as_double(), 1e-9);
  ASSERT_EQ(run_program(words(taught, {"--init", base, "--attention", "mhla", "--teacher", base, "--recompute",
                                       "--sample-every", "0", "--max-steps", "2"}))
                .code,
            0);
  EXPECT_GE(logged(taught, "step").at(0).at("teacher_mse").as_double(), 0.0);

  const std::string judge = folder.path("judge");
  const std::vector<std::string> judging{"--judge", judge, "--judge-steps", "2", "--samples", "4", "--steps", "2"};
  const JsonValue judged = score(base, judging).at("judged");
  EXPECT_EQ(judged.at("attributes").size(), 5u);
  EXPECT_EQ(judged.at("attributes").at(2).at("name").as_string(), "direction");
  EXPECT_TRUE(fs::exists(judge + "/judge.safetensors"));
  EXPECT_EQ(write_json(score(base, judging).at("judged")), write_json(judged));  // the judge that is there
  const ProgramRun text = run_program(joined({"eval", "video", "--run", base}, judging));
  EXPECT_TRUE(has(text.out, "Frechet distance ")) << text.out;
  expect_refused({"eval", "video", "--run", base, "--judge", judge, "--samples", "9"},
                 {"at most the 8 held-out clips"});
  expect_refused({"eval", "diffusion", "--run", base}, {"is a run of `mhla train video`"});
  expect_refused({"train", "video", "--resume", "--out", base, "--shift", "5"},
                 {"shift is 5.0, but the run was started with 3.0"});
  expect_refused(words(folder.path("x"), {"--init", base, "--set", "dim=32"}),
                 {"whose dim is 24, but the network has 32"});
}

TEST_F(CliVideo, ARunIsSampledFrom) {
  const std::string run = folder.path("run"), clip = folder.path("clip.y4m"), state = folder.path("state.safetensors");
  ASSERT_EQ(run_program(words(run, {"--attention", "mhla", "--sample-every", "0", "--ema", "0.9"})).code, 0);
  const auto sample = [&](const std::string& out, const std::vector<std::string>& more = {}) {
    return joined(
        {"sample", "video", "--model", run, "--steps", "3", "--guidance", "2", "--threads", "1", "--out", out},
        joined({"--prompt", "a color1 class3 moves dir2 fast on a ground0"}, more));
  };
  const ProgramRun made = run_program(sample(clip));
  ASSERT_EQ(made.code, 0) << made.err;
  const std::string header = file_text(clip).substr(0, 40);
  EXPECT_TRUE(has(header, "W16 H16 F16:1")) << header;  // the clips of the training
  const JsonValue settings = read_json(clip + ".json");
  EXPECT_EQ(settings.at("frames").as_string(), "4");
  EXPECT_EQ(settings.at("shift").as_string(), "3.0");
  EXPECT_TRUE(has(settings.at("model").as_string(), "ema.safetensors"));

  const std::string again = folder.path("again.y4m"), other = folder.path("other.y4m");
  ASSERT_EQ(run_program(sample(again, {"--save-latents", state})).code, 0);
  ASSERT_EQ(run_program(sample(again, {"--resume", state, "--overwrite"})).code, 0);
  EXPECT_TRUE(read_file(again) == read_file(clip));
  ASSERT_EQ(run_program(sample(other, {"--weights", "model", "--frames", "6", "--size", "16x24"})).code, 0);
  EXPECT_TRUE(has(file_text(other).substr(0, 40), "W24 H16")) << "another size";

  expect_refused(sample(other, {"--overwrite", "--tile"}), {"--tile is given, but the model makes pixels"});
  expect_refused(sample(other, {"--overwrite", "--text-cache", "x"}),
                 {"--text-cache is given, but the model has words"});
  expect_refused(sample(other, {"--overwrite", "--size", "17x16"}), {"--size is 17x16, expected multiples of 4"});
  expect_refused(sample(other, {"--overwrite", "--prompt", "a purple hat"}), {"the model has no word 'purple'"});
}

TEST_F(CliVideo, CtrlCAndKillLeaveARunThatEndsWithTheSameBits) {
  const std::vector<std::string> long_run{"--max-steps", "40", "--checkpoint-every", "5", "--sample-every", "20",
                                          "--ema",       "0.9"};
  const std::string whole = folder.path("whole"), cut = folder.path("cut"), killed = folder.path("killed");
  ASSERT_EQ(run_program(words(whole, long_run)).code, 0);
  const ProgramRun stopped = run_program(words(cut, long_run), {cut + "/checkpoints/step-00000005", SIGINT});
  EXPECT_TRUE(stopped.code == 0 || stopped.code == 1) << stopped.err;  // 0: it was done before the signal came
  run_program(words(killed, long_run), {killed + "/checkpoints/step-00000010", SIGKILL});
  for (const std::string& run : {cut, killed}) {
    const ProgramRun rest = run_program({"train", "video", "--resume", "--out", run});
    EXPECT_EQ(rest.code, 0) << rest.err;
    for (const char* name :
         {"model.safetensors", "ema.safetensors", "samples/step-00000020.png", "samples/step-00000040.png"})
      EXPECT_TRUE(read_file(run + "/" + name) == read_file(whole + "/" + name)) << run << " " << name;
  }
}

TEST_F(CliVideo, BenchByAttentionFramesAndSize) {
  const ProgramRun run = run_program({"bench", "model", "--model", "wan_d64", "--attention", "mhla,hybrid,softmax",
                                      "--pass", "fwd", "--batch", "1", "--frames", "4", "--size", "16x32", "--min-time",
                                      "0.01", "--threads", "1", "--json"});
  ASSERT_EQ(run.code, 0) << run.err;
  std::vector<JsonValue> rows;
  for (const std::string& line : lines_of(run.out)) rows.push_back(parse_json(line, "row"));
  ASSERT_EQ(rows.size(), 3u) << run.out;
  for (const JsonValue& row : rows) {
    EXPECT_EQ(row.at("tokens").as_int(), 4 * 4 * 8);
    EXPECT_GT(row.at("ms").as_double(), 0.0);
  }
  EXPECT_EQ(rows[1].at("attention").as_string(), "hybrid");
  EXPECT_LT(rows[1].at("parameters").as_int(), rows[0].at("parameters").as_int());  // fewer mixing matrices
  EXPECT_LT(rows[2].at("parameters").as_int(), rows[1].at("parameters").as_int());
  expect_refused({"bench", "model", "--model", "wan_1_3b", "--attention", "mhla", "--frames", "80"},
                 {"--frames is 80, expected 4 n + 1", "81 is the nearest"});
  expect_refused({"bench", "model", "--model", "wan_1_3b", "--attention", "mhla", "--size", "480x801"},
                 {"a side of 801, expected multiples of 16", "800 is the nearest"});
}

TEST_F(CliVideo, AFolderOfVideos) {
  const std::string clips = folder.path("clips"), out = folder.path("run");
  fs::create_directory(clips);
  for (int i = 0; i < 10; ++i) {
    std::string video = "YUV4MPEG2 W20 H16 F8:1 Cmono\n";
    for (int f = 0; f < 4; ++f) {
      video += "FRAME\n";
      for (int p = 0; p < 320; ++p) video += static_cast<char>(16 + (p * (i + 1) + 40 * f) % 200);
    }
    write_file(clips + "/" + std::to_string(i) + ".y4m", video);
    write_file(clips + "/" + std::to_string(i) + ".txt",
               i % 2 == 0 ? std::string("Even stripes.") : std::string("odd stripes"));
  }
  const ProgramRun run = run_program(
      words(out, {"--data", clips, "--hold-out", "0.2", "--test-clips", "0", "--fps", "8", "--sample-every", "0"}));
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_TRUE(has(run.out, "tested on 2 clips held out of the training set")) << run.out;
  EXPECT_EQ(write_json(read_json(out + "/words.json")), R"(["<empty>", "stripes", "even", "odd"])");
  EXPECT_EQ(score(out).at("clips").as_int(), 2);
  expect_refused({"eval", "video", "--run", out, "--judge", folder.path("j")}, {"expected a run on moving-garments"});
  expect_refused(words(folder.path("a"), {"--data", clips, "--frames", "5"}), {"clip"});
  fs::remove(clips + "/3.txt");
  expect_refused(words(folder.path("b"), {"--data", clips}), {"3.y4m: has no caption, expected 3.txt beside it"});
  expect_refused(words(folder.path("c"), {"--data", folder.path("none")}), {"expected a folder of videos"});
  expect_refused(words(folder.path("d"), {"--size", "15x16"}),
                 {"size has 15 rows, expected a multiple of unshuffle = 2: 14"});
  expect_refused(words(folder.path("e"), {"--teacher", folder.path("none")}), {"is no folder of a run"});
  EXPECT_FALSE(fs::exists(folder.path("e") + "/train.json"));
}

}  // namespace
}  // namespace mhla
