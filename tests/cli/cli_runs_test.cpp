// The folder of a run as a user meets it again: nothing finished is written over, --overwrite removes a run and nothing
// else, a full disk leaves no empty folders, and a file that is missing is named.
#include <algorithm>
#include <filesystem>

#include "mhla/io/json.h"
#include "tests/cli/train_fixture.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

class CliRuns : public ClassifyFixture {};
class CliLmRuns : public LmFixture {};

TEST_F(CliRuns, ResumeDoesNotStartAnewOverWeights) {
  const std::string out = folder.path("run"), model = folder.path("model");
  ASSERT_EQ(run_program(words(out, {"--max-steps", "4"})).code, 0);
  ASSERT_EQ(run_program({"convert", out, model}).code, 0);
  fs::remove_all(out + "/checkpoints");
  for (const std::string& at : {out, model}) {
    const std::string weights = file_text(at + "/model.safetensors");
    const std::string log = fs::exists(at + "/log.jsonl") ? file_text(at + "/log.jsonl") : "";
    expect_refused(words(at, {"--max-steps", "4", "--resume"}),
                   {"has model.safetensors but no checkpoint", "--init " + at, "--overwrite"});
    expect_refused(words(at, {"--max-steps", "4"}), {"has a run already (model.safetensors)", "--overwrite"});
    EXPECT_EQ(file_text(at + "/model.safetensors"), weights);
    if (!log.empty()) {
      EXPECT_EQ(file_text(at + "/log.jsonl"), log);
    }
    EXPECT_EQ(fs::exists(at + "/train.json"), at == out);
  }
}

TEST_F(CliRuns, ARunSaysItsTask) {
  const std::string out = folder.path("run"), options = out + "/train.json";
  ASSERT_EQ(run_program(words(out, {"--max-steps", "2"})).code, 0);
  const std::string named = file_text(options), line = "  \"task\": \"classify\",\n";
  ASSERT_NE(named.find(line), std::string::npos) << named;
  ASSERT_EQ(run_program(words(folder.path("again"), {"--config", options, "--max-steps", "2"})).code, 0);
  expect_refused({"train", "lm", "--out", folder.path("lm"), "--config", options},
                 {options + ": 'task' is classify, expected lm"});
  expect_refused({"eval", "lm", "--run", out}, {out + " is no run of `mhla train lm`"});
  // A folder made before there was a name opens and goes on.
  std::string unnamed = named;
  write_file(options, unnamed.erase(unnamed.find(line), line.size()));
  EXPECT_EQ(run_program({"eval", "classify", "--run", out}).code, 0);
  EXPECT_EQ(run_program(words(out, {"--max-steps", "4", "--resume"})).code, 0);
  EXPECT_NE(file_text(options).find(line), std::string::npos);
}

TEST_F(CliRuns, OptionsOfEveryCommandMayStandInAFile) {
  const std::string out = folder.path("run"), file = folder.path("eval.json");
  ASSERT_EQ(run_program(words(out, {"--max-steps", "2"})).code, 0);
  write_file(file, "{\"run\": \"" + out + "\", \"batch\": 4, \"threads\": 1}");
  const ProgramRun by_file = run_program({"eval", "classify", "--config", file});
  EXPECT_EQ(by_file.code, 0) << by_file.err;
  expect_refused({"eval", "classify", "--config", file, "--run", folder.path("none")}, {"none"});  // flags override it
  write_file(file, "{\"run\": \"" + out + "\", \"batch\": -4}");  // with the checks of the flags
  expect_refused({"eval", "classify", "--config", file}, {"--batch is -4"});
  write_file(file, std::string("{\"bacth\": 4}"));
  expect_refused({"eval", "classify", "--config", file}, {"'bacth' is unknown, nearest is 'batch'"});
}

TEST_F(CliRuns, OverwriteStartsAnewAndRemovesOnlyTheRun) {
  const std::string out = folder.path("run"), fresh = folder.path("fresh");
  ASSERT_EQ(run_program(words(out, {"--max-steps", "6", "--checkpoint-every", "2", "--ema", "0.5"})).code, 0);
  write_file(out + "/notes.txt", std::string("mine"));
  write_file(out + "/checkpoints/notes.txt", std::string("mine"));
  const std::string weights = file_text(out + "/model.safetensors");
  // Options or data that are refused remove nothing.
  expect_refused(words(out, {"--overwrite", "--lr", "-1"}), {"lr is -1"});
  expect_refused({"train", "classify", "--out", out, "--overwrite", "--data", folder.path("none")}, {"none"});
  expect_refused(words(out, {"--overwrite", "--resume"}), {"expected one of them"});
  EXPECT_EQ(file_text(out + "/model.safetensors"), weights);
  EXPECT_TRUE(fs::exists(out + "/checkpoints/step-00000006"));
  const ProgramRun anew = run_program(words(out, {"--max-steps", "4", "--seed", "3", "--overwrite"}));
  ASSERT_EQ(anew.code, 0) << anew.err;
  ASSERT_EQ(run_program(words(fresh, {"--max-steps", "4", "--seed", "3"})).code, 0);
  EXPECT_EQ(file_text(out + "/model.safetensors"), file_text(fresh + "/model.safetensors"));
  EXPECT_EQ(file_text(out + "/notes.txt"), "mine");
  EXPECT_EQ(file_text(out + "/checkpoints/notes.txt"), "mine");
  EXPECT_FALSE(fs::exists(out + "/ema.safetensors"));
  EXPECT_FALSE(fs::exists(out + "/checkpoints/step-00000006"));
  int events = 0;
  for (const auto& entry : fs::directory_iterator(out))
    events += entry.path().filename().string().rfind("events.out.tfevents.", 0) == 0 ? 1 : 0;
  EXPECT_EQ(events, 1);
  EXPECT_EQ(run_program(words(folder.path("none"), {"--max-steps", "2", "--overwrite"})).code, 0);  // no run yet
}

