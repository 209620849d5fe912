// One step: gradients of `accumulate` batches, their norm, the update, the constraint, the average. On the CPU the
// numbers of a step are judged before its update; on a GPU one step later, which costs nothing: a run whose loss is
// no number ends there, and a checkpoint is only written of steps that were judged.
#include "mhla/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "mhla/core/error.h"
#include "mhla/core/seconds.h"
#include "mhla/ops/torch_error.h"
#include "mhla/train/distributed/team.h"
#include "mhla/train/gradients.h"
#include "mhla/train/shared_eval.h"
#include "mhla/train/trainer_loop.h"

namespace mhla::train {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

struct NoObserver : Observer {
  void row(const JsonValue&) override {}
  void progress(const JsonValue&) override {}
};

Observer& no_observer() {
  static NoObserver none;
  return none;
}

}  // namespace

Trainer::Loop::Loop(Task& given, const TrainOptions& train_options, fs::path run_folder, JsonValue config,
                    Observer& watcher)
    : task(given),
      options(train_options),
      folder(std::move(run_folder)),
      run_config(std::move(config)),
      observer(train_options.place.leads() ? watcher : no_observer()),
      place(options.place),
      team(options.place.maybe_team),
      device(device_of(options.device)),
      total(mhla::train::total_steps(given, options)),
      schedule(options, total),
      optimizer(param_groups(given.model(), options),
                {.beta1 = options.beta1, .beta2 = options.beta2, .eps = options.adam_eps}, keepers_of(options)),
      checkpoints(folder / "checkpoints", options.keep),
      pass(given, options, device) {
  if (options.ema > 0) ema.emplace(task.model(), options.ema, keepers_of(options));
  if (share_of(options).parts == 1 && place.ranks == 1) return;
  std::vector<std::string> names;
  std::vector<torch::Tensor> params, buffers;
  for (const auto& item : task.model().named_parameters())
    if (item.value().requires_grad()) names.push_back(item.key()), params.push_back(item.value());
  for (const auto& item : task.model().named_buffers()) buffers.push_back(item.value());
  gradient_sum.emplace(
      team, names, params, buffers,
      distributed::GradientSumOptions{
          .leaves = share_of(options).count, .fixed_tree = options.deterministic_reduce, .context = place.context});
}

std::int64_t total_steps(const Task& task, const TrainOptions& options) {
  if (options.max_steps > 0) return options.max_steps;
  const std::int64_t most = std::numeric_limits<std::int64_t>::max() / task.batches_per_epoch();
  if (options.epochs > most)
    fail("train: epochs is ", options.epochs, ", expected at most ", most, " of ", task.batches_per_epoch(),
         " batches");
  const std::int64_t steps = options.epochs * task.batches_per_epoch() / options.accumulate;
  if (steps < 1)
    fail("train: ", options.epochs, " epochs of ", task.batches_per_epoch(), " batches make no step of accumulate ",
         options.accumulate, ", expected fewer samples a batch or max_steps");
  return steps;
}

double Trainer::Loop::epochs_at(std::int64_t at) const {
  return static_cast<double>(at * options.accumulate) / static_cast<double>(task.batches_per_epoch());
}

Launched Trainer::Loop::next_step() const {
  return {.step = step + 1,
          .lr = schedule(step),
          .weight = 0,
          .sum_names = {},
          .grad_names = {},
          .where = {},
          .own_norm = {},
          .stats = StepStats(torch::zeros({1}))};
}

Launched Trainer::Loop::launch() {
  if (gradient_sum) return launch_shared();
  Launched now = next_step();
  torch::Tensor loss;
  std::vector<torch::Tensor> sums;
  for (std::int64_t i = 0; i < options.accumulate; ++i) {
    const TrainBatch batch = task.next_batch();
    const BatchResult result = pass(batch);
    const auto weight = static_cast<double>(batch.weight);
    const torch::Tensor sum = result.loss.to(torch::kFloat) * weight;
    loss = loss.defined() ? loss + sum : sum;
    now.weight += weight;
    for (std::size_t j = 0; j < result.sums.size(); ++j) {
      const torch::Tensor value = result.sums[j].second.to(torch::kFloat);
      if (i == 0) now.sum_names.push_back(result.sums[j].first), sums.push_back(value);
      if (i > 0) sums.at(j) = sums.at(j) + value;
    }
  }
  update(now, loss, sums, sums_losses(options) ? now.weight : 1.0);
  return now;
}

