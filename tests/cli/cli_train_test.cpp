// mhla train classify and mhla eval classify as a user runs them, on images made here: a run from start to end, one
// that Ctrl-C cuts in two, a disk that fills, and every mistake with its line and exit code.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "mhla/io/file.h"
#include "mhla/io/json.h"
#include "tests/cli/train_fixture.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

class CliTrain : public ClassifyFixture {};

TEST_F(CliTrain, FromImagesToAScore) {
  const std::string out = folder.path("run");
  const ProgramRun run = run_program(words(out, {"--epochs", "2", "--ema", "0.5", "--checkpoint-every", "4"}));
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_TRUE(has(run.out, "10 steps on cpu")) << run.out;
  EXPECT_TRUE(has(run.out, "step 2/10  epoch 0.40  loss ")) << run.out;
  EXPECT_TRUE(has(run.out, "eval  step 10  epoch 2.00  loss ")) << run.out;
  EXPECT_FALSE(has(run.out + run.err, "\r"));  // no bar in a pipe
  for (const char* name : {"model.safetensors", "ema.safetensors", "config.json", "train.json", "log.jsonl",
                           "checkpoints/step-00000008", "checkpoints/step-00000010"})
    EXPECT_TRUE(fs::exists(out + "/" + name)) << name;
  const JsonValue saved = read_json(out + "/train.json");
  EXPECT_EQ(saved.at("augment").as_string(), "small");  // resolved
  EXPECT_EQ(saved.at("batch").as_int(), 16);

  const ProgramRun eval = run_program({"eval", "classify", "--run", out, "--json", "--threads", "1"});
  ASSERT_EQ(eval.code, 0) << eval.err;
  const JsonValue score = parse_json(lines_of(eval.out).at(0), "score");
  EXPECT_EQ(score.at("images").as_int(), 20);
  EXPECT_EQ(score.at("confusion").size(), 10u);
  EXPECT_GT(score.at("images_per_s").as_double(), 0.0);
  JsonValue last;
  for (const std::string& line : lines_of([&] {
         std::ifstream log(out + "/log.jsonl");
         return std::string(std::istreambuf_iterator<char>(log), {});
       }())) {
    const JsonValue row = parse_json(line, "log");
    if (row.at("kind").as_string() == "eval") last = row;
  }
  EXPECT_DOUBLE_EQ(score.at("top1").as_double(), last.at("top1").as_double());
  EXPECT_DOUBLE_EQ(score.at("top5").as_double(), last.at("top5").as_double());
  const ProgramRun average = run_program({"eval", "classify", "--run", out, "--weights", "ema", "--json"});
  ASSERT_EQ(average.code, 0) << average.err;
  EXPECT_DOUBLE_EQ(parse_json(lines_of(average.out).at(0), "score").at("top1").as_double(),
                   last.at("ema_top1").as_double());
  const ProgramRun text = run_program({"eval", "classify", "--run", out});
  EXPECT_TRUE(has(text.out, "top-1 ")) << text.out;
  EXPECT_TRUE(has(text.out, "true \\ said")) << text.out;
}

// What doctor says of the CPU decides.
TEST_F(CliTrain, InBf16WhereTheCpuHasIt) {
  const std::string out = folder.path("run");
  const ProgramRun run = run_program(words(out, {"--max-steps", "4", "--precision", "bf16"}));
  if (!cpu_has_bf16()) {
    EXPECT_EQ(run.code, 2);
    EXPECT_TRUE(has(run.err, "precision is bf16, expected f32 on cpu: this CPU has no AVX-512 BF16")) << run.err;
    EXPECT_FALSE(fs::exists(out + "/model.safetensors"));
    return;
  }
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(read_json(out + "/train.json").at("precision").as_string(), "bf16");
  const ProgramRun eval = run_program({"eval", "classify", "--run", out});
  EXPECT_EQ(eval.code, 0) << eval.err;
}