// A working folder while it lives, for programs that are started too.
class WorkingFolder {
 public:
  explicit WorkingFolder(const std::string& path) : kept_(fs::current_path()) { fs::current_path(path); }
  ~WorkingFolder() { fs::current_path(kept_); }
  WorkingFolder(const WorkingFolder&) = delete;
  WorkingFolder& operator=(const WorkingFolder&) = delete;

 private:
  fs::path kept_;
};

TEST_F(CliRuns, DataIsFoundFromAnotherFolder) {
  fs::create_directory(folder.path("other"));
  const std::string out = folder.path("run");
  {
    const WorkingFolder here(folder.path());
    std::vector<std::string> begin = words("run", {"--max-steps", "2"});
    *(std::find(begin.begin(), begin.end(), "--data") + 1) = "fashion-mnist:data";
    ASSERT_EQ(run_program(begin).code, 0);
  }
  JsonValue saved = read_json(out + "/train.json");
  EXPECT_EQ(saved.at("data").as_string(), "fashion-mnist:data");
  EXPECT_EQ(saved.at("origin").at("data").as_string(), "fashion-mnist:" + data);
  {
    const WorkingFolder elsewhere(folder.path("other"));
    const ProgramRun eval = run_program({"eval", "classify", "--run", "../run"});
    EXPECT_EQ(eval.code, 0) << eval.err;
    const ProgramRun rest = run_program({"train", "classify", "--resume", "--out", "../run", "--max-steps", "3"});
    EXPECT_EQ(rest.code, 0) << rest.err;
    const ProgramRun again = run_program({"train", "classify", "--config", "../run/train.json", "--out", "again"});
    EXPECT_EQ(again.code, 0) << again.err;
    // Data that moved is given anew, from here.
    fs::rename(data, folder.path("other/moved"));
    expect_refused({"train", "classify", "--resume", "--out", "../run", "--max-steps", "4"}, {data});
    const ProgramRun moved = run_program(
        {"train", "classify", "--resume", "--out", "../run", "--max-steps", "4", "--data", "fashion-mnist:moved"});
    EXPECT_EQ(moved.code, 0) << moved.err;
    EXPECT_EQ(read_json(out + "/train.json").at("origin").at("data").as_string(),
              "fashion-mnist:" + folder.path("other/moved"));
  }
  // A run made before there was an origin: from the folder it was started in.
  fs::rename(folder.path("other/moved"), data);
  JsonValue old = JsonValue::object();
  for (const JsonValue::Member& member : saved.members())
    if (member.key != "origin") old.set(member.key, member.value);
  write_file(out + "/train.json", write_json(old));
  const WorkingFolder here(folder.path());
  EXPECT_EQ(run_program({"eval", "classify", "--run", "run"}).code, 0);
}

TEST_F(CliRuns, TheBestWeightsAreEvaluatedByName) {
  const std::string out = folder.path("run");
  const ProgramRun run = run_program(words(out, {"--epochs", "3", "--checkpoint-minutes", "0"}));
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_TRUE(has(run.out, "best  top1 ")) << run.out;
  double best = -1;
  for (const std::string& line : lines_of(file_text(out + "/log.jsonl"))) {
    const JsonValue row = parse_json(line, "log");
    if (row.at("kind").as_string() == "best") best = row.at("value").as_double();
  }
  const ProgramRun eval =
      run_program({"eval", "classify", "--run", out, "--weights", "best", "--json", "--threads", "1"});
  ASSERT_EQ(eval.code, 0) << eval.err;
  const JsonValue score = parse_json(lines_of(eval.out).at(0), "score");
  EXPECT_DOUBLE_EQ(score.at("top1").as_double(), best);
  EXPECT_EQ(score.at("weights").as_string(), out + "/best.safetensors");
  fs::remove(out + "/best.safetensors");
  expect_refused({"eval", "classify", "--run", out, "--weights", "best"}, {"has no best.safetensors"});
}