void Trainer::Loop::update(Launched& now, const torch::Tensor& loss, const std::vector<torch::Tensor>& sums,
                           double divisor) {
  const GradientNorms norms = gradient_norms(optimizer.groups(), options.clip_mix_apart.value_or(true));
  now.grad_names = norms.names;
  std::vector<torch::Tensor> values{loss, norms.total / divisor};
  values.insert(values.end(), sums.begin(), sums.end());
  now.stats = StepStats(at::cat({at::stack(values), norms.each / divisor}));
  if (!device.is_cuda()) judge(now);
  if (gradient_sum) gradient_sum->forget_own();
  optimizer.step(now.lr, gradient_scales(norms, divisor, options.clip_norm));
  optimizer.zero_grad();
  {
    const torch::NoGradGuard no_gradient;
    task.constrain();
  }
  ++step;
  if (ema) ema->update(step);
}

void Trainer::Loop::judge(Launched& done) {
  const std::vector<double> values = done.stats.wait();
  const std::size_t sums = done.sum_names.size();
  const double loss = values[0] / done.weight, norm = values[1];
  if (!std::isfinite(loss) || !std::isfinite(norm)) {
    if (std::isfinite(loss) && team != nullptr) done.where = ranks_to_blame(done);
    const std::vector<double> each(values.begin() + 2 + static_cast<std::ptrdiff_t>(sums), values.end());
    const std::string message =
        str("train: ", std::isfinite(loss) ? "the gradient is not finite" : "the loss is not finite", " at step ",
            done.step, done.where, " (loss ", loss, ", learning rate ", done.lr, "): ", blame(done.grad_names, each),
            "; last good checkpoint: ", last_good.empty() ? "none" : last_good);
    note(JsonValue().set("kind", "failed").set("step", done.step).set("reason", message));
    throw WholeMessage(message);
  }
  ++window.steps;
  window.loss += values[0], window.weight += done.weight, window.grad_norm += norm;
  for (std::size_t i = 0; i < sums; ++i) window.add(done.sum_names[i], values[2 + i]);
  samples_timed += done.weight / task.counted_by(), ++steps_timed;
  const bool due = done.step % options.log_every == 0 || done.step == total;
  if (due || seconds_since(last_shown) > 0.2) {
    last_shown = Clock::now();
    const JsonValue row = step_row(done);
    if (due) note(row), window = {};
    observer.progress(row);
  }
  if (due && seconds_since(timed_from) > 5.0) timed_from = Clock::now(), samples_timed = 0, steps_timed = 0;
}

JsonValue Trainer::Loop::step_row(const Launched& done) {
  JsonValue row = JsonValue()
                      .set("kind", "step")
                      .set("step", done.step)
                      .set("of", total)
                      .set("epoch", epochs_at(done.step))
                      .set("loss", window.loss / window.weight);
  for (const auto& [name, sum] : window.sums) row.set(name, sum / window.weight);
  const double seconds = std::max(seconds_since(timed_from), 1e-9), rate = samples_timed / seconds;
  for (const auto& [name, value] : task.derived(window.loss / window.weight, rate)) row.set(name, value);
  return row.set("lr", done.lr)
      .set("grad_norm", window.grad_norm / static_cast<double>(window.steps))
      .set(str(task.samples(), "_per_s"), rate)
      .set("eta_s", seconds / static_cast<double>(steps_timed) * static_cast<double>(total - done.step));
}

bool Trainer::Loop::evaluate() {
  const auto start = Clock::now();
  const torch::NoGradGuard no_gradient;
  JsonValue row = JsonValue().set("kind", "eval").set("step", step).set("epoch", epochs_at(step));
  task.model().eval();
  Metrics now, average;
  bool swapped = false, whole = true;
  try {
    now = evaluate_once();
    if (ema) ema->swap(), swapped = true, average = evaluate_once();
  } catch (const StoppedTogether& stopped) {
    whole = false, agreed_signal = stopped.signal;
  } catch (const Stopped&) {
    whole = false;
    try {
      leave_evaluation(place, signal == nullptr ? 0 : signal->number());
    } catch (const StoppedTogether& stopped) {
      agreed_signal = stopped.signal;
    }
  }
  if (swapped) ema->swap();
  task.model().train();
  timed_from = Clock::now(), samples_timed = 0, steps_timed = 0;
  if (!whole) return false;
  metrics = now;
  for (const auto& [name, value] : average) metrics.emplace_back("ema_" + name, value);
  for (const auto& [name, value] : metrics) {
    if (!std::isfinite(value)) throw RunFailed(str("the weights give NaN or infinite values: ", name, " is ", value));
    row.set(name, value);
  }
  note(row.set("seconds", seconds_since(start)));
  evaluated_at = step;
  if (options.keep_best) keep_best(now, average);
  return true;
}

Metrics Trainer::Loop::evaluate_once() {
  const Autocast autocast(options, device);
  return task.evaluate([&](std::int64_t done, std::int64_t of) {
    if (seconds_since(last_shown) < 0.2) return;
    last_shown = Clock::now();
    observer.progress(JsonValue().set("kind", "eval").set("step", done).set("of", of).set("samples", task.samples()));
  });
}

