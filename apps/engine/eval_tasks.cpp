#include "apps/engine/eval_tasks.h"

#include <chrono>
#include <filesystem>
#include <map>

#include "apps/engine/training.h"
#include "mhla/core/limits.h"
#include "mhla/core/seconds.h"
#include "mhla/language/choices.h"
#include "mhla/language/decoding/lm_text_model.h"
#include "mhla/language/longbench.h"
#include "mhla/language/not_finite.h"
#include "mhla/language/prose.h"
#include "mhla/language/recall.h"
#include "mhla/train/lm/open_lm.h"
#include "mhla/train/memory.h"

namespace mhla::apps {

using namespace mhla::train;

namespace {

constexpr const char* kEvalTasksCommand = "eval lm";

// What a task gets besides the model.
struct Settings {
  std::int64_t items = 0, max_prompt = 0, needles = 8;
  MqarOptions mqar;
  std::vector<std::int64_t> lengths;
  bool as_in_training = false;  // the lengths: an answer must fit after a prompt
  std::uint64_t seed = 0;
};

class Runner {
 public:
  Runner(LmTextModel& model, const Settings& settings, const JsonValue& head, Observer& observer)
      : model_(model), settings_(settings), head_(head), observer_(observer) {}

  void run(const std::string& task, const std::string& data) {
    if (task == "mqar" || task == "passkey" || task == "needle") return recall(task);
    if (data.empty()) fail(kEvalTasksCommand, ": task ", task, " has no data, expected --task ", task, "=PATH");
    if (task == "longbench") return longbench(data);
    const auto begin = std::chrono::steady_clock::now();
    if (is_choice_task(task)) {
      const std::vector<ChoiceItem> items = read_choices(task, data, settings_.items);
      tell(run_choices(task, items, model_), begin, JsonValue().set("data", data));
    } else if (task == "lambada") {
      const std::vector<LastWordItem> items = read_last_words(data, settings_.items);
      tell(run_last_words(task, items, model_), begin, JsonValue().set("data", data));
    } else if (task == "wikitext") {
      const std::vector<std::string> pages = read_pages(data, settings_.items);
      tell(run_pages(task, pages, model_), begin, JsonValue().set("data", data));
    } else {
      fail(kEvalTasksCommand, ": task '", task,
           "' is unknown, expected piqa, winogrande, arc_easy, arc_challenge, obqa, boolq, ",
           "mmlu, choices, lambada, wikitext, mqar, passkey, needle or longbench");
    }
  }

  // The mean of six accuracies, where all six are there: the column CSR of the paper.
  void finish() {
    const std::pair<const char*, const char*> six[] = {{"winogrande", "acc"},         {"piqa", "acc"},
                                                       {"arc_challenge", "acc_norm"}, {"obqa", "acc_norm"},
                                                       {"arc_easy", "acc_norm"},      {"boolq", "acc"}};
    double sum = 0.0;
    for (const auto& [task, figure] : six) {
      const auto found = told_.find(str(task, ".", figure));
      if (found == told_.end()) return;
      sum += found->second / 6.0;
    }
    JsonValue row = head_;
    observer_.row(
        row.set("task", "csr").set("items", 6).set("figures", JsonValue().set("mean", sum)).set("seconds", 0.0));
  }

 private:
  void tell(const TaskResult& result, std::chrono::steady_clock::time_point begin, const JsonValue& more) {
    JsonValue figures = JsonValue::object();
    for (const Figure& figure : result.figures) {
      figures.set(figure.name, figure.value);
      if (figure.error > 0.0) figures.set(figure.name + "_error", figure.error);
      told_[str(result.task, ".", figure.name)] = figure.value;
    }
    JsonValue row = head_;
    row.set("task", result.task).set("items", result.items);
    for (const JsonValue::Member& member : more.members()) row.set(member.key, member.value);
    row.set("figures", figures).set("seconds", seconds_since(begin));
    observer_.row(row);
  }

  void recall(const std::string& task) {
    const std::int64_t items = settings_.items > 0 ? settings_.items : 32;
    for (const std::int64_t length : settings_.lengths) {
      const auto begin = std::chrono::steady_clock::now();
      JsonValue more = JsonValue().set("length", length);
      TaskResult result;
      if (task == "mqar") {
        MqarOptions o = settings_.mqar;
        o.length = length, o.seed = settings_.seed;
        result = run_mqar(o, items, model_);
        more.set("pairs", o.pairs).set("vocab", o.vocab_size).set("skew", o.skew);
      } else {
        NeedleOptions o;
        o.length = settings_.as_in_training ? std::max<std::int64_t>(1, length - kAnswerTokens) : length;
        o.needles = task == "passkey" ? 1 : settings_.needles, o.seed = settings_.seed;
        result = run_needles(o, items, model_);
        more.set("needles", o.needles);
      }
      tell(result, begin, more);
    }
  }

