// mhla train lm and mhla eval lm as a user runs them, on text made here: a run from text to perplexity, one that is
// stopped and goes on, whole models timed, names in and out, and mistakes with their line and exit code.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>

#include "mhla/io/file.h"
#include "mhla/io/json.h"
#include "tests/cli/train_fixture.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

class CliLm : public LmFixture {};

TEST_F(CliLm, FromTextToPerplexity) {
  const std::string out = folder.path("run");
  const ProgramRun run = run_program(words(out, {"--max-steps", "30", "--log-every", "10", "--eval-steps", "20"}));
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_TRUE(has(run.out, "tokens of bytes (257) from ")) << run.out;
  EXPECT_TRUE(has(run.out, "perplexity ")) << run.out;
  EXPECT_TRUE(has(run.out, " tokens/s")) << run.out;
  EXPECT_TRUE(has(run.out, "mfu ")) << run.out;
  EXPECT_TRUE(has(run.out, "eval  step 20  ")) << run.out;
  for (const char* name : {"model.safetensors", "config.json", "train.json", "tokenizer.json", "tokens/dataset.json"})
    EXPECT_TRUE(fs::exists(out + "/" + name)) << name;

  const ProgramRun eval = run_program({"eval", "lm", "--run", out, "--json", "--threads", "1", "--bucket", "16"});
  ASSERT_EQ(eval.code, 0) << eval.err;
  const JsonValue row = parse_json(lines_of(eval.out).at(0), "row");
  EXPECT_EQ(row.at("length").as_int(), 64);
  EXPECT_EQ(row.at("length_policy").as_string(), "error");
  EXPECT_EQ(row.at("buckets").size(), 4u);
  EXPECT_LT(row.at("perplexity").as_double(), 20.0);
  const ProgramRun text = run_program({"eval", "lm", "--run", out, "--context", "4096", "--stride", "2048", "--packing",
                                       "concatenate", "--length-policy", "extend"});
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_TRUE(has(text.out, "length policy extend (extend: tokens 0 to 4095, 256 chunks of 16)")) << text.out;
  // Other text, with the tokenizer of the run.
  write_file(folder.path("other.txt"), std::string("to be or not to be, that is the question"));
  const std::vector<std::string> other{"eval", "lm", "--run", out, "--data", folder.path("other.txt"), "--json"};
  const std::string temporary = folder.path("tmp");
  fs::create_directory(temporary);
  setenv("TMPDIR", temporary.c_str(), 1);
  const ProgramRun passing = run_program(other);
  unsetenv("TMPDIR");
  ASSERT_EQ(passing.code, 0) << passing.err;
  EXPECT_TRUE(fs::is_empty(temporary));
  const JsonValue passed = parse_json(lines_of(passing.out).at(0), "row");
  EXPECT_EQ(passed.at("data").as_string(), folder.path("other.txt"));
  EXPECT_EQ(passed.at("tokens").as_int(), 41);
  std::vector<std::string> tokens = other;
  tokens.insert(tokens.end(), {"--tokens", folder.path("other")});
  const ProgramRun told = run_program(tokens);
  ASSERT_EQ(told.code, 0) << told.err;
  const JsonValue kept = parse_json(lines_of(told.out).at(0), "row");
  EXPECT_EQ(kept.at("tokens").as_int(), 41);
  EXPECT_EQ(kept.at("loss").as_double(), passed.at("loss").as_double());
  const ProgramRun novel = run_program({"eval", "lm", "--run", out, "--data", "sample", "--eval-tokens", "512"});
  EXPECT_EQ(novel.code, 0) << novel.err;
  EXPECT_TRUE(has(novel.out, " of sample\n")) << novel.out;
  ASSERT_EQ(run_program(tokens).code, 0);  // the tokens are there
  fs::rename(folder.path("other.txt"), folder.path("moved.txt"));
  std::replace(tokens.begin(), tokens.end(), folder.path("other.txt"), folder.path("moved.txt"));
  EXPECT_EQ(run_program(tokens).code, 0);
  write_file(folder.path("moved.txt"), std::string("another text"));
  expect_refused(tokens, {"eval lm: " + folder.path("other") + " has the tokens of " + folder.path("other.txt"),
                          "(1 file of 40 bytes", "(1 file of 12 bytes"});

  // A copy of the model has its tokenizer.
  ASSERT_EQ(run_program({"convert", out, folder.path("ours"), "--to", "ours"}).code, 0);
  for (const char* name : {"/tokenizer.json", "/tokenizer.fingerprint"})
    EXPECT_TRUE(fs::exists(folder.path("ours") + name) &&
                read_file(folder.path("ours") + name) == read_file(out + name))
        << name;
  EXPECT_EQ(run_program({"generate", "--run", folder.path("ours"), "--prompt", "to", "--max-tokens", "2"}).code, 0);
  // Under published names and back: the same perplexity, in batches of the run, because products of oneDNN round by
  // their number of rows on some CPUs.
  ASSERT_EQ(run_program({"convert", out, folder.path("published.safetensors"), "--to", "published"}).code, 0);
  const ProgramRun back = run_program(
      {"convert", folder.path("published.safetensors"), folder.path("back"), "--config", out + "/config.json"});
  ASSERT_EQ(back.code, 0) << back.err;
  EXPECT_TRUE(read_file(folder.path("back/model.safetensors")).size() > 0);
  fs::copy_file(out + "/tokenizer.json", folder.path("back/tokenizer.json"), fs::copy_options::overwrite_existing);
  const ProgramRun again = run_program({"eval", "lm", "--run", folder.path("back"), "--data", out + "/tokens",
                                        "--context", "64", "--batch", "4", "--json", "--threads", "1"});
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_DOUBLE_EQ(parse_json(lines_of(again.out).at(0), "row").at("loss").as_double(), row.at("loss").as_double());
}

