// What a run holds while it goes: declared here, defined in trainer.cpp (steps) and trainer_folder.cpp (files). Private
// to this room.
#pragma once

#include <chrono>
#include <filesystem>

#include "mhla/train/adamw.h"
#include "mhla/train/batch_pass.h"
#include "mhla/train/best.h"
#include "mhla/train/distributed/gradient_sum.h"
#include "mhla/train/ema.h"
#include "mhla/train/run_lock.h"
#include "mhla/train/run_log.h"
#include "mhla/train/runs/checkpoints.h"
#include "mhla/train/schedule.h"
#include "mhla/train/step_stats.h"
#include "mhla/train/stop_signal.h"
#include "mhla/train/trainer.h"
#include "mhla/train/window.h"

namespace mhla::train {

// A failure whose message says the step and the last good checkpoint already.
struct WholeMessage : RunFailed {
  using RunFailed::RunFailed;
};

// A step that was launched and not judged yet.
struct Launched {
  std::int64_t step = 0;  // done when it is
  double lr = 0, weight = 0;
  std::vector<std::string> sum_names, grad_names;
  std::string where;       // the ranks whose loss is not finite, as part of a message
  torch::Tensor own_norm;  // [] of this rank's gradients before the sum; on the CPU it is asked for when needed
  StepStats stats;
};

struct Trainer::Loop {
  using Clock = std::chrono::steady_clock;

  Loop(Task& given, const TrainOptions& train_options, std::filesystem::path run_folder, JsonValue config,
       Observer& watcher);
  [[nodiscard]] double epochs_at(std::int64_t at) const;

  // ---- The folder (trainer_folder.cpp)

  void open(const RunStart& how);
  void open_here(const RunStart& how);  // in this process
  // Writes what a run has before its first step, and the first row of the log.
  void begin(const RunStart& how, const std::optional<Checkpoint>& start, std::uint64_t keep_bytes,
             const std::vector<std::string>& complaints);
  void save();
  // Returns how much of the log belongs to the checkpoint.
  std::uint64_t restore(const Checkpoint& checkpoint);
  void finish();
  void write_average(const std::filesystem::path& file, const Metadata& metadata = {});
  // best.safetensors, where this evaluation beats those before: the weights or their average, whichever is better.
  void keep_best(const Metrics& now, const Metrics& average);
  void keep_picture(const Image& picture, double seconds);
  [[nodiscard]] std::filesystem::path picture_file() const;  // of this step
  void note(const JsonValue& row);
  void warn(const std::string& text);

  // ---- Steps (trainer.cpp)

  [[nodiscard]] Launched next_step() const;  // of which nothing is done yet
  Launched launch();
  // The update, from gradients that are sums over `divisor` samples, or a mean with 1.
  void update(Launched& now, const torch::Tensor& loss, const std::vector<torch::Tensor>& sums, double divisor);
  // Reads the numbers of a step, ends the run where they are none, and adds them to the window.
  void judge(Launched& done);
  JsonValue step_row(const Launched& done);
  // False when a signal cut it short: it is then made when the run goes on.
  bool evaluate();
  Metrics evaluate_once();
  // samples/step-00000500.png, made by the task with the average of the weights; false as with evaluate().
  bool draw(bool unless_there = false);
  bool draw_here();  // in this process
  TrainResult train();
  [[nodiscard]] bool evaluation_is_due() const;
  [[nodiscard]] bool checkpoint_is_due() const;
  [[nodiscard]] bool picture_is_due() const;

  // ---- Several processes (trainer_team.cpp)

  // A step of several microbatches, of this process and of others. All ranks leave it with the same gradients, and
  // with the same mind about signals and checkpoints.
  Launched launch_shared();
  void exchange(Launched& now, const std::vector<torch::Tensor>& leaves);
  // The same for ranks whose gradients are not finite, though their loss is. All ranks ask.
  std::string ranks_to_blame(const Launched& done);
  void only_first(const std::function<void()>& work, const char* what);  // rank 0, while the others wait
  void expect_agreement();                                               // on options, model and data
  void share_start();                                                    // where rank 0 begins, all begin
  [[nodiscard]] PrefixedRows rows() const;  // of a checkpoint, where its ranks keep them together
  JsonValue shared_cursor();                // and a look at everybody's weights
  [[nodiscard]] int stopped_by() const;     // the signal that all know of, or 0

  Task& task;
  const TrainOptions options;
  const std::filesystem::path folder;
  const JsonValue run_config;
  Observer& observer;
  const Place place;
  distributed::Team* const team;  // null: alone
  const torch::Device device;
  const std::int64_t total;
  const Schedule schedule;
  AdamW optimizer;
  CheckpointFolder checkpoints;
  BatchPass pass;
  std::optional<Ema> ema;
  std::optional<distributed::GradientSum> gradient_sum;  // where a batch has parts
  std::optional<RunLock> lock;
  std::optional<RunLog> log;
  std::int64_t step = 0, last_saved = -1, evaluated_at = -1;
  std::string last_good;
  Window window;
  Metrics metrics;
  std::optional<Best> best;
  Clock::time_point saved_at;                // or when the run began
  Clock::time_point timed_from, last_shown;  // speed is taken over five seconds or one line of the log
  double samples_timed = 0;
  std::int64_t steps_timed = 0;
  const StopSignal* signal = nullptr;  // while it trains
  int agreed_signal = 0;               // several processes: as of the last exchange
  bool time_to_save = false;           // the same
  std::vector<std::string> sum_names;  // of the batches so far
};

}  // namespace mhla::train
