// mhla train on several processes as a user starts them: by --nproc and by torchrun, to the same bits; Ctrl-C, a
// process that is killed or stopped, and mistakes, each with one line and its exit code.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "mhla/io/file.h"
#include "mhla/io/json.h"
#include "tests/cli/train_fixture.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

class CliTeam : public ClassifyFixture {};
class CliLmTeam : public LmFixture {};

const std::vector<std::string> kSameBits{"--deterministic-reduce",
                                         "--max-steps",
                                         "20",
                                         "--checkpoint-every",
                                         "5",
                                         "--ema",
                                         "0.5",
                                         "--eval-every",
                                         "0",
                                         "--log-every",
                                         "1"};

// `more` after `words`; a flag that is there already gets its new value.
std::vector<std::string> changed(std::vector<std::string> words, const std::vector<std::string>& more) {
  for (std::size_t i = 0; i < more.size(); ++i) {
    const bool has_value = i + 1 < more.size() && more[i + 1].rfind("--", 0) != 0;
    const auto at = std::find(words.begin(), words.end(), more[i]);
    if (at == words.end() || !has_value) {
      words.push_back(more[i]);
    } else {
      *(at + 1) = more[++i];
    }
  }
  return words;
}

void expect_equal_weights(const std::string& a, const std::string& b) {
  for (const char* name : {"/model.safetensors", "/ema.safetensors", "/checkpoints/step-00000020/trainer.safetensors"})
    EXPECT_TRUE(read_file(a + name) == read_file(b + name)) << b << name;
}

std::vector<JsonValue> rows_of(const std::string& out, const std::string& kind) {
  std::vector<JsonValue> rows;
  std::ifstream log(out + "/log.jsonl");
  for (std::string line; std::getline(log, line);) {
    const JsonValue row = parse_json(line, "log");
    if (row.at("kind").as_string() == kind) rows.push_back(row);
  }
  return rows;
}

// Processes that run this program in the folder `out`, by rank: from /proc.
std::vector<pid_t> ranks_in(const std::string& out) {
  std::vector<std::pair<int, pid_t>> found;
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc", none)) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const auto text = [&](const char* file) {
      std::ifstream in(entry.path() / file, std::ios::binary);
      return std::string(std::istreambuf_iterator<char>(in), {});
    };
    const std::string words = text("cmdline"), variables = std::string(1, '\0') + text("environ");
    const std::size_t at = variables.find(std::string("\0RANK=", 6));
    if (words.find(std::string("\0train\0", 7)) == std::string::npos || !has(words, out) || has(words, "--nproc") ||
        has(words, "torchrun") || at == std::string::npos)
      continue;
    found.emplace_back(std::atoi(variables.c_str() + at + 6), std::atoi(name.c_str()));
  }
  std::sort(found.begin(), found.end());
  std::vector<pid_t> processes;
  for (const auto& [rank, process] : found) processes.push_back(process);
  return processes;
}