TEST_F(CliLm, StoppedItGoesOnWithTheSameBits) {
  const std::vector<std::string> long_run{"--max-steps", "40", "--checkpoint-every", "5"};
  const std::string whole = folder.path("whole"), cut = folder.path("cut");
  ASSERT_EQ(run_program(words(whole, long_run)).code, 0);
  const ProgramRun stopped = run_program(words(cut, long_run), {cut + "/checkpoints/step-00000005", SIGTERM});
  if (stopped.code != 0) {  // 0: it was done before the signal came
    ASSERT_EQ(stopped.code, 1) << stopped.err;
    const ProgramRun rest = run_program({"train", "lm", "--resume", "--out", cut});
    EXPECT_EQ(rest.code, 0) << rest.err;
  }
  EXPECT_TRUE(read_file(cut + "/model.safetensors") == read_file(whole + "/model.safetensors"));
}

// As little as can be said: one text, no flag about its parts.
TEST_F(CliLm, TrainsOnASingleText) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += i % 2 == 0 ? "to be\n" : "or not\n";
  write_file(folder.path("one.txt"), text);
  std::vector<std::string> all = words(folder.path("one"), {"--max-steps", "2"});
  *(std::find(all.begin(), all.end(), "--data") + 1) = folder.path("one.txt");
  const auto valid = std::find(all.begin(), all.end(), "--valid");
  all.erase(valid, valid + 2);
  const ProgramRun run = run_program(all);
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_TRUE(has(run.out, "one document, so its last ")) << run.out;
  EXPECT_TRUE(has(run.out, "eval  step 2  ")) << run.out;
  // Tokens that only moved, then others of the same kind.
  fs::rename(folder.path("one/tokens"), folder.path("moved"));
  const std::vector<std::string> resume{
      "train", "lm", "--resume", "--out", folder.path("one"), "--data", folder.path("moved")};
  std::vector<std::string> on = resume;
  on.insert(on.end(), {"--max-steps", "4"});
  const ProgramRun rest = run_program(on);
  EXPECT_EQ(rest.code, 0) << rest.err;
  fs::remove_all(folder.path("moved"));
  ASSERT_EQ(run_program({"data", "tokenize", "--data", data, "--out", folder.path("moved")}).code, 0);
  on.back() = "6";
  expect_refused(on, {"train: " + folder.path("moved") + " has other tokens than the data of the run"});
}

TEST_F(CliLm, AShortRunHasAShortWarmUp) {
  std::vector<std::string> all = words(folder.path("run"), {"--max-steps", "20"});
  const auto warmup = std::find(all.begin(), all.end(), "--warmup-steps");
  all.erase(warmup, warmup + 2);
  const ProgramRun run = run_program(all);
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_TRUE(has(run.out, "20 steps on cpu, warm-up shortened to 2")) << run.out;
  EXPECT_EQ(read_json(folder.path("run/train.json")).at("warmup_steps").as_int(), 2);
  *(std::find(all.begin(), all.end(), "--out") + 1) = folder.path("long");
  expect_refused(joined(all, {"--warmup-steps", "100"}),
                 {"warmup_steps is 100, expected at most the 20 steps of the run"});
}

