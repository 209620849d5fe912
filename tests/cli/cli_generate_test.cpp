// mhla generate and the tasks of mhla eval lm from outside, on a small model trained here for a moment.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "mhla/io/file.h"
#include "mhla/io/json.h"
#include "tests/cli/expect.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

class CliGenerate : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!MHLA_TORCH_BUILT) return;
    shared = new TemporaryFolder;
    std::string lines;
    for (int i = 0; i < 40; ++i) {
      std::string text;
      for (int j = 0; j < 10 + i; ++j) text += i % 2 == 0 ? "to be " : "or not ";
      lines += "{\"text\": \"" + text + "\"}\n";
    }
    write_file(shared->path("text.jsonl"), lines);
    ASSERT_NO_FATAL_FAILURE(train("run", "1"));
    ASSERT_NO_FATAL_FAILURE(train("other", "2"));
  }
  static void TearDownTestSuite() { delete shared, shared = nullptr; }
  void SetUp() override {
    if (!MHLA_TORCH_BUILT) GTEST_SKIP() << "built without LibTorch";
  }
  static void train(const std::string& name, const std::string& seed) {
    const ProgramRun run = run_program({"train",          "lm",
                                        "--model",        "mhla_10m",
                                        "--data",         shared->path("text.jsonl"),
                                        "--out",          shared->path(name),
                                        "--batch",        "4",
                                        "--threads",      "1",
                                        "--set",          "dim=32",
                                        "--set",          "layers=2",
                                        "--set",          "mlp=64",
                                        "--context",      "64",
                                        "--set",          "chunk=16",
                                        "--set",          "context=64",
                                        "--lr",           "0.01",
                                        "--min-lr",       "0.001",
                                        "--warmup-steps", "2",
                                        "--tokenizer",    "bytes",
                                        "--max-steps",    "40",
                                        "--seed",         seed,
                                        "--valid",        "0.1"});
    ASSERT_EQ(run.code, 0) << run.err;
  }
  static ProgramRun generate(std::vector<std::string> more, const std::string& run = "run") {
    std::vector<std::string> all{"generate", "--run", shared->path(run), "--threads", "1"};
    all.insert(all.end(), more.begin(), more.end());
    return run_program(all);
  }
  static void expect_refused(const ProgramRun& run, const std::string& part) {
    EXPECT_EQ(run.code, 2) << run.err;
    EXPECT_EQ(run.out, "");
    EXPECT_EQ(lines_of(run.err).size(), 1u) << run.err;
    EXPECT_TRUE(has(run.err, part)) << part << " in " << run.err;
  }
  static TemporaryFolder* shared;
};
TemporaryFolder* CliGenerate::shared = nullptr;

TEST_F(CliGenerate, AStateGoesThroughLinksPipesAndDevices) {
  const auto save = [](const std::string& place) {
    return generate({"--prompt", "to be", "--max-tokens", "3", "--greedy", "--save-state", shared->path(place)});
  };
  ASSERT_EQ(save("plain.state").code, 0);
  const std::vector<std::byte> want = read_file(shared->path("plain.state"));
  fs::create_symlink("behind.state", shared->path("link"));
  ASSERT_EQ(save("link").code, 0);
  EXPECT_TRUE(fs::is_symlink(shared->path("link")));
  EXPECT_EQ(read_file(shared->path("behind.state")), want);
  ASSERT_EQ(::mkfifo(shared->path("pipe").c_str(), 0600), 0);
  std::vector<std::byte> got;
  std::thread reader([&] { got = read_file(shared->path("pipe")); });
  EXPECT_EQ(save("pipe").code, 0);
  reader.join();
  EXPECT_EQ(got, want);
  EXPECT_TRUE(fs::is_fifo(shared->path("pipe")));
  if (::mknod(shared->path("null").c_str(), S_IFCHR | 0666, makedev(1, 3)) == 0) {  // needs rights
    EXPECT_EQ(save("null").code, 0);
    EXPECT_TRUE(fs::is_character_file(shared->path("null")));
  }
  for (const char* name : {"plain.state", "behind.state", "link", "pipe", "null"}) fs::remove(shared->path(name));
}

