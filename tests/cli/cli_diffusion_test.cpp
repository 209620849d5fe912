// mhla train diffusion and mhla eval diffusion as a user runs them, on images made here: a run from start to end, one
// that is interrupted, one that starts from another, and every mistake with its line and exit code.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "mhla/io/codecs/image.h"
#include "mhla/io/json.h"
#include "tests/cli/class_folders.h"
#include "tests/cli/train_fixture.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

class CliDiffusion : public ClassifyFixture {
 protected:
  [[nodiscard]] std::vector<std::string> words(const std::string& out,
                                               const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all{"train", "diffusion", "--out", out};
    const std::vector<std::pair<std::string, std::string>> usual{
        {"--model", "dit_d32"},    {"--data", "fashion-mnist:" + data},
        {"--batch", "16"},         {"--threads", "1"},
        {"--log-every", "2"},      {"--sample-steps", "2"},
        {"--sample-columns", "1"}, {"--eval-times", "2"}};
    for (const auto& [flag, value] : usual)
      if (std::find(more.begin(), more.end(), flag) == more.end()) all = joined(all, {flag, value});
    for (const char* field : {"dim=16", "heads=2", "depth=1"}) all = joined(all, {"--set", field});
    return joined(all, more);
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
  static JsonValue score(const std::string& out, const std::string& weights) {
    const ProgramRun run =
        run_program({"eval", "diffusion", "--run", out, "--weights", weights, "--json", "--threads", "1"});
    EXPECT_EQ(run.code, 0) << run.err;
    return parse_json(lines_of(run.out).at(0), "score");
  }
};

TEST_F(CliDiffusion, FromImagesToAScore) {
  const std::string out = folder.path("run");
  const ProgramRun run = run_program(words(out, {"--epochs", "2", "--sample-every", "4"}));
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_TRUE(has(run.out, "10 steps on cpu, warm-up shortened to 1, tested on 20 images")) << run.out;
  EXPECT_TRUE(has(run.out, "samples  " + out + "/samples/step-00000004.png")) << run.out;
  for (const char* name : {"model.safetensors", "ema.safetensors", "config.json", "train.json", "generation.json",
                           "classes.json", "preprocess.json", "samples/step-00000008.png", "samples/step-00000010.png"})
    EXPECT_TRUE(fs::exists(out + "/" + name)) << name;
  EXPECT_EQ(read_json(out + "/train.json").at("task").as_string(), "diffusion");
  EXPECT_EQ(read_json(out + "/config.json").at("channels").as_int(), 1);
  EXPECT_EQ(read_json(out + "/generation.json").at("space").as_string(), "pixels");
  const Image sheet = read_image(out + "/samples/step-00000010.png");
  EXPECT_EQ(sheet.height, 10 * 34 + 2);  // a row for every class
  const std::vector<JsonValue> steps = logged(out, "step"), evals = logged(out, "eval");
  EXPECT_NEAR(steps.at(0).at("mse").as_double(), 1.0, 0.05);
  EXPECT_LT(steps.back().at("mse").as_double(), steps[0].at("mse").as_double());
  const JsonValue &last = evals.back(), model = score(out, "model"), average = score(out, "ema");
  EXPECT_EQ(model.at("images").as_int(), 20);
  EXPECT_DOUBLE_EQ(model.at("mse").as_double(), last.at("mse").as_double());
  EXPECT_DOUBLE_EQ(model.at("mse_se").as_double(), last.at("mse_se").as_double());
  EXPECT_DOUBLE_EQ(average.at("mse").as_double(), last.at("ema_mse").as_double());
  EXPECT_GT(last.at("mse_se").as_double(), 0.0);
  const ProgramRun text = run_program({"eval", "diffusion", "--run", out});
  const std::string longer = folder.path("longer");
  ASSERT_EQ(run_program(words(longer, {"--epochs", "4", "--seed", "5", "--sample-every", "0"})).code, 0);
  const ProgramRun pair = run_program({"eval", "diffusion", "--run", longer, "--against", out, "--each", "--json"});
  ASSERT_EQ(pair.code, 0) << pair.err;
  const JsonValue both = parse_json(lines_of(pair.out).at(0), "score");
  double sum = 0.0;
  for (const JsonValue& loss : both.at("each").items()) sum += loss.as_double();
  EXPECT_EQ(both.at("each").size(), 20u);
  EXPECT_NEAR(sum / 20, both.at("mse").as_double(), 1e-9);
  EXPECT_NEAR(both.at("difference").as_double(), both.at("mse").as_double() - both.at("against_mse").as_double(), 1e-9);
  EXPECT_LT(both.at("difference").as_double(), 0.0);
  EXPECT_GT(both.at("difference_se").as_double(), 0.0);
  EXPECT_LT(both.at("difference_se").as_double(), both.at("mse_se").as_double());  // the noise is the same
  const std::string few = folder.path("few");
  ASSERT_EQ(run_program(words(few, {"--max-steps", "1", "--test-images", "10", "--sample-every", "0"})).code, 0);
  expect_refused({"eval", "diffusion", "--run", out, "--against", few}, {"which has other held-out images"});
  EXPECT_TRUE(has(text.out, "denoising loss ")) << text.out;
  expect_refused({"eval", "classify", "--run", out}, {"is no run of `mhla train classify`"});
}

TEST_F(CliDiffusion, CtrlCAndKillLeaveARunThatEndsWithTheSameBits) {
  const std::vector<std::string> long_run{"--max-steps", "40", "--checkpoint-every", "5", "--sample-every", "10"};
  const std::string whole = folder.path("whole"), cut = folder.path("cut"), killed = folder.path("killed");
  ASSERT_EQ(run_program(words(whole, long_run)).code, 0);
  const ProgramRun stopped = run_program(words(cut, long_run), {cut + "/checkpoints/step-00000005", SIGINT});
  EXPECT_TRUE(stopped.code == 0 || stopped.code == 1) << stopped.err;  // 0: it was done before the signal came
  run_program(words(killed, long_run), {killed + "/checkpoints/step-00000010", SIGKILL});
  for (const std::string& run : {cut, killed}) {
    const ProgramRun rest = run_program({"train", "diffusion", "--resume", "--out", run});
    EXPECT_EQ(rest.code, 0) << rest.err;
    for (const char* name : {"model.safetensors", "ema.safetensors", "samples/step-00000010.png",
                             "samples/step-00000020.png", "samples/step-00000040.png"})
      EXPECT_TRUE(read_file(run + "/" + name) == read_file(whole + "/" + name)) << run << " " << name;
  }
  expect_refused(words(whole, long_run), {"has a run already"});
  expect_refused({"train", "diffusion", "--resume", "--out", whole, "--process", "flow"},
                 {"process is \"flow\", but the run was started with \"noise\""});
}

TEST_F(CliDiffusion, FlowAndFoldersOfAnySize) {
  const std::string photos = folder.path("photos"), out = folder.path("run");
  write_class_folders(photos, {"cats", "dogs", "owls"}, 10);
  const std::vector<std::string> more{"--data",        photos,        "--process", "flow",   "--set",
                                      "image=[24,40]", "--max-steps", "4",         "--flip", "0.5"};
  const ProgramRun run = run_program(words(out, more));
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_TRUE(has(run.out, "tested on 3 images held out of the training set")) << run.out;
  EXPECT_EQ(read_json(out + "/config.json").at("channels").as_int(), 3);
  EXPECT_FALSE(read_json(out + "/config.json").at("learn_sigma").as_bool());
  EXPECT_EQ(read_json(out + "/classes.json").at(2).as_string(), "owls");
  EXPECT_EQ(read_json(out + "/generation.json").at("process").as_string(), "flow");
  const Image sheet = read_image(out + "/samples/step-00000004.png");
  EXPECT_EQ(sheet.height, 3 * 26 + 2);
  EXPECT_EQ(sheet.width, 42 + 2);
  const JsonValue own = score(out, "model");
  EXPECT_TRUE(own.at("held_out").as_bool());
  EXPECT_DOUBLE_EQ(own.at("mse").as_double(), logged(out, "eval").back().at("mse").as_double());

  // Other images and another attention from its weights.
  const std::string tuned = folder.path("tuned");
  const ProgramRun from =
      run_program({"train",       "diffusion",  "--init",    out,    "--data",         "fashion-mnist:" + data,
                   "--set",       "channels=3", "--process", "flow", "--out",          tuned,
                   "--max-steps", "2",          "--batch",   "8",    "--sample-every", "0",
                   "--threads",   "1"});
  ASSERT_EQ(from.code, 0) << from.err;
  EXPECT_TRUE(has(from.out, "new embeddings of 10 classes, not the 3 of the weights")) << from.out;
  EXPECT_FALSE(fs::exists(tuned + "/samples"));
  expect_refused({"train", "diffusion", "--init", out, "--data", "fashion-mnist:" + data, "--out", folder.path("other"),
                  "--process", "noise", "--set", "learn_sigma=true", "--batch", "8"},
                 {"whose learn_sigma is false, but the network has true"});
}

TEST_F(CliDiffusion, MistakesAreOneLineAndExitCode2) {
  const std::string out = folder.path("run"), photos = folder.path("photos");
  expect_refused(words(out, {"--set", "image=[33,32]"}), {"image has 33 rows, expected a multiple of patch = 2"});
  expect_refused(words(out, {"--set", "channels=4"}), {"channels is 4, expected 1 or 3"});
  expect_refused(words(out, {"--set", "classes=3"}), {"classes is 3, expected the 10 of"});
  expect_refused(words(out, {"--set", "dimm=3"}), {"'dimm' is unknown, nearest is 'dim'"});
  expect_refused(words(out, {"--set", "image=[1000000,32]"}), {"image is 1000000, expected 1 to 16384"});
  expect_refused(words(out, {"--set", "image=[16384,16384]", "--set", "patch=1"}), {"needs at least", "of memory"});
  expect_refused(words(out, {"--model", "dit_t33"}),
                 {"model is 'dit_t33', expected a .json file or one of dit_s_2", "sana_"});
  expect_refused(words(out, {"--attention", "sotfmax"}), {"sotfmax"});
  expect_refused(words(out, {"--variant", "all"}), {"variant is 'all', expected one of none, cpe, gate, both"});
  expect_refused(words(out, {"--attention", "softmax", "--variant", "gate"}), {"gate is set for softmax"});
  expect_refused(words(out, {"--process", "score"}), {"process is 'score', expected noise or flow"});
  expect_refused(words(out, {"--process", "flow", "--learned-variance"}), {"learned_variance is on, expected off"});
  expect_refused(words(out, {"--noise-schedule", "cubic"}), {"cubic"});
  expect_refused(words(out, {"--label-dropout", "1"}), {"label_dropout is 1, expected"});
  expect_refused(words(out, {"--flip", "-1"}), {"flip is -1, expected 0 to 1"});
  expect_refused(words(out, {"--fit", "squash"}), {"fit is 'squash', expected one of pad, resize, center_crop"});
  expect_refused(words(out, {"--batch", "81"}), {"batch is 81, expected at most the 80 images"});
  expect_refused(words(out, {"--test-images", "21"}), {"test_images is 21, expected 0 to the 20"});
  expect_refused(words(out, {"--sample-steps", "0"}), {"sample_steps is 0, expected 1 to 1000"});
  expect_refused(words(out, {"--precision", "f64"}), {"precision is f64, expected f32 or bf16"});
  expect_refused(words(out, {"--cuda-graph"}), {"cuda_graph is on, expected a CUDA device"});
  expect_refused(words(out, {"--init", folder.path("nowhere")}), {"--init is ", "which is not there"});
  write_class_folders(photos + "/train", {"cats", "dogs"}, 4);
  write_class_folders(photos + "/val", {"cats", "doges"}, 2);
  expect_refused(words(out, {"--data", photos}), {"class 'doges' is not among the 2"});
  expect_refused({"eval", "diffusion", "--run", folder.path("nowhere")}, {"is no folder of a run"});
  EXPECT_FALSE(fs::exists(out));  // nothing was written
}

}  // namespace
}  // namespace mhla