TEST_F(CliLm, LearnsToRecallAndIsAskedAgain) {
  const std::string out = folder.path("recall");
  const std::vector<std::string> recall{"train",         "lm",       "--data",         "mqar",
                                        "--out",         out,        "--model",        "mhla_10m",
                                        "--attention",   "mhla",     "--set",          "dim=32",
                                        "--set",         "layers=1", "--set",          "mlp=64",
                                        "--set",         "chunk=8",  "--set",          "short_conv=4",
                                        "--context",     "32",       "--mqar-pairs",   "2",
                                        "--mqar-vocab",  "16",       "--mqar-items",   "640",
                                        "--batch",       "16",       "--threads",      "1",
                                        "--lr",          "0.01",     "--warmup-steps", "5",
                                        "--eval-tokens", "2048",     "--epochs",       "2",
                                        "--log-every",   "40"};
  const ProgramRun run = run_program(recall);
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_TRUE(has(run.out, " answers/s")) << run.out;
  EXPECT_TRUE(has(run.out, " tokens/s")) << run.out;
  EXPECT_FALSE(fs::exists(out + "/tokenizer.json"));
  double told = -1;
  const std::vector<std::byte> log = read_file(out + "/log.jsonl");
  for (const std::string& line : lines_of({reinterpret_cast<const char*>(log.data()), log.size()})) {
    const JsonValue row = parse_json(line, "log");
    if (row.at("kind").as_string() == "eval") told = row.at("accuracy").as_double();
  }
  // Asked for the same sequences by the task: the same answers, with the run's own pairs, ids and length.
  const ProgramRun same =
      run_program({"eval", "lm", "--run", out, "--task", "mqar", "--items", "64", "--threads", "1", "--json"});
  ASSERT_EQ(same.code, 0) << same.err;
  const JsonValue row = parse_json(lines_of(same.out).at(0), "row");
  EXPECT_EQ(row.at("length").as_int(), 32);
  EXPECT_EQ(row.at("pairs").as_int(), 2);
  EXPECT_EQ(row.at("vocab").as_int(), 16);
  EXPECT_NEAR(row.at("figures").at("acc").as_double(), told, 1.5 / 128);  // but for a tie
  EXPECT_GT(told, 0.25);                                                  // of eight values
  const ProgramRun other = run_program({"eval", "lm", "--run", out, "--task", "mqar", "--lengths", "16,32",
                                        "--mqar-pairs", "4", "--items", "8", "--json"});
  ASSERT_EQ(other.code, 0) << other.err;
  EXPECT_EQ(parse_json(lines_of(other.out).at(1), "row").at("pairs").as_int(), 4);
  // It has no text.
  expect_refused({"eval", "lm", "--run", out}, {"was trained on mqar, whose ids are no text"});
  expect_refused({"generate", "--run", out, "--prompt", "a"}, {"was trained on mqar, whose ids are no text"});
  expect_refused({"eval", "lm", "--run", out, "--task", "passkey"}, {"trained on ids that are no text"});
  const auto changed = [&](const std::string& flag, const std::string& value) {
    std::vector<std::string> all = recall;
    *(std::find(all.begin(), all.end(), "--out") + 1) = folder.path("refused");
    *(std::find(all.begin(), all.end(), flag) + 1) = value;
    return all;
  };
  expect_refused(changed("--mqar-pairs", "9"), {"mqar: length is 32, expected at least 36 for 9 pairs"});
  expect_refused(changed("--set", "vocab=8"), {"vocab is 8, expected at least the 16 of mqar"});
  EXPECT_FALSE(fs::exists(folder.path("refused/train.json")));
}

TEST_F(CliLm, TimesLanguageModels) {
  const ProgramRun run =
      run_program({"bench", "model", "--model", "mhla_10m", "--attention", "mhla,gla", "--context", "64", "--batch",
                   "1", "--pass", "fwd,train,decode", "--min-time", "0.01", "--threads", "1", "--json"});
  ASSERT_EQ(run.code, 0) << run.err;
  const std::vector<std::string> rows = lines_of(run.out);
  ASSERT_EQ(rows.size(), 6u) << run.out;
  for (const std::string& line : rows) {
    const JsonValue row = parse_json(line, "row");
    EXPECT_GT(row.at("tokens_per_s").as_double(), 0.0) << line;
    EXPECT_GT(row.at("of_roof").as_double(), 0.0) << line;
  }
}