// Sends `signal` to a rank once the run has a checkpoint of this step.
std::thread signal_rank(const std::string& out, const std::string& checkpoint, std::size_t rank, int signal) {
  return std::thread([=] {
    for (int i = 0; i < 6000 && !fs::exists(out + "/checkpoints/" + checkpoint); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const std::vector<pid_t> ranks = ranks_in(out);
    if (rank < ranks.size()) kill(ranks[rank], signal);
  });
}

TEST_F(CliLmTeam, TheSameBitsOn1And2And4And8Processes) {
  const auto train = [&](const std::string& name, const std::vector<std::string>& more) {
    const std::string out = folder.path(name);
    const ProgramRun run = run_program(changed(words(out), joined(joined(kSameBits, {"--batch", "8"}), more)));
    EXPECT_EQ(run.code, 0) << run.err;
    return std::pair{out, run.out};
  };
  const auto [one, said] = train("one", {});
  EXPECT_FALSE(has(said, "processes")) << said;
  for (const char* nproc : {"2", "4", "8"}) {
    const auto [many, text] = train(std::string("many") + nproc, {"--nproc", nproc});
    EXPECT_TRUE(has(text, std::string(", ") + nproc + " processes")) << text;
    expect_equal_weights(one, many);
    EXPECT_EQ(rows_of(many, "start").size(), 1u);
    const std::vector<JsonValue> a = rows_of(one, "step"), b = rows_of(many, "step");
    ASSERT_EQ(a.size(), 20u);
    ASSERT_EQ(b.size(), 20u);
    for (std::size_t i = 0; i < a.size(); ++i) {  // one log, with the same numbers
      EXPECT_EQ(a[i].at("loss").as_double(), b[i].at("loss").as_double());
      EXPECT_EQ(a[i].at("grad_norm").as_double(), b[i].at("grad_norm").as_double());
    }
    EXPECT_NEAR(rows_of(many, "eval").back().at("loss").as_double(), rows_of(one, "eval").back().at("loss").as_double(),
                1e-9);
  }
  for (const char* nproc : {"2", "4"})
    expect_equal_weights(one, train(std::string("sharded") + nproc, {"--nproc", nproc, "--shard-optimizer"}).first);
}

TEST_F(CliTeam, AClassifierToo) {
  const auto train = [&](const std::string& name, const std::vector<std::string>& more) {
    const std::string out = folder.path(name);
    const ProgramRun run = run_program(changed(words(out), joined(kSameBits, more)));
    EXPECT_EQ(run.code, 0) << run.err;
    return out;
  };
  const std::string one = train("one", {});
  const JsonValue a = rows_of(one, "eval").back();
  for (const char* nproc : {"2", "4", "8"}) {
    const std::string many = train(std::string("many") + nproc, {"--nproc", nproc});
    expect_equal_weights(one, many);
    const JsonValue b = rows_of(many, "eval").back();
    EXPECT_EQ(a.at("top1").as_double(), b.at("top1").as_double());
    EXPECT_NEAR(a.at("loss").as_double(), b.at("loss").as_double(), 1e-9);
  }
  for (const char* nproc : {"2", "4"}) {
    const std::string sharded = train(std::string("sharded") + nproc, {"--nproc", nproc, "--shard-optimizer"});
    expect_equal_weights(one, sharded);
    EXPECT_TRUE(read_file(one + "/best.safetensors") == read_file(sharded + "/best.safetensors"));
  }
  // Saved by 4, goes on with 1, whose optimiser is whole, and with more.
  const auto go_on = [&](const std::string& out, const char* nproc) {
    const ProgramRun run = run_program(
        {"train", "classify", "--resume", "--out", out, "--max-steps", "30", "--eval-every", "0", "--nproc", nproc});
    EXPECT_EQ(run.code, 0) << run.err;
    return read_file(out + "/model.safetensors");
  };
  const std::string saved = folder.path("sharded4");
  for (const char* nproc : {"1", "2", "8"}) fs::copy(saved, saved + nproc, fs::copy_options::recursive);
  const std::vector<std::byte> want = go_on(one, "1");
  for (const char* nproc : {"1", "2", "8"}) EXPECT_TRUE(go_on(saved + nproc, nproc) == want) << nproc;
}

TEST_F(CliTeam, ADiffusionModelToo) {
  const auto train = [&](const std::string& name, const std::vector<std::string>& more) {
    const std::string out = folder.path(name);
    std::vector<std::string> all{"train",
                                 "diffusion",
                                 "--out",
                                 out,
                                 "--model",
                                 "dit_d32",
                                 "--data",
                                 "fashion-mnist:" + data,
                                 "--batch",
                                 "16",
                                 "--threads",
                                 "1",
                                 "--sample-steps",
                                 "2",
                                 "--sample-columns",
                                 "1",
                                 "--eval-times",
                                 "2",
                                 "--set",
                                 "dim=16",
                                 "--set",
                                 "heads=2",
                                 "--set",
                                 "depth=1"};
    const ProgramRun run = run_program(joined(joined(all, kSameBits), more));
    EXPECT_EQ(run.code, 0) << run.err;
    return out;
  };
  const std::string one = train("one", {}), two = train("two", {"--nproc", "2", "--shard-optimizer"});
  expect_equal_weights(one, two);
  EXPECT_NEAR(rows_of(one, "eval").back().at("mse").as_double(), rows_of(two, "eval").back().at("mse").as_double(),
              1e-9);
  EXPECT_TRUE(fs::exists(two + "/samples/step-00000020.png"));
}

TEST_F(CliTeam, CtrlCSavesOnAllAndTheRunGoesOnWithOne) {
  const std::vector<std::string> steps{"--deterministic-reduce", "--max-steps", "60", "--checkpoint-every", "5"};
  const std::string whole = folder.path("whole"), cut = folder.path("cut");
  ASSERT_EQ(run_program(words(whole, steps)).code, 0);
  const ProgramRun stopped =
      run_program(words(cut, joined(steps, {"--nproc", "2"})), {cut + "/checkpoints/step-00000005", SIGINT});
  if (stopped.code != 0) {  // 0: it was done before the signal came
    ASSERT_EQ(stopped.code, 1) << stopped.err;
    EXPECT_EQ(lines_of(stopped.err).size(), 1u) << stopped.err;
    EXPECT_TRUE(has(stopped.err, "train: stopped by SIGINT at step ")) << stopped.err;
    const ProgramRun rest = run_program({"train", "classify", "--resume", "--out", cut});
    EXPECT_EQ(rest.code, 0) << rest.err;
  }
  EXPECT_TRUE(read_file(cut + "/model.safetensors") == read_file(whole + "/model.safetensors"));
}

TEST_F(CliTeam, AKilledProcessEndsTheOthersWithOneLine) {
  const std::string out = folder.path("run");
  std::thread killer = signal_rank(out, "step-00000005", 1, SIGKILL);
  const ProgramRun run = run_program(
      changed(words(out), {"--max-steps", "100000", "--checkpoint-every", "5", "--nproc", "3", "--batch", "24"}));
  killer.join();
  EXPECT_EQ(run.code, 1);
  EXPECT_EQ(lines_of(run.err).size(), 1u) << run.err;
  EXPECT_TRUE(has(run.err, "rank 1 failed: it was ended by signal 9 (Killed); last good checkpoint: ")) << run.err;
}

TEST_F(CliTeam, AStoppedProcessEndsTheOthersAfterTheTimeout) {
  const std::string out = folder.path("run");
  std::thread killer = signal_rank(out, "step-00000005", 1, SIGSTOP);
  const ProgramRun run = run_program(changed(words(out), {"--max-steps", "100000", "--checkpoint-every", "5", "--nproc",
                                                          "3", "--batch", "24", "--timeout", "4"}));
  killer.join();
  EXPECT_EQ(run.code, 1);
  EXPECT_EQ(lines_of(run.err).size(), 1u) << run.err;
  EXPECT_TRUE(has(run.err, "rank 1 does not answer (waited 4 s for ")) << run.err;
  EXPECT_TRUE(has(run.err, "; last good checkpoint: ")) << run.err;
}

// The bytes that the kernel counts are those of the formula, also with several passes a step; the optimiser's share is
// one.
TEST_F(CliTeam, BenchScaleCountsWhatTheFormulaSays) {
  const auto rows = [&](const std::vector<std::string>& more) {
    const ProgramRun run = run_program(joined({"bench", "scale", "--model", "vit_demo", "--ranks", "1,2,4", "--batch",
                                               "8", "--steps", "3", "--rounds", "1", "--threads", "2", "--json"},
                                              more));
    EXPECT_EQ(run.code, 0) << run.err;
    std::vector<JsonValue> all;
    for (const std::string& line : lines_of(run.out)) all.push_back(parse_json(line, "row"));
    return all;
  };
  const std::vector<JsonValue> whole = rows({"--ema"});
  const std::vector<JsonValue> sharded = rows({"--ema", "--shard-optimizer", "--deterministic-reduce"});
  const std::vector<JsonValue> longer = rows({"--ema", "--accumulate", "3"});
  ASSERT_EQ(whole.size(), 3u);
  ASSERT_EQ(sharded.size(), 3u);
  ASSERT_EQ(longer.size(), 3u);
  const double n = whole[0].at("parameters").as_double();
  for (std::size_t i = 0; i < 3; ++i) {
    const auto ranks = static_cast<double>(1 << i);
    EXPECT_EQ(whole[i].at("ranks").as_double(), ranks);
    EXPECT_GT(whole[i].at("ms").as_double(), 0.0);
    EXPECT_GT(whole[i].at("of_one").as_double(), 0.0);
    EXPECT_EQ(whole[i].at("sent_formula").as_double(), 2 * (1 - 1 / ranks) * 4 * n);
    EXPECT_EQ(sharded[i].at("sent_formula").as_double(), 3 * (1 - 1 / ranks) * 4 * n);
    EXPECT_NEAR(whole[i].at("state_bytes").as_double(), 12 * n, 0.01 * n);
    EXPECT_NEAR(sharded[i].at("state_bytes").as_double(), 12 * n / ranks, 0.3 * n);  // 64 numbers for a bias of 96
    for (const std::vector<JsonValue>* some : {&whole, &sharded, &longer}) {
      const JsonValue& row = (*some)[i];
      if (!row.contains("sent")) continue;  // a kernel that does not count
      const double formula = row.at("sent_formula").as_double();
      EXPECT_NEAR(row.at("sent").as_double(), formula, 0.02 * formula + 20000) << write_json(row);
    }
  }
}

TEST_F(CliTeam, MistakesAreSaidOnce) {
  const auto refused = [&](const std::vector<std::string>& more, const std::string& line) {
    const ProgramRun run = run_program(changed(words(folder.path("run")), more));
    EXPECT_EQ(run.code, 2) << run.err;
    EXPECT_EQ(lines_of(run.err).size(), 1u) << run.err;
    EXPECT_TRUE(has(run.err, line)) << run.err;
  };
  refused({"--nproc", "3"}, "train: batch is 16, expected a multiple of the 3 processes");
  refused({"--nproc", "3", "--deterministic-reduce", "--batch", "24"},
          "train: 3 processes, expected a number that divides");
  refused({"--nproc", "0.5"}, "--nproc");
  refused({"--nproc", "-1"}, "train classify: --nproc is -1, expected 1 to 1024");
  refused({"--nproc", "2", "--data", "fashion-mnist:" + folder.path("nowhere")}, "nowhere");
  refused({"--nproc", "2", "--reduce-leaves", "6"}, "train: reduce_leaves is 6, expected a power of two up to 4096");
  setenv("WORLD_SIZE", "2", 1), setenv("RANK", "5", 1);
  refused({}, "RANK is '5', expected a whole number from 0 to 1");
  setenv("RANK", "0", 1), setenv("MASTER_ADDR", "127.0.0.1", 1), setenv("MASTER_PORT", "29555", 1);
  refused({"--nproc", "2"}, "train classify: --nproc is given, but torchrun has started this process already");
  for (const char* name : {"WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT"}) unsetenv(name);
  const auto not_timed = [&](const std::vector<std::string>& words, const std::string& line) {
    const ProgramRun run = run_program(joined({"bench", "scale"}, words));
    EXPECT_EQ(run.code, 2) << run.err;
    EXPECT_TRUE(has(run.err, line)) << run.err;
  };
  not_timed({"--batch", "8", "--ranks", "1,3"}, "bench scale: --batch is 8, expected a multiple of the 3 processes");
  not_timed({"--model", "dit_d32"}, "bench scale: --model is 'dit_d32', expected ");
  not_timed({"--ranks", "0"}, "--ranks");
  not_timed({"--batch", "4", "--deterministic-reduce"}, "bench scale: --deterministic-reduce with 1 processes");
}

}  // namespace
}  // namespace mhla