TEST_F(CliTrain, CtrlCSavesAndResumeEndsWithTheSameBits) {
  const std::vector<std::string> long_run{"--max-steps", "60", "--checkpoint-every", "5"};
  const std::string whole = folder.path("whole"), cut = folder.path("cut");
  ASSERT_EQ(run_program(words(whole, long_run)).code, 0);
  const ProgramRun stopped = run_program(words(cut, long_run), {cut + "/checkpoints/step-00000005", SIGINT});
  if (stopped.code != 0) {  // 0: it was done before the signal came
    ASSERT_EQ(stopped.code, 1) << stopped.err;
    const ProgramRun refused = run_program(words(cut, long_run));
    EXPECT_EQ(refused.code, 2);
    EXPECT_TRUE(has(refused.err, "has a run already")) << refused.err;
    const ProgramRun unfinished = run_program({"eval", "classify", "--run", cut});
    EXPECT_EQ(unfinished.code, 0) << unfinished.err;
    EXPECT_TRUE(has(unfinished.err, "the run is not at its end")) << unfinished.err;
    const ProgramRun rest = run_program({"train", "classify", "--resume", "--out", cut});  // options are those saved
    EXPECT_EQ(rest.code, 0) << rest.err;
    EXPECT_TRUE(has(rest.out, "going on from ")) << rest.out;
  }
  EXPECT_TRUE(read_file(cut + "/model.safetensors") == read_file(whole + "/model.safetensors"));
}

TEST_F(CliTrain, CtrlCOnATerminalLeavesNoBarBehind) {
  const std::string out = folder.path("run");
  const ProgramRun run = run_on_terminal(words(out, {"--max-steps", "20000", "--checkpoint-every", "5"}),
                                         out + "/checkpoints/step-00000005");
  EXPECT_EQ(run.code, 1) << run.out;
  const std::size_t end = run.out.rfind("mhla: train: stopped by SIGINT");
  ASSERT_NE(end, std::string::npos) << run.out;
  ASSERT_TRUE(has(run.out.substr(0, end), "] ")) << run.out;  // a bar
  const std::string before = run.out.substr(0, end);
  EXPECT_EQ(before.substr(before.rfind('\r')), "\r\x1b[K") << before;  // nothing stands on the line of the message
}

// `| tee log` dies of the Ctrl-C that is to save the run, `| head` after its last line.
TEST_F(CliTrain, ARunOutlivesTheReaderOfItsText) {
  const std::string out = folder.path("run");
  const ProgramRun run = run_program(words(out, {"--max-steps", "6"}), {}, Reader::kIsGone);
  EXPECT_EQ(run.code, 1) << run.err;
  EXPECT_TRUE(has(run.err, "could not write to stdout")) << run.err;
  EXPECT_TRUE(fs::exists(out + "/model.safetensors"));
  EXPECT_EQ(run_program({"eval", "classify", "--run", out}).code, 0);
}

// By TensorBoard's own reader, where MHLA_TENSORBOARD_PYTHON, or else python3, has one: the numbers of the log.
TEST_F(CliTrain, TensorBoardReadsTheEvents) {
  const char* given = std::getenv("MHLA_TENSORBOARD_PYTHON");
  const std::string python = given != nullptr ? given : "python3";
  if (std::system((python + " -c 'import tensorboard' >/dev/null 2>&1").c_str()) != 0)
    GTEST_SKIP() << python << " has no tensorboard";
  const std::string out = folder.path("run");
  ASSERT_EQ(run_program(words(out, {"--epochs", "2"})).code, 0);
  const std::string script = folder.path("read.py");
  std::ofstream(script) << R"(
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1])
events.Reload()
rows = [json.loads(line) for line in open(sys.argv[1] + "/log.jsonl")]
for kind, tag, key in (("step", "train/loss", "loss"), ("step", "train/lr", "lr"), ("eval", "eval/top1", "top1")):
    want = [(row["step"], row[key]) for row in rows if row["kind"] == kind]
    got = [(event.step, event.value) for event in events.Scalars(tag)]
    assert len(want) > 1 and len(got) == len(want), (tag, got, want)
    for (step, value), (at, expected) in zip(got, want):
        assert step == at and abs(value - expected) <= 1e-6 * abs(expected), (tag, step, value, at, expected)
)";
  EXPECT_EQ(std::system((python + " " + script + " " + out).c_str()), 0);
}