// A token waits for the weights of its products, whatever part of the program multiplies.
TEST_F(CliLm, SaysWhereADecodeStepGoes) {
  const ProgramRun run =
      run_program({"bench", "model", "--model", "mhla_30m", "--attention", "mhla", "--context", "64", "--batch", "1",
                   "--pass", "decode", "--min-time", "0.01", "--threads", "1", "--profile", "--json"});
  ASSERT_EQ(run.code, 0) << run.err;
  const JsonValue profile = parse_json(lines_of(run.out).at(0), "row").at("profile");
  EXPECT_GT(profile.at("products").as_double(), 0.5 * profile.at("ms").as_double()) << run.out;
  EXPECT_GT(profile.at("attention").as_double(), 0.0) << run.out;
}

TEST_F(CliLm, MistakesAreOneLineAndExitCode2) {
  const std::string out = folder.path("run");
  const auto text = [](const std::string& to, const std::string& from, const std::string& tokenizer) {
    return std::vector<std::string>{"train", "lm", "--out", to, "--data", from, "--tokenizer", tokenizer};
  };
  expect_refused(words(out, {"--attention", "mala"}), {"attention is 'mala', expected one of mhla, softmax"});
  expect_refused(words(out, {"--packing", "loose"}), {"packing is 'loose'"});
  expect_refused(words(out, {"--set", "dimm=3"}), {"'dimm' is unknown, nearest is 'dim'"});
  expect_refused(words(out, {"--set", "heads=5"}), {"dim is 32, expected a multiple of heads = 5"});
  expect_refused(text(out, folder.path("nowhere"), "bytes"), {folder.path("nowhere")});
  expect_refused(text(out, data, "nothing.json"), {"nothing.json"});
  expect_refused(words(out, {"--precision", "f64"}), {"precision is f64, expected f32 or bf16"});
  expect_refused({"eval", "lm", "--run", folder.path("nowhere")}, {"is no folder of a run"});
  expect_refused({"bench", "model", "--model", "deit_tiny", "--pass", "decode"}, {"expected a language model"});
  write_file(folder.path("empty.txt"), std::string());
  expect_refused(text(out, folder.path("empty.txt"), "bytes"), {"empty.txt"});
  EXPECT_FALSE(fs::exists(out + "/train.json"));
}

