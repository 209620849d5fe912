// How a chosen candidate is run: workspace sized by a counting run, the caller's memory or an own one.
#include "mhla/kernels/common/call.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>

namespace mhla {
namespace {

// Takes two buffers and notes what it was given.
struct Seen {
  float* first = nullptr;
  double* second = nullptr;
  int counting = 0, running = 0, workers = 0;
} seen;

void run_fake(const Problem&, Workspace& workspace, Executor& executor) {
  seen.first = workspace.take<float>(10, "first");
  seen.second = workspace.take<double>(20, "second");
  seen.workers = executor.concurrency();
  ++(workspace.counting() ? seen.counting : seen.running);
}

std::string takes_it(const Problem&) { return {}; }
std::string too_small(const Problem&) { return "N = 1 below 16"; }

constexpr Candidate<Problem> kFake[] = {{"fake", takes_it, run_fake}};

Problem one_token() {
  Problem p;
  p.entry = "fake_forward";
  p.B = p.N = 1;
  return p;
}

class Call : public testing::Test {
 protected:
  void SetUp() override { seen = {}; }
};

TEST_F(Call, AllocatesWhatTheCountingRunAskedFor) {
  run_call(kFake, one_token(), {});
  EXPECT_EQ(seen.counting, 1);
  EXPECT_EQ(seen.running, 1);
  ASSERT_NE(seen.first, nullptr);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(seen.second) % kAlignment, 0u);
}

TEST_F(Call, UsesTheCallersMemoryAndExecutor) {
  InlineExecutor executor;
  alignas(64) std::array<std::byte, 1024> memory{};
  RunOptions run;
  run.maybe_executor = &executor;
  run.workspace = memory;
  EXPECT_LE(workspace_of(kFake, one_token(), run), 1024);
  run_call(kFake, one_token(), run);
  EXPECT_EQ(static_cast<void*>(seen.first), static_cast<void*>(memory.data()));
  EXPECT_EQ(seen.workers, 1);
}

TEST_F(Call, RefusesMemoryThatIsTooSmallBeforeRunning) {
  alignas(64) std::array<std::byte, 64> memory{};
  RunOptions run;
  run.workspace = memory;
  const std::int64_t bytes = workspace_of(kFake, one_token(), {});
  try {
    run_call(kFake, one_token(), run);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), str("fake_forward: workspace has 64 bytes, expected at least ", bytes));
  }
  EXPECT_EQ(seen.running, 0);
}

TEST_F(Call, ACallWithoutTokensRunsNothing) {
  std::array<float, 4> dmix = {1, 2, 3, 4};
  Problem p = one_token();
  p.N = 0, p.backward = true, p.Hm = 1, p.L = 2;
  p.dmix = View(dmix.data(), DType::kF32, {1, 2, 2});
  run_call(kFake, p, {});
  EXPECT_EQ(seen.counting + seen.running, 0);
  EXPECT_EQ(dmix, (std::array<float, 4>{}));
  EXPECT_EQ(workspace_of(kFake, p, {}), 0);
}

TEST_F(Call, ChoosesFromTheList) {
  static constexpr Candidate<Problem> kList[] = {{"fast", too_small, run_fake}, {"plain", takes_it, run_fake}};
  EXPECT_EQ(std::string_view(choose_candidate(kList, one_token(), "").name), "plain");
  EXPECT_THROW(choose_candidate(kList, one_token(), "fast"), Error);
}

// The log is read from the environment once, so this looks at a process of its own.
TEST(CallDeathTest, LogSaysWhoRunsAndWhyNotTheOthers) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  static constexpr Candidate<Problem> kList[] = {{"fast", too_small, run_fake}, {"plain", takes_it, run_fake}};
  EXPECT_EXIT(
      {
        setenv("MHLA_LOG", "1", 1);
        choose_candidate(kList, one_token(), "");
        std::exit(0);
      },
      testing::ExitedWithCode(0), "fake_forward: plain runs f32 .*; fast steps aside: N = 1 below 16");
}

struct FakeProblem {
  bool f64 = false;
  [[nodiscard]] bool is_f64() const { return f64; }
  [[nodiscard]] std::string describe() const { return "a fake"; }
};
std::string takes(const FakeProblem&) { return {}; }
std::string declines(const FakeProblem&) { return "not today"; }
void nothing(const FakeProblem&, Workspace&, Executor&) {}

constexpr Candidate<FakeProblem> kWilling[] = {{"fast", takes, nothing}, {"ref", takes, nothing}};
constexpr Candidate<FakeProblem> kUnwilling[] = {{"fast", declines, nothing}, {"ref", takes, nothing}};

std::string message_of(std::span<const Candidate<FakeProblem>> list, const FakeProblem& problem, const char* name) {
  try {
    return choose(list, problem, name, "entry").name;
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(Choose, TellsWhoWasAskedAsData) {
  EXPECT_EQ(support_of(kUnwilling, FakeProblem{}).size(), 2u);
  EXPECT_EQ(support_of(kUnwilling, FakeProblem{})[0].reason, "not today");
  EXPECT_EQ(support_of(kUnwilling, FakeProblem{})[1].reason, "");
  try {
    choose(kUnwilling, FakeProblem{}, "fast", "entry");
    FAIL();
  } catch (const NoCandidate& error) {
    ASSERT_EQ(error.asked().size(), 1u);
    EXPECT_EQ(error.asked()[0].name, "fast");
    EXPECT_EQ(error.asked()[0].reason, "not today");
  }
}

TEST(Choose, TheFirstThatTakesItAndRefOnlyByNameOrForDouble) {
  EXPECT_EQ(message_of(kWilling, {}, ""), "fast");
  EXPECT_EQ(message_of(kWilling, {}, "ref"), "ref");
  EXPECT_EQ(message_of(kUnwilling, {true}, ""), "ref");
  EXPECT_EQ(message_of(kUnwilling, {}, ""),
            "entry: no candidate for a fake\n  fast: not today | ref: runs only when asked for by name");
  EXPECT_EQ(message_of(kUnwilling, {}, "fast"), "entry: no candidate for a fake\n  fast: not today");
  EXPECT_EQ(message_of(kWilling, {}, "cuda"), "entry: no candidate is called 'cuda', expected one of fast, ref");
}

}  // namespace
}  // namespace mhla