TEST_F(CliTrain, AFullDiskIsExitCode1AndLeavesTheCheckpoints) {
  const std::string out = folder.path("run");
  ASSERT_EQ(run_program(words(out, {"--max-steps", "4", "--checkpoint-every", "2"})).code, 0);
  const ProgramRun run = [&] {
    const FullDisk disk(8192);  // less than the weights
    return run_program({"train", "classify", "--resume", "--out", out, "--max-steps", "8", "--checkpoint-every", "2"});
  }();
  EXPECT_EQ(run.code, 1) << run.err;
  EXPECT_TRUE(has(run.err, "could not be written: File too large")) << run.err;
  EXPECT_TRUE(has(run.err, "last good checkpoint: " + out + "/checkpoints/step-00000004")) << run.err;
  EXPECT_EQ(run_program({"train", "classify", "--resume", "--out", out, "--max-steps", "8"}).code, 0);
}

TEST_F(CliTrain, TimesWholeModels) {
  const std::vector<std::string> bench{"bench", "model",  "--model",    "vit_demo", "--batch",  "2", "--threads",
                                       "1",     "--json", "--min-time", "0.01",     "--blocks", "2"};
  const auto with = [&](std::vector<std::string> more) {
    std::vector<std::string> all = bench;
    all.insert(all.end(), more.begin(), more.end());
    return run_program(all);
  };
  const ProgramRun run = with({"--attention", "mhla,plain,softmax"});
  ASSERT_EQ(run.code, 0) << run.err;
  const std::vector<std::string> rows = lines_of(run.out);
  ASSERT_EQ(rows.size(), 6u) << run.out;  // forward and a training step
  for (const std::string& line : rows) {
    const JsonValue row = parse_json(line, "row");
    EXPECT_GT(row.at("images_per_s").as_double(), 0.0) << line;
    EXPECT_EQ(row.at("M").as_int(), row.at("attention").as_string() == "softmax" ? 1 : 4) << line;
    EXPECT_GT(row.at("peak_mib").as_double(), 0.0) << line;
  }
  EXPECT_TRUE(has(with({"--attention", "sofmax"}).err, "softmax"));
  EXPECT_EQ(with({"--attention", "sofmax"}).code, 2);
  const ProgramRun partly = with({"--attention", "sofmax,linear", "--pass", "fwd"});  // a mistake ends the command
  EXPECT_EQ(partly.code, 2);
  EXPECT_EQ(partly.out, "");
  EXPECT_EQ(with({"--pass", "backward"}).code, 2);
}