  // Every one of the 14 whose file is in the folder, and their plain mean.
  void longbench(const std::string& folder) {
    double sum = 0.0;
    int count = 0;
    for (const std::string& task : longbench_tasks()) {
      if (!std::filesystem::exists(std::filesystem::path(folder) / (task + ".jsonl"))) continue;
      const auto begin = std::chrono::steady_clock::now();
      const LongBenchTask one = read_longbench(task, folder, settings_.items);
      const TaskResult result = run_longbench(one, settings_.max_prompt, model_);
      tell(result, begin, JsonValue().set("data", folder).set("prompts", one.prompts));
      sum += result.figures[0].value;
      ++count;
    }
    if (count == 0) fail(kEvalTasksCommand, ": ", folder, " has none of LongBench's files, such as hotpotqa.jsonl");
    const TaskResult mean{"longbench", count, {{"mean", sum / count}}};
    tell(mean, std::chrono::steady_clock::now(), JsonValue().set("data", folder));
  }

  LmTextModel& model_;
  const Settings& settings_;
  JsonValue head_;
  Observer& observer_;
  std::map<std::string, double> told_;
};

// As the request says, else as the run was trained on it, else up to 8192 of the model's ids.
MqarOptions mqar_of(const LmTasks& asked, const LmRun& run, const TextModel& model) {
  MqarOptions o = is_mqar(run.options) ? mqar_options(run.options, run.options.context) : MqarOptions{};
  if (!is_mqar(run.options)) {
    o.length = run.model->config().context;
    o.vocab_size = std::min(o.vocab_size, model.vocab_size() / 2 * 2);
  }
  if (asked.pairs > 0) o.pairs = asked.pairs;
  if (asked.mqar_vocab > 0) o.vocab_size = asked.mqar_vocab;
  if (asked.mqar_skew > 0) o.skew = asked.mqar_skew;
  return o;
}

}  // namespace

void eval_lm_tasks(const EvalLmRequest& request, Observer& observer) {
  const LmTasks& asked = request.tasks;
  Settings settings;
  settings.items = asked.items, settings.max_prompt = asked.max_prompt, settings.needles = asked.needles;
  settings.seed = asked.seed, settings.lengths = asked.lengths;
  for (const std::int64_t length : settings.lengths)
    expect_within(kEvalTasksCommand, "--lengths", length, limits::kContext);
  LmRun run = open_lm_run(kEvalTasksCommand, request.open, observer);
  for (const std::int64_t length : settings.lengths)
    expect_inference_fits(kEvalTasksCommand, size_of(run.model->config(), length, false, /*alone=*/true), 1,
                          run.options.train);
  if (asked.precision == "bf16") run.model->cast(torch::kBFloat16);
  LmTextOptions options;
  options.policy = parse_length_policy(request.length_policy);
  options.limit = request.length;
  LmTextModel model(run.model, run.maybe_tokenizer, options);
  settings.mqar = mqar_of(asked, run, model);
  settings.as_in_training = settings.lengths.empty();
  if (settings.as_in_training) settings.lengths = {settings.mqar.length};
  model.progress = [&](std::int64_t done, std::int64_t of) {
    observer.progress(JsonValue().set("kind", "eval").set("step", done).set("of", of));
  };
  const bool bounded = run.model->config().attention == "mhla" || model.limit() > 0;
  const JsonValue head = JsonValue()
                             .set("kind", "task")
                             .set("weights", run.weights.string())
                             .set("model", run.model->config().model)
                             .set("attention", run.model->config().attention)
                             .set("length_policy", bounded ? std::string(name_of(options.policy)) : "none")
                             .set("limit", model.limit());
  Runner runner(model, settings, head, observer);
  try {
    for (const std::string& task : asked.names) {
      const std::size_t equals = task.find('=');
      runner.run(task.substr(0, equals), equals == std::string::npos ? "" : task.substr(equals + 1));
    }
  } catch (const NotFinite&) {
    throw not_finite(kEvalTasksCommand, run.weights);
  }
  runner.finish();
}

}  // namespace mhla::apps