TEST_F(CliLm, WhatWouldSpoilARunIsRefused) {
  const std::string out = folder.path("run");
  const auto replaced = [](std::vector<std::string> all, const std::string& flag, const std::string& value) {
    *(std::find(all.begin(), all.end(), flag) + 1) = value;
    return all;
  };
  ASSERT_EQ(run_program(replaced(words(out, {"--max-steps", "4"}), "--valid", "0")).code, 0);
  const auto fingerprint = read_file(out + "/tokenizer.fingerprint");
  // A finished run, another tokenizer: not a file of it changes.
  expect_refused({"train", "lm", "--out", out, "--data", data, "--tokenizer", "train:300"}, {"has a run already"});
  EXPECT_TRUE(read_file(out + "/tokenizer.fingerprint") == fingerprint);
  EXPECT_EQ(run_program({"generate", "--run", out, "--prompt", "to", "--max-tokens", "2"}).code, 0);
  // Its tokens instead of others.
  const std::string tokens = folder.path("pieces");
  ASSERT_EQ(run_program({"data", "tokenize", "--data", data, "--tokenizer", "train:280", "--out", tokens}).code, 0);
  const std::string moved = folder.path("moved");
  ASSERT_EQ(run_program(words(moved, {"--max-steps", "4", "--tokens", folder.path("set")})).code, 0);
  fs::remove_all(folder.path("set"));
  fs::copy(tokens, folder.path("set"));
  expect_refused({"train", "lm", "--resume", "--out", moved, "--max-steps", "8"}, {"another tokenizer"});
  expect_refused({"eval", "lm", "--run", moved}, {"another tokenizer"});
  fs::remove_all(folder.path("set"));
  expect_refused({"eval", "lm", "--run", moved}, {"are not at ", "any more"});
  expect_refused({"eval", "lm", "--run", out, "--data", folder.path("none"), "--tokens", folder.path("new")},
                 {"which is not there"});
  write_file(folder.path("other.txt"), std::string("to be or not to be"));
  expect_refused({"eval", "lm", "--run", out, "--data", folder.path("other.txt"), "--tokens", out + "/tokens"},
                 {"has the tokens of " + data});
  // A tokenizer that would not be used: the tokens are there, in --data or --tokens.
  const std::string beside = folder.path("beside");
  expect_refused(replaced(words(beside), "--data", tokens),
                 {"train: tokenizer is bytes, but " + tokens + " has the tokens of another (bpe of "});
  expect_refused(replaced(words(beside, {"--tokens", tokens}), "--tokenizer", "train:300"),
                 {"train: tokenizer is train:300, but " + tokens + " has the tokens of another"});
  EXPECT_FALSE(fs::exists(beside));
  for (const std::string& same : {std::string("train:280"), tokens + "/tokenizer.json"}) {
    fs::remove_all(beside);
    const ProgramRun run = run_program(
        replaced(replaced(replaced(words(beside, {"--max-steps", "2"}), "--data", tokens), "--tokenizer", same),
                 "--valid", "0"));
    EXPECT_EQ(run.code, 0) << run.err;
  }
  expect_refused({"eval", "lm", "--run", out, "--data", out + "/tokens", "--tokens", folder.path("new")},
                 {"tokens is " + folder.path("new"), "is a folder of tokens already"});
  expect_refused(replaced(replaced(words(folder.path("part")), "--data", tokens), "--tokenizer", ""),
                 {"train: valid is 0.1, but " + tokens + " has tokens made with 0, expected none or that one"});
  // Tokens that changed on the disk, to ones that the vocabulary has.
  const std::string shard = tokens + "/train-00000.tokens";
  const std::vector<std::byte> bytes = read_file(shard);
  std::string damaged(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  damaged[damaged.size() - 2] = static_cast<char>(damaged[damaged.size() - 2] ^ 1);
  write_file(shard, damaged);
  std::vector<std::string> again =
      replaced(replaced(replaced(words(folder.path("spoilt")), "--data", tokens), "--tokenizer", ""), "--valid", "0");
  again.insert(again.end(), {"--max-steps", "2"});
  expect_refused(again, {"train-00000.tokens: the checksum is wrong, the token shard is damaged"});
  expect_refused({"eval", "lm", "--run", beside, "--data", tokens}, {"the checksum is wrong"});
  again.push_back("--no-check-tokens");
  EXPECT_EQ(run_program(again).code, 0);
  // What was never trained, and what is not there.
  const ProgramRun beyond = run_program({"eval", "lm", "--run", out, "--context", "128"});
  EXPECT_EQ(beyond.code, 2);
  EXPECT_TRUE(has(beyond.err, "128 tokens need 8 chunks of 16, mix has 4 rows")) << beyond.err;
  expect_refused({"eval", "lm", "--run", out, "--weights", "ema"}, {"has no average of its weights"});
  expect_refused(replaced(words(folder.path("short")), "--context", "1"), {"context is 1, expected at least 2"});
  expect_refused({"generate", "--run", out, "--prompt", "to", "--save-state", folder.path("none/x")},
                 {"No such file or directory"});
  const ProgramRun all = run_program({"eval", "lm", "--run", out, "--threads", "1"});
  EXPECT_EQ(all.code, 0) << all.err;
  EXPECT_TRUE(has(all.err, "these are the tokens the run was trained on")) << all.err;
  const std::string longer = folder.path("longer");
  ASSERT_EQ(run_program(replaced(words(longer, {"--max-steps", "2"}), "--context", "256")).code, 0);
  const ProgramRun key = run_program({"eval", "lm", "--run", longer, "--task", "passkey", "--items", "1"});
  EXPECT_EQ(key.code, 0) << key.err;
}

TEST_F(CliLm, AModelOfAFileGoesWithItsRun) {
  const std::string out = folder.path("run"), file = folder.path("my.json");
  write_file(file, std::string(R"({"model": "mhla_10m", "dim": 32, "layers": 1, "mlp": 64, "chunk": 16})"));
  std::vector<std::string> begin{"train",          "lm", "--data",       "mqar", "--model",      file,
                                 "--context",      "32", "--mqar-pairs", "2",    "--mqar-vocab", "16",
                                 "--mqar-items",   "64", "--batch",      "4",    "--threads",    "1",
                                 "--warmup-steps", "0",  "--out",        out,    "--max-steps",  "2"};
  ASSERT_EQ(run_program(begin).code, 0);
  const JsonValue network = read_json(out + "/config.json");
  begin.back() = "3", begin.emplace_back("--resume");  // the same command takes the run up again
  EXPECT_EQ(run_program(begin).code, 0);
  fs::remove(file);
  const ProgramRun elsewhere =
      run_program({"train", "lm", "--config", out + "/train.json", "--out", folder.path("elsewhere")});
  EXPECT_EQ(elsewhere.code, 0) << elsewhere.err;
  const ProgramRun rest = run_program({"train", "lm", "--resume", "--out", out, "--max-steps", "4"});
  EXPECT_EQ(rest.code, 0) << rest.err;
  for (const std::string& run : {out, folder.path("elsewhere")}) EXPECT_EQ(read_json(run + "/config.json"), network);
}

}  // namespace
}  // namespace mhla