TEST_F(CliTrain, MistakesAreOneLineAndExitCode2) {
  const std::string out = folder.path("run");
  const auto config = [&](const std::string& text) {
    write_file(folder.path("config.json"), text);
    return words(out, {"--config", folder.path("config.json")});
  };
  expect_refused(config(R"({"warmup_step": 3})"),
                 {"config.json", "'warmup_step' is unknown, nearest is 'warmup_steps'"});
  expect_refused(config(R"({"lr": "fast"})"), {"config.json", "'lr'"});
  expect_refused(config("{"), {"config.json", "line 1"});
  expect_refused(config("[1]"), {"config.json: is no object, expected one of options"});
  expect_refused(config(R"({"network": 5})"), {"config.json: 'network': is no object"});
  expect_refused(config(R"({"network": {"model": "deit_base"}})"), {"model is chosen by --model"});
  expect_refused(words(out, {"--config", folder.path("none.json")}), {"none.json"});
  expect_refused(words(out, {"--lr", "fast"}), {"--lr is 'fast', expected a number"});
  expect_refused(words(out, {"--epochs", "1.5"}), {"--epochs is '1.5', expected a whole number"});
  expect_refused(words(out, {"--set", "lepe"}), {"--set is 'lepe', expected KEY=VALUE"});
  expect_refused(words(out, {"--set", "leppe=5"}), {"'leppe' is unknown, nearest is 'lepe'"});
  expect_refused(words(out, {"--set", "model=deit_base"}), {"model is chosen by --model"});
  expect_refused(words(out, {"--epochs", "9223372036854775807"}),
                 {"epochs is 9223372036854775807, expected at most 1844674407370955161 of 5 batches"});
  expect_refused(words(out, {"--lr", "-1"}), {"lr is -1, expected a number above 0"});
  expect_refused(words(out, {"--attention", "sotfmax"}), {"sotfmax"});
  expect_refused(words(out, {"--device", "tpu"}), {"device is 'tpu', expected cpu, cuda or cuda:N"});
  expect_refused(words(out, {"--precision", "f64"}), {"precision is f64, expected f32 or bf16"});
  expect_refused({"train", "classify", "--out", out, "--data", "fashion-mnist:" + folder.path("nowhere")},
                 {folder.path("nowhere")});
  expect_refused(words("/dev/null/run"), {"/dev/null/run", "Not a directory"});
  expect_refused({"train", "classify", "--model", "vit_demo"}, {"--out is required"});
  expect_refused({"eval", "classify", "--run", folder.path("nowhere")}, {"is no folder of a run"});
  EXPECT_FALSE(fs::exists(out));  // nothing was written
  fs::create_directory(folder.path("cut"));
  write_idx(folder.path("cut"), "train", 80, 100);
  write_idx(folder.path("cut"), "t10k", 20);
  expect_refused({"train", "classify", "--out", out, "--data", "fashion-mnist:" + folder.path("cut")},
                 {"train-images-idx3-ubyte"});
}

TEST_F(CliTrain, OtherDataAndModelsWithoutARun) {
  const std::string out = folder.path("run"), model = folder.path("model");
  ASSERT_EQ(run_program(words(out, {"--max-steps", "4"})).code, 0);
  const auto top1 = [&](const std::string& run, const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"eval", "classify", "--run", run, "--json", "--threads", "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramRun eval = run_program(arguments);
    EXPECT_EQ(eval.code, 0) << eval.err;
    return parse_json(lines_of(eval.out).at(0), "score").at("loss").as_double();
  };
  // The same images under another name: normalised as in training.
  EXPECT_EQ(read_json(out + "/train.json").at("normalize").as_string(), "fashion-mnist");
  EXPECT_DOUBLE_EQ(top1(out, {"--data", "mnist:" + data}), top1(out, {}));
  // A model alone says nothing of data, and a run is not written over.
  ASSERT_EQ(run_program({"convert", out, model}).code, 0);
  expect_refused({"eval", "classify", "--run", model}, {"is a model without a run, expected --data"});
  EXPECT_DOUBLE_EQ(top1(model, {"--data", "fashion-mnist:" + data}), top1(out, {}));
  const auto before = read_file(out + "/model.safetensors");
  expect_refused({"convert", model, out}, {"is the folder of a run"});
  EXPECT_TRUE(read_file(out + "/model.safetensors") == before);
  expect_refused({"eval", "classify", "--run", out, "--weights", "ema"}, {"has no average of its weights"});
  expect_refused(words(folder.path("none"), {"--repeats", "0"}), {"repeats is 0"});
  EXPECT_FALSE(fs::exists(folder.path("none")));
}

TEST_F(CliTrain, ImagesMayMoveBetweenTwoPartsOfARun) {
  const std::string out = folder.path("run"), moved = folder.path("moved");
  ASSERT_EQ(run_program(words(out, {"--max-steps", "3"})).code, 0);
  fs::rename(data, moved);
  const ProgramRun rest = run_program(
      {"train", "classify", "--resume", "--out", out, "--data", "fashion-mnist:" + moved, "--max-steps", "5"});
  EXPECT_EQ(rest.code, 0) << rest.err;
  EXPECT_EQ(read_json(out + "/train.json").at("data").as_string(), "fashion-mnist:" + moved);
  write_idx(moved, "train", 96);
  expect_refused({"train", "classify", "--resume", "--out", out, "--max-steps", "7"},
                 {"has other labels than the data"});
}