TEST_F(CliGenerate, AFullDiskIsExitCode1AndLeavesNoState) {
  const ProgramRun run = [&] {
    const FullDisk disk(4096);  // less than a state
    return generate({"--prompt", "to be", "--max-tokens", "3", "--save-state", shared->path("full.state")});
  }();
  EXPECT_EQ(run.code, 1) << run.err;
  EXPECT_EQ(lines_of(run.err),
            std::vector<std::string>{"mhla: " + shared->path("full.state") + ": could not be written: File too large"});
  EXPECT_FALSE(run.out.empty());  // the text was there before
  for (const auto& entry : fs::directory_iterator(shared->path()))
    EXPECT_FALSE(has(entry.path().filename().string(), "full.state")) << entry.path();
}

TEST_F(CliGenerate, TextAloneOnStdout) {
  const ProgramRun run = generate({"--prompt", "to be to ", "--max-tokens", "12", "--greedy", "--past-end"});
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(run.out, "be to be to ");  // twelve bytes and nothing else
  for (const char* part :
       {"length policy error (fits: 22 tokens", "read 10 tokens", "wrote 12 tokens", "tokens/s", "state "})
    EXPECT_TRUE(has(run.err, part)) << part << " in " << run.err;
  EXPECT_EQ(generate({"--prompt", "to be to ", "--max-tokens", "12", "--greedy", "--past-end", "--exact"}).out,
            run.out);
  const ProgramRun stopped =
      generate({"--prompt", "to be to ", "--max-tokens", "12", "--greedy", "--stop", " be", "--stop", "to b"});
  EXPECT_EQ(stopped.out, "be ");
  // Drawn: the same for a seed, another for another.
  const auto drawn = [](const std::string& seed) {
    return generate({"--prompt", "x", "--max-tokens", "20", "--temperature", "1.5", "--top-k", "50", "--top-p", "0.99",
                     "--min-p", "0.001", "--repetition-penalty", "1.1", "--past-end", "--seed", seed})
        .out;
  };
  EXPECT_EQ(drawn("3"), drawn("3"));
  EXPECT_NE(drawn("3"), drawn("4"));
}

TEST_F(CliGenerate, ManyPromptsInTheirOrder) {
  write_file(shared->path("prompts.txt"), std::string("to be to be \r\nor not or\r\n"));
  const std::vector<std::string> how{"--max-tokens", "10",
                                     "--greedy",     "--past-end",
                                     "--prompt",     "or not or not or not ",
                                     "--prompts",    shared->path("prompts.txt")};
  const ProgramRun run = generate(how);
  ASSERT_EQ(run.code, 0) << run.err;
  const std::vector<std::string> texts = lines_of(run.out);
  ASSERT_EQ(texts.size(), 3u) << run.out;
  EXPECT_EQ(texts[0],
            generate({"--max-tokens", "10", "--greedy", "--past-end", "--prompt", "or not or not or not "}).out);
  EXPECT_EQ(texts[2], generate({"--max-tokens", "10", "--greedy", "--past-end", "--prompt", "or not or"}).out);
  std::vector<std::string> json = how;
  json.push_back("--json");
  const std::vector<std::string> rows = lines_of(generate(json).out);
  ASSERT_EQ(rows.size(), 4u);
  for (std::size_t i = 0; i < 3; ++i) {
    const JsonValue row = parse_json(rows[i], "row");
    EXPECT_EQ(row.at("prompt").as_int(), static_cast<std::int64_t>(i));
    EXPECT_EQ(row.at("text").as_string(), texts[i]);
    EXPECT_EQ(row.at("tokens").as_int(), 10);
    EXPECT_EQ(row.at("ended").as_string(), "length");
  }
  EXPECT_EQ(parse_json(rows[3], "row").at("wrote").as_int(), 30);
}

std::string unescaped(const std::string& line) {
  std::string text;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\\' || i + 1 == line.size()) {
      text += line[i];
      continue;
    }
    ++i;
    text += line[i] == 'n' ? '\n' : line[i] == 'r' ? '\r' : line[i];
  }
  return text;
}