TEST_F(CliRuns, AMissingTrainJsonIsNamedAsTheCause) {
  const std::string out = folder.path("run");
  ASSERT_EQ(run_program(words(out, {"--max-steps", "2"})).code, 0);
  fs::remove(out + "/train.json");
  const std::string copy = out + "/checkpoints/step-00000002/train.json is a copy of it";
  expect_refused({"train", "classify", "--resume", "--out", out}, {out + "/train.json: is missing", copy});
  fs::remove(out + "/config.json");
  expect_refused({"eval", "classify", "--run", out}, {out + "/train.json is missing", copy});
  fs::remove_all(out + "/checkpoints");
  expect_refused({"eval", "classify", "--run", out}, {"has weights but neither train.json nor config.json"});
  expect_refused({"eval", "classify", "--run", data}, {"has no train.json, expected the folder of a training"});
}

TEST_F(CliRuns, AFullDiskIsExitCode1AndLeavesNoEmptyFolders) {
  for (const rlim_t bytes : {rlim_t{0}, rlim_t{8192}}) {  // nothing; options and log but no weights
    const std::string top = folder.path("full" + std::to_string(bytes)), out = top + "/run";
    const ProgramRun run = [&] {
      const FullDisk disk(bytes);
      return run_program(words(out, {"--max-steps", "2"}));
    }();
    EXPECT_EQ(run.code, 1) << run.err;
    EXPECT_EQ(fs::exists(top), bytes > 0);
    EXPECT_FALSE(fs::exists(out + "/checkpoints"));
  }
}

TEST_F(CliLmRuns, AFullDiskIsExitCode1AndLeavesNoEmptyFolders) {
  for (const rlim_t bytes : {rlim_t{0}, rlim_t{65536}}) {  // no tokens; tokens but no checkpoint
    const std::string top = folder.path("full" + std::to_string(bytes)), out = top + "/run";
    const ProgramRun run = [&] {
      const FullDisk disk(bytes);
      return run_program(words(out, {"--max-steps", "2"}));
    }();
    EXPECT_EQ(run.code, 1) << run.err;
    EXPECT_EQ(fs::exists(top), bytes > 0);
    EXPECT_FALSE(fs::exists(out + "/checkpoints"));
  }
}

TEST_F(CliLmRuns, TextAndTokensAreFoundFromAnotherFolder) {
  fs::create_directory(folder.path("other"));
  {
    const WorkingFolder here(folder.path());
    std::vector<std::string> begin = words("run", {"--max-steps", "2", "--tokens", "tokens"});
    *(std::find(begin.begin(), begin.end(), "--data") + 1) = "text.jsonl";
    ASSERT_EQ(run_program(begin).code, 0);
  }
  const JsonValue saved = read_json(folder.path("run/train.json"));
  EXPECT_EQ(saved.at("tokens").as_string(), "tokens");
  EXPECT_EQ(saved.at("origin").at("tokens").as_string(), folder.path("tokens"));
  EXPECT_EQ(saved.at("origin").at("data").as_string(), data);
  EXPECT_EQ(saved.at("origin").at("tokenizer").as_string(), "bytes");
  const WorkingFolder elsewhere(folder.path("other"));
  const ProgramRun eval = run_program({"eval", "lm", "--run", "../run"});
  EXPECT_EQ(eval.code, 0) << eval.err;
  EXPECT_FALSE(has(eval.err, "trained on")) << eval.err;
  const ProgramRun rest = run_program({"train", "lm", "--resume", "--out", "../run", "--max-steps", "3"});
  EXPECT_EQ(rest.code, 0) << rest.err;
  EXPECT_TRUE(fs::is_empty(folder.path("other")));
}

TEST_F(CliLmRuns, TheBestWeightsWriteText) {
  const std::string out = folder.path("run");
  ASSERT_EQ(run_program(words(out, {"--max-steps", "8", "--eval-steps", "4"})).code, 0);
  const ProgramRun text =
      run_program({"generate", "--run", out, "--weights", "best", "--prompt", "to", "--max-tokens", "2"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_TRUE(has(text.err, "best.safetensors")) << text.err;
  EXPECT_EQ(run_program({"eval", "lm", "--run", out, "--weights", "best"}).code, 0);
}

TEST_F(CliLmRuns, OverwriteTakesAnotherTokenizerWhereTheTokensAreElsewhere) {
  const std::string out = folder.path("run"), tokens = folder.path("tokens");
  ASSERT_EQ(run_program(words(out, {"--max-steps", "2", "--tokens", tokens})).code, 0);
  ASSERT_EQ(
      run_program({"data", "tokenize", "--data", data, "--tokenizer", "train:280", "--out", folder.path("bpe")}).code,
      0);
  const std::vector<std::string> other{
      "train",     "lm",    "--out",          out,     "--data", folder.path("bpe"), "--model", "mhla_10m",    "--set",
      "dim=32",    "--set", "layers=1",       "--set", "mlp=64", "--context",        "64",      "--max-steps", "2",
      "--threads", "1",     "--warmup-steps", "0"};
  expect_refused(other, {"has a run already"});
  const ProgramRun anew = run_program(joined(other, {"--overwrite"}));
  EXPECT_EQ(anew.code, 0) << anew.err;
  EXPECT_EQ(run_program({"generate", "--run", out, "--prompt", "to", "--max-tokens", "2"}).code, 0);
  EXPECT_TRUE(fs::exists(tokens + "/dataset.json"));
}

}  // namespace
}  // namespace mhla
