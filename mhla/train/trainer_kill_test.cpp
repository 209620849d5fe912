// kill -9 at random moments, 120 times over the runs of a tiny task: after every one the newest checkpoint is sound
// and no older than the one before, and the resumed runs end with the bits of an unbroken one. Children are forked
// before LibTorch has started a thread, so that each starts in a millisecond.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <random>
#include <thread>

#include "mhla/io/file.h"
#include "mhla/train/runs/checkpoints.h"
#include "mhla/train/tiny_task_fixture.h"

namespace mhla::train {
namespace {

namespace fs = std::filesystem;

constexpr int kKills = 120;

TrainOptions kill_options() {
  TrainOptions options = tiny_options();
  options.max_steps = 40, options.checkpoint_every = 1, options.keep = 2, options.log_every = 2;
  return options;
}

// Runs, or goes on with, the training of `folder`; returns the process.
pid_t start(const fs::path& folder) {
  const pid_t child = fork();
  if (child != 0) return child;
  try {
    train_tiny(folder, kill_options(), /*resume=*/true);
    _exit(0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    _exit(1);
  }
}

// The exit code, or -1 when the child was killed.
int finish(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(TrainerKill, EveryKillLeavesASoundCheckpoint) {
  const TemporaryRun run;
  const auto before = std::chrono::steady_clock::now();
  ASSERT_EQ(finish(start(run.path("whole"))), 0);
  const auto whole = std::chrono::steady_clock::now() - before;
  std::mt19937 random(20240607);
  std::uniform_real_distribution<double> moment(0.0, 0.5);
  int kills = 0, runs = 0, advanced = 0;
  for (; kills < kKills; ++runs) {
    ASSERT_LT(runs, kKills) << "the runs end before they can be killed";
    const fs::path folder = run.path("run" + std::to_string(runs));
    const CheckpointFolder checkpoints(folder / "checkpoints", 2);
    std::int64_t last = 0;
    for (int code = -1; code != 0;) {
      const pid_t child = start(folder);
      std::this_thread::sleep_for(whole * moment(random));
      kill(child, SIGKILL);
      code = finish(child);
      ASSERT_LE(code, 0) << "a resumed run failed";
      if (code != 0) ++kills;
      std::vector<std::string> complaints;
      const std::optional<Checkpoint> newest = checkpoints.newest(complaints);
      ASSERT_TRUE(complaints.empty()) << complaints.front();
      ASSERT_TRUE(newest || last == 0) << "the checkpoint of step " << last << " is gone";
      const std::int64_t step = newest ? newest->step : 0;
      ASSERT_GE(step, last);
      if (step > last) ++advanced;
      last = step;
    }
    for (const char* name : {"model.safetensors", "ema.safetensors", "checkpoints/step-00000040/trainer.safetensors"})
      ASSERT_TRUE(read_file(folder / name) == read_file(run.path("whole") / name)) << folder << " " << name;
    fs::remove_all(folder);
  }
  std::printf("%d kills over %d runs; %d of them after new checkpoints\n", kills, runs, advanced);
  EXPECT_GT(advanced, kKills / 4);
}

}  // namespace
}  // namespace mhla::train