TEST_F(CliGenerate, OfSeveralTextsEachIsALine) {
  const std::vector<std::string> any{"--max-tokens",  "400", "--length-policy", "extend", "--past-end",
                                     "--temperature", "100"};  // any byte
  std::vector<std::string> how = any;
  for (const char* prompt : {"a", "b", "c", "d", "e", "f", "g", "h"}) how.insert(how.end(), {"--prompt", prompt});
  const std::string out = generate(how).out;
  how.push_back("--json");
  const std::vector<std::string> rows = lines_of(generate(how).out);
  ASSERT_EQ(rows.size(), 9u);
  std::string all;
  std::vector<std::string> lines = lines_of(out);
  ASSERT_EQ(lines.size(), 8u) << out;
  for (std::size_t i = 0; i < 8; ++i) {
    const std::string text = parse_json(rows[i], "row").at("text").as_string();
    EXPECT_EQ(unescaped(lines[i]), text) << i;
    all += text;
  }
  for (const char* breaks : {"\n", "\r", "\\"}) EXPECT_TRUE(has(all, breaks)) << "another seed is needed";
  // Texts of no length are lines, too; one text is as it is.
  EXPECT_EQ(generate({"--prompt", "a", "--prompt", "b", "--max-tokens", "0"}).out, "\n\n");
  std::vector<std::string> one = any;
  one.insert(one.end(), {"--prompt", "a"});
  EXPECT_EQ(generate(one).out, parse_json(rows[0], "row").at("text").as_string());
}

TEST_F(CliGenerate, SavedForkedAndContinued) {
  const std::string first = shared->path("first.state"), second = shared->path("second.state");
  const std::vector<std::string> drawn{"--temperature", "1.2", "--seed", "9", "--past-end", "--exact"};
  const auto call = [&](std::vector<std::string> more) {
    more.insert(more.end(), drawn.begin(), drawn.end());
    const ProgramRun run = generate(more);
    EXPECT_EQ(run.code, 0) << run.err;
    return run;
  };
  const std::string whole = call({"--prompt", "to be", "--max-tokens", "40"}).out;
  EXPECT_EQ(call({"--prompt", "to be", "--max-tokens", "0", "--save-state", first}).out, "");
  const ProgramRun a = call({"--load-state", first, "--max-tokens", "15", "--save-state", second});
  EXPECT_TRUE(has(a.err, "read 0 tokens")) << a.err;
  EXPECT_TRUE(has(a.err, "6 were in the state")) << a.err;
  EXPECT_EQ(a.out + call({"--load-state", second, "--max-tokens", "25"}).out, whole);
  // Ended at a stop string, the state has it: what comes behind it is what comes without the stop.
  const auto likeliest = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--greedy", "--past-end", "--exact"});
    return generate(more).out;
  };
  const std::string free = likeliest({"--prompt", "or not", "--max-tokens", "40"}), third = shared->path("third.state");
  const std::string stop = free.substr(10, 4);
  const std::string head =
      likeliest({"--prompt", "or not", "--max-tokens", "40", "--stop", stop, "--save-state", third});
  EXPECT_EQ(head, free.substr(0, free.find(stop)));
  const std::size_t left = free.size() - head.size() - stop.size();
  EXPECT_EQ(head + stop + likeliest({"--load-state", third, "--max-tokens", std::to_string(left)}), free);
  // One state, two ways on.
  const ProgramRun forks =
      call({"--load-state", second, "--max-tokens", "5", "--prompt", " left", "--prompt", " right"});
  EXPECT_EQ(lines_of(forks.out).size(), 2u) << forks.out;
}