bool Trainer::Loop::draw_here() {
  const auto start = Clock::now();
  const torch::NoGradGuard no_gradient;
  task.model().eval();
  const bool swaps = ema && !ema->shared();  // shared: all ranks do (draw)
  if (swaps) ema->swap();
  std::optional<Image> picture;
  const auto back = [&] {
    if (swaps) ema->swap();
    task.model().train();
    timed_from = Clock::now(), samples_timed = 0, steps_timed = 0;
  };
  try {
    const Autocast autocast(options, device);
    picture = task.picture([&](std::int64_t done, std::int64_t of) {
      if (seconds_since(last_shown) < 0.2) return;
      last_shown = Clock::now();
      observer.progress(JsonValue().set("kind", kPictures).set("step", done).set("of", of).set("samples", "steps"));
    });
  } catch (const Stopped&) {
  } catch (...) {
    back();
    throw;
  }
  back();
  if (picture) keep_picture(*picture, seconds_since(start));
  return picture.has_value();
}

TrainResult Trainer::Loop::train() {
  const StopSignal stop;
  signal = &stop;
  task.model().train();
  optimizer.zero_grad();
  timed_from = last_shown = saved_at = Clock::now();
  std::optional<Launched> waiting;
  const auto settle = [&] {
    if (waiting && device.is_cuda()) judge(*waiting);
    waiting.reset();
  };
  if (step > 0 && step < total && evaluated_at != step && evaluation_is_due())
    evaluate();  // the checkpoint came before
  if (step > 0 && step < total && picture_is_due()) draw(/*unless_there=*/true);
  while (step < total && stopped_by() == 0) {
    std::optional<Launched> now = launch();
    if (device.is_cuda() && waiting) judge(*waiting);
    waiting = std::move(now);
    if (team == nullptr)
      for (const std::string& text : task.take_warnings()) warn(text);
    const bool saves = checkpoint_is_due();
    const bool evaluates = step < total && evaluation_is_due();
    const bool draws = step < total && picture_is_due();
    if (saves || evaluates || draws) settle();
    if (saves) save();  // first: an evaluation may take long, or fail
    if (evaluates) evaluate();
    if (draws) draw();
  }
  settle();
  TrainResult result{.step = step, .stopped = {}, .metrics = {}};
  save();
  if (step == total && evaluate() && (!picture_is_due() || draw())) {
    finish();
    note(JsonValue().set("kind", "end").set("step", step).set("path", (folder / "model.safetensors").string()));
  } else {
    result.stopped = signal_name(stopped_by());
    note(JsonValue().set("kind", "stopped").set("step", step).set("signal", result.stopped).set("path", last_good));
  }
  result.metrics = metrics;
  return result;
}

bool Trainer::Loop::evaluation_is_due() const {
  if (options.eval_steps > 0) return step % options.eval_steps == 0;
  if (options.eval_every == 0) return false;
  if (options.eval_every > std::numeric_limits<std::int64_t>::max() / task.batches_per_epoch()) return false;
  const std::int64_t length = options.eval_every * task.batches_per_epoch();
  return step * options.accumulate / length != (step - 1) * options.accumulate / length;
}

bool Trainer::Loop::picture_is_due() const {
  const std::int64_t every = task.picture_every(total);
  return every > 0 && (step % every == 0 || step == total);
}

bool Trainer::Loop::checkpoint_is_due() const {
  if (options.checkpoint_every > 0 && step % options.checkpoint_every == 0) return true;
  if (team != nullptr) return time_to_save;
  return options.checkpoint_minutes > 0 && seconds_since(saved_at) >= 60.0 * options.checkpoint_minutes;
}

Trainer::Trainer(Task& task, const TrainOptions& options, fs::path folder, JsonValue run_config, Observer& observer) {
  check(options);
  loop_ = std::make_unique<Loop>(task, options, std::move(folder), std::move(run_config), observer);
}

Trainer::~Trainer() = default;

TrainResult Trainer::run(const RunStart& start) {
  const struct Unlock {
    std::optional<RunLock>& lock;
    ~Unlock() { lock.reset(); }
  } unlock{loop_->lock};
  loop_->open(start);
  const auto message = [&](const std::exception& error) {
    return str("train: step ", loop_->step, ": ", ops::short_reason(error),
               "; last good checkpoint: ", loop_->last_good.empty() ? "none" : loop_->last_good);
  };
  try {
    return loop_->train();
  } catch (const WholeMessage&) {
    throw;
  } catch (const distributed::RankFailed& error) {
    throw distributed::RankFailed(message(error));
  } catch (const Error& error) {  // the data are wrong
    throw Error(message(error));
  } catch (const std::exception& error) {
    throw RunFailed(message(error));
  }
}

std::int64_t Trainer::total_steps() const { return loop_->total; }

}  // namespace mhla::train