TEST_F(CliTrain, WhatARunLearnsCannotChangeWhenItGoesOn) {
  const std::string out = folder.path("run");
  ASSERT_EQ(run_program(words(out, {"--max-steps", "2"})).code, 0);
  expect_refused({"train", "classify", "--resume", "--out", out, "--lr", "0.5"},
                 {"lr is 0.5, but the run was started with 0.001", "train.json"});
  expect_refused({"train", "classify", "--resume", "--out", out, "--set", "lepe=3"},
                 {"network is ", "but the run was started with"});
  write_file(out + "/checkpoints/step-00000002/model.safetensors", std::string("damaged"));
  expect_refused({"train", "classify", "--resume", "--out", out},
                 {"step-00000002: damaged: model.safetensors has 7 bytes", "no other checkpoint is sound"});
  write_file(out + "/model.safetensors", std::string("damaged"));
  expect_refused({"eval", "classify", "--run", out}, {"model.safetensors"});
}

TEST_F(CliTrain, WeightsThatAreNoNumbersAreNamed) {
  const std::string out = folder.path("run"), file = out + "/model.safetensors";
  ASSERT_EQ(run_program(words(out, {"--max-steps", "1"})).code, 0);
  const std::vector<std::byte> bytes = read_file(file);
  const std::string good(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::string nan("\0\0\xc0\x7f", 4), huge("\xff\xff\x7f\x7f", 4);
  for (const std::string& bad : {nan, huge}) {  // huge: the largest float, which overflows in products
    std::string text = good;
    for (std::size_t at = text.size() - 400; at < text.size(); at += 4) text.replace(at, 4, bad);
    write_file(file, text);
    for (const std::vector<std::string>& command :
         {std::vector<std::string>{"eval", "classify", "--run", out},
          std::vector<std::string>{"analyze", "--run", out, "--out", folder.path("page")}}) {
      const ProgramRun run = run_program(command);
      EXPECT_EQ(run.code, 2) << run.err;
      EXPECT_EQ(lines_of(run.err).size(), 1u) << run.err;
      EXPECT_TRUE(has(run.err, "the weights in " + file + " give NaN or infinite values")) << run.err;
    }
  }
}

TEST_F(CliTrain, ClassNamesThatCannotBeUsedAreNamed) {
  const std::string out = folder.path("run");
  ASSERT_EQ(run_program(words(out, {"--max-steps", "1"})).code, 0);
  write_file(out + "/classes.json", std::string());
  expect_refused({"eval", "classify", "--run", out}, {"classes.json is empty, expected the names of 10 classes"});
  expect_refused({"train", "classify", "--resume", "--out", out, "--max-steps", "2"}, {"classes.json is empty"});
  write_file(out + "/classes.json", std::string("[]"));
  expect_refused({"eval", "classify", "--run", out}, {"classes.json has 0 names, expected those of the 10 classes"});

  for (const char* name : {"cat", "caf\xe9"}) {
    const fs::path inside = fs::path(folder.path("own")) / name;
    fs::create_directories(inside);
    write_file(inside / "1.png", std::string("no picture"));
  }
  expect_refused({"train", "classify", "--model", "vit_demo", "--data", "folder:" + folder.path("own"), "--out",
                  folder.path("other")},
                 {"the name of the class folder 'caf\\xe9' is not UTF-8"});
  EXPECT_FALSE(fs::exists(folder.path("other")));
}

TEST_F(CliTrain, MoreThreadsThanCoresAreNotStarted) {
  const ProgramRun run = run_program({"train",       "classify",
                                      "--model",     "vit_demo",
                                      "--data",      "fashion-mnist:" + data,
                                      "--out",       folder.path("run"),
                                      "--batch",     "16",
                                      "--max-steps", "2",
                                      "--threads",   "1024",
                                      "--set",       "dims=[12]",
                                      "--set",       "heads=[2]",
                                      "--set",       "depths=[1]"});
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_TRUE(has(run.err, " used, not 1024: this process may use ")) << run.err;
  EXPECT_LT(run.seconds, 30.0);
}

}  // namespace
}  // namespace mhla