// Ctrl-C: what was read and written is saved, and goes on as if nothing had happened.
TEST_F(CliGenerate, InterruptedItSavesTheState) {
  const std::string state = shared->path("interrupted.state");
  const std::vector<std::string> how{"--temperature", "1.2",     "--seed",          "5",
                                     "--past-end",    "--exact", "--length-policy", "extend"};
  const auto words = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", "--run", shared->path("run"), "--threads", "1"});
    more.insert(more.end(), how.begin(), how.end());
    return more;
  };
  for (const int signal : {SIGINT, SIGTERM}) {
    fs::remove(state);
    const ProgramRun run =
        run_program(words({"--prompt", "to be", "--max-tokens", "1000000", "--save-state", state}), {kPrints, signal});
    EXPECT_EQ(run.code, 1) << run.err;
    const std::string name = signal == SIGINT ? "SIGINT" : "SIGTERM";
    EXPECT_TRUE(has(lines_of(run.err).back(), "mhla: generate: stopped by " + name + " after ")) << run.err;
    EXPECT_TRUE(has(lines_of(run.err).back(), state + " is written, go on with --load-state")) << run.err;
    ASSERT_TRUE(fs::exists(state));
    ASSERT_FALSE(run.out.empty());
    const ProgramRun rest = run_program(words({"--load-state", state, "--max-tokens", "20"}));
    ASSERT_EQ(rest.code, 0) << rest.err;
    const std::string together = run.out + rest.out;
    const ProgramRun whole =
        run_program(words({"--prompt", "to be", "--max-tokens", std::to_string(together.size() + 40)}));
    EXPECT_EQ(whole.out.substr(0, together.size()), together);
  }
  const ProgramRun plain =
      run_program(words({"--prompt", "a", "--prompt", "b", "--max-tokens", "1000000"}), {kPrints, SIGINT});
  EXPECT_EQ(plain.code, 1);
  EXPECT_EQ(lines_of(plain.out).size(), 2u);
  EXPECT_EQ(plain.out.back(), '\n');
  EXPECT_FALSE(has(plain.err, "state is")) << plain.err;
}

TEST_F(CliGenerate, MistakesAreOneLineAndCodeTwo) {
  const std::string state = shared->path("ok.state");
  ASSERT_EQ(generate({"--prompt", "a", "--max-tokens", "3", "--save-state", state}).code, 0);
  expect_refused(generate({"--load-state", state}, "other"), "is the state of other weights");
  expect_refused(generate({"--load-state", state, "--length-policy", "extend"}), "was made with length policy error");
  expect_refused(generate({"--load-state", state, "--exact"}), "was made without --exact, expected one made with it");
  expect_refused(generate({"--load-state", shared->path("none")}), "none");
  fs::copy(shared->path("run/model.safetensors"), shared->path("weights.state"));
  expect_refused(generate({"--load-state", shared->path("weights.state")}), "expected the state of a language model");
  std::vector<std::byte> bytes = read_file(state);
  const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string other = text;
    other.replace(other.find(from), from.size(), to);
    write_file(shared->path("changed.state"), other);
    return generate({"--load-state", shared->path("changed.state")});
  };
  expect_refused(changed("\"mhla.lm_state\":\"1\"", "\"mhla.lm_state\":\"9\""),
                 "'9', expected the state of a language model");
  std::string damaged = text;
  damaged[damaged.size() - 5] = static_cast<char>(damaged[damaged.size() - 5] ^ 1);
  write_file(shared->path("damaged.state"), damaged);
  expect_refused(generate({"--load-state", shared->path("damaged.state")}), "the checksum is wrong");

  expect_refused(generate({"--prompt", std::string(80, 'x')}), "prompt 0 has 81 tokens");
  expect_refused(generate({"--prompt", "x", "--max-tokens", "64"}), "that mix has rows for; --length-policy extend");
  expect_refused(generate({"--prompt", "x", "--length-policy", "rechunk"}), "needs the whole length");
  expect_refused(generate({}), "no prompt is given");
  expect_refused(generate({"--prompt", "x", "--top-p", "0"}), "top_p is 0, expected more than 0");
  for (const std::string& place : {shared->path("run"), std::string("/proc/x.state")}) {
    const ProgramRun run = generate({"--prompt", "x", "--max-tokens", "2", "--save-state", place});
    expect_refused(run, "--save-state: " + place + ": could not be written");
    EXPECT_EQ(run.out, "");
  }
  expect_refused(generate({"--prompt", "x", "--stop", ""}), "--stop is empty, expected text");
  for (const char* seed : {"-1", "1.5", "x", "18446744073709551616"})
    expect_refused(generate({"--prompt", "x", "--seed", seed}),
                   std::string("--seed is ") + seed + ", expected a whole number from 0 to 18446744073709551615");
  expect_refused(run_program({"eval", "lm", "--run", shared->path("run"), "--task", "mqar", "--seed", "-1"}),
                 "--seed is -1, expected a whole number");
  expect_refused(generate({"--prompt", "-", "--prompt", "-"}), "--prompt - is given more than once");
  const auto eval = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"eval", "lm", "--run", shared->path("run")});
    return run_program(more);
  };
  for (const char* flag : {"--stride", "--bucket", "--eval-tokens", "--batch"})
    expect_refused(eval({"--task", "mqar", flag, "8"}),
                   std::string("eval lm: ") + flag + " is given with --task, where it has no effect");
  for (const char* flag : {"--items", "--lengths", "--mqar-pairs", "--seed", "--needles"})
    expect_refused(eval({flag, "8"}), std::string("eval lm: ") + flag + " is given without --task");
  expect_refused(eval({"--precision", "bf16"}), "--precision is given without --task");
  write_file(shared->path("long.jsonl"),
             "{\"context\": \"\", \"choices\": [\"" + std::string(90, 'x') + "\", \"y\"], \"gold\": 1}\n");
  expect_refused(eval({"--task", "choices=" + shared->path("long.jsonl")}), "has 92 tokens, expected at most 65");
  expect_refused(generate({"--prompt", "broken \xff"}), "prompt 0 is no UTF-8");
  expect_refused(generate({"--prompt", "x"}, "no_such_run"), "no_such_run");
  // A tokenizer that is not the one the model was trained with.
  fs::copy(shared->path("other"), shared->path("mixed"), fs::copy_options::recursive);
  const std::string plain = shared->path("plain"), jsonl = shared->path("text.jsonl");
  ASSERT_EQ(run_program({"data", "tokenize", "--data", jsonl, "--out", plain, "--tokenizer", "train:257"}).code, 0);
  const std::vector<std::byte> own = read_file(shared->path("mixed/tokenizer.json"));
  fs::copy(plain + "/tokenizer.json", shared->path("mixed/tokenizer.json"), fs::copy_options::overwrite_existing);
  if (read_file(shared->path("mixed/tokenizer.json")) != own)
    expect_refused(generate({"--prompt", "x"}, "mixed"), "tokenizer");
  const std::string larger = shared->path("larger");
  ASSERT_EQ(run_program({"data", "tokenize", "--data", jsonl, "--out", larger, "--tokenizer", "train:270"}).code, 0);
  fs::copy(larger + "/tokenizer.json", shared->path("mixed/tokenizer.json"), fs::copy_options::overwrite_existing);
  expect_refused(generate({"--prompt", "x"}, "mixed"), "tokenizer");
}

