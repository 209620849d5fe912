// mhla train on processes that share every sequence, as a user starts them; what is refused; and mhla bench scale of
// the operator.
#include <gtest/gtest.h>

#include <fstream>

#include "mhla/io/json.h"
#include "tests/cli/train_fixture.h"

namespace mhla {
namespace {

class CliContext : public LmFixture {};
class CliContextImages : public ClassifyFixture {};

std::vector<double> losses_of(const std::string& out) {
  std::vector<double> losses;
  std::ifstream log(out + "/log.jsonl");
  for (std::string line; std::getline(log, line);) {
    const JsonValue row = parse_json(line, "log");
    if (row.at("kind").as_string() == "step") losses.push_back(row.at("loss").as_double());
  }
  return losses;
}

void expect_line(const std::vector<std::string>& words, const std::string& line) {
  const ProgramRun run = run_program(words);
  EXPECT_EQ(run.code, 2) << run.err;
  EXPECT_EQ(lines_of(run.err).size(), 1u) << run.err;
  EXPECT_TRUE(has(run.err, line)) << run.err;
}

TEST_F(CliContext, ThreeProcessesShareEverySequence) {
  const auto train = [&](const std::string& name, const std::vector<std::string>& more) {
    const ProgramRun run = run_program(
        joined(words(folder.path(name), {"--packing", "concatenate", "--max-steps", "3", "--log-every", "1"}), more));
    EXPECT_EQ(run.code, 0) << run.err;
    return run.out;
  };
  EXPECT_FALSE(has(train("one", {}), "share every sequence"));
  const std::string said = train("three", {"--nproc", "3", "--context-parallel", "3"});
  EXPECT_TRUE(has(said,
                  "context  3 processes share every sequence by summaries (3 processes do not divide 2 heads): "
                  "each receives up to "))
      << said;
  const std::vector<double> want = losses_of(folder.path("one")), got = losses_of(folder.path("three"));
  ASSERT_EQ(want.size(), 3u);
  ASSERT_EQ(got.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(got[i], want[i], 1e-5 * want[i]);
}

TEST_F(CliContext, RefusesWhatCannotBeCut) {
  const std::string out = folder.path("run");
  expect_line(words(out, {"--context-parallel", "2", "--packing", "concatenate"}),
              "train: context_parallel is 2 on 1 process, expected a number that divides the processes");
  expect_line(words(out, {"--context-parallel", "2", "--nproc", "2"}),
              "train: packing is documents with context_parallel 2, expected concatenate: a packed document would "
              "cross the cut between two processes");
  expect_line(words(out, {"--context-parallel", "2", "--nproc", "2", "--packing", "concatenate", "--attention", "gla"}),
              "train: attention is gla with context_parallel 2, expected mhla");
}

TEST_F(CliContextImages, RefusesWhatCannotBeCut) {
  expect_line(words(folder.path("run"), {"--context-parallel", "2", "--nproc", "2"}),
              "train classify: context_parallel is 2, expected 1: processes share batches of images, not images");
  expect_line({"train", "video", "--out", folder.path("run"), "--data", "moving-garments:" + data, "--official",
               "--nproc", "2", "--context-parallel", "2", "--batch", "4", "--max-steps", "1"},
              "train: official is on with context_parallel, expected off");
}

// The bytes that the kernel counts are those of the formula, by both methods.
TEST_F(CliContext, BenchScaleTimesTheOperator) {
  const ProgramRun run = run_program({"bench", "scale", "--op", "dit_s_256", "--ranks", "2", "--steps", "1", "--rounds",
                                      "1", "--threads", "2", "--json"});
  EXPECT_EQ(run.code, 0) << run.err;
  const std::vector<std::string> lines = lines_of(run.out);
  ASSERT_EQ(lines.size(), 2u) << run.out;
  const double B = 64, N = 256, H = 6, D = 64, E = 64, M = 16;
  const double formulas[] = {2 * 0.5 * B * M * H * (D * E + D) * 4, 2 * 0.5 * B * N / 2 * 2 * H * (D + E) * 4};
  for (std::size_t i = 0; i < 2; ++i) {
    const JsonValue row = parse_json(lines[i], "row");
    EXPECT_EQ(row.at("what").as_string(), "operator");
    EXPECT_EQ(row.at("method").as_string(), i == 0 ? "summaries" : "heads");
    EXPECT_EQ(row.at("sent_formula").as_double(), formulas[i]);
    if (!row.contains("sent")) continue;  // a kernel that does not count
    EXPECT_NEAR(row.at("sent").as_double(), formulas[i], 0.01 * formulas[i]);
  }
  expect_line({"bench", "scale", "--op", "lm_1"}, "lm_1");
}

}  // namespace
}  // namespace mhla