TEST_F(CliGenerate, TasksOfALanguageModel) {
  write_file(shared->path("own.jsonl"),
             std::string("{\"context\": \"to be to be\", \"choices\": [\"to be\", \"zq xw\"], \"gold\": 0}\n"
                         "{\"context\": \"or not or\", \"choices\": [\"9999\", \"not or\"], \"gold\": 1}\n"));
  write_file(shared->path("lambada.jsonl"), std::string("{\"text\": \"to be to be\"}\n"));
  write_file(shared->path("wiki.jsonl"), std::string("{\"page\": \"to be to be to be\"}\n"));
  const ProgramRun run = run_program({"eval",
                                      "lm",
                                      "--run",
                                      shared->path("run"),
                                      "--threads",
                                      "1",
                                      "--json",
                                      "--task",
                                      "choices=" + shared->path("own.jsonl"),
                                      "--task",
                                      "lambada=" + shared->path("lambada.jsonl"),
                                      "--task",
                                      "wikitext=" + shared->path("wiki.jsonl"),
                                      "--task",
                                      "mqar",
                                      "--lengths",
                                      "32,64",
                                      "--mqar-pairs",
                                      "4",
                                      "--items",
                                      "2"});
  ASSERT_EQ(run.code, 0) << run.err;
  const std::vector<std::string> lines = lines_of(run.out);
  ASSERT_EQ(lines.size(), 5u) << run.out;
  const auto figure = [&](std::size_t line, const char* name) {
    return parse_json(lines[line], "row").at("figures").at(name).as_double();
  };
  EXPECT_EQ(figure(0, "acc"), 1.0) << run.out;
  EXPECT_EQ(figure(1, "acc"), 1.0) << run.out;
  EXPECT_LT(figure(1, "perplexity"), 10.0);
  EXPECT_LT(figure(2, "byte_perplexity"), 10.0);
  EXPECT_EQ(parse_json(lines[4], "row").at("length").as_int(), 64);
  EXPECT_EQ(parse_json(lines[4], "row").at("length_policy").as_string(), "error");
  const auto refused = [&](const std::string& task, const std::string& part) {
    expect_refused(run_program({"eval", "lm", "--run", shared->path("run"), "--task", task}), part);
  };
  refused("poetry=" + shared->path("own.jsonl"), "task 'poetry' is unknown");
  refused("piqa", "task piqa has no data");
  refused("piqa=" + shared->path("own.jsonl"), "own.jsonl: line 1: ");
  refused("longbench=" + shared->path("run"), "none of LongBench's files");
}

TEST_F(CliGenerate, WeightsThatAreNoNumbersAreAnError) {
  fs::copy(shared->path("run"), shared->path("nan"), fs::copy_options::recursive);
  const std::string file = shared->path("nan/model.safetensors");
  const std::vector<std::byte> bytes = read_file(file);
  std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  text.replace(text.size() - 4, 4, std::string("\0\0\xc0\x7f", 4));  // the last number of the file is NaN
  write_file(file, text);
  write_file(shared->path("two.jsonl"),
             std::string("{\"context\": \"to be\", \"choices\": [\"to\", \"be\"], \"gold\": 0}\n"));
  write_file(shared->path("last.jsonl"), std::string("{\"text\": \"to be to be\"}\n"));
  write_file(shared->path("page.jsonl"), std::string("{\"page\": \"to be to be\"}\n"));
  const auto refused = [&](std::vector<std::string> more) {
    const bool evaluates = more.empty() || more[0] != "generate";
    if (evaluates) more.insert(more.begin(), {"eval", "lm"});
    more.insert(more.begin() + (evaluates ? 2 : 1), {"--run", shared->path("nan"), "--threads", "1"});
    const ProgramRun run = run_program(more);
    EXPECT_EQ(run.code, 2) << run.err;
    EXPECT_TRUE(has(run.err, "the weights in " + file + " give NaN or infinite values")) << run.err;
    EXPECT_EQ(lines_of(run.err).size(), 1u) << run.err;
  };
  refused({"--task", "choices=" + shared->path("two.jsonl")});
  refused({"--task", "lambada=" + shared->path("last.jsonl")});
  refused({"--task", "wikitext=" + shared->path("page.jsonl")});
  refused({"--task", "mqar", "--mqar-pairs", "4"});
  refused({});
  refused({"generate", "--prompt", "to be", "--max-tokens", "3"});
}

// Without chunks there is no length policy to tell of.
TEST_F(CliGenerate, OtherAttentionsTakeAnyLength) {
  const std::string out = shared->path("softmax");
  const ProgramRun trained = run_program({"train",          "lm",      "--model",     "mhla_10m",
                                          "--attention",    "softmax", "--data",      shared->path("text.jsonl"),
                                          "--threads",      "1",       "--out",       out,
                                          "--set",          "dim=32",  "--set",       "layers=1",
                                          "--set",          "mlp=64",  "--context",   "64",
                                          "--tokenizer",    "bytes",   "--max-steps", "2",
                                          "--valid",        "0.1",     "--set",       "context=64",
                                          "--warmup-steps", "1"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  const ProgramRun run = generate({"--prompt", "to", "--max-tokens", "80", "--past-end"}, "softmax");
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_TRUE(has(run.err, "softmax attention, f32\n")) << run.err;
  const ProgramRun eval =
      run_program({"eval", "lm", "--run", out, "--context", "96", "--task", "mqar", "--mqar-pairs", "4"});
  EXPECT_EQ(eval.code, 0) << eval.err;
  const ProgramRun windows = run_program({"eval", "lm", "--run", out, "--context", "96"});
  EXPECT_EQ(windows.code, 0) << windows.err;
  for (const char* word : {"policy", "chunk"}) {
    EXPECT_FALSE(has(run.err, word)) << run.err;
    EXPECT_FALSE(has(windows.out, word)) << windows.out;
  }
  const ProgramRun left =
      run_program({"eval", "lm", "--run", out, "--context", "96", "--length-policy", "truncate_left"});
  EXPECT_EQ(left.code, 0) << left.err;
  EXPECT_TRUE(has(left.out, "length policy truncate_left (truncate_left: tokens 32 to 95)")) << left.out;
}

}  // namespace
}  // namespace mhla
