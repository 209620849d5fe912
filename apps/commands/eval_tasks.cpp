#include "apps/commands/eval_tasks.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "apps/cli/flags.h"

namespace mhla::apps {

void add_task_flags(CLI::App& command, TaskFlags& f) {
  command
      .add_option("--task", f.tasks,
                  "score a task instead of perplexity; repeatable. NAME=PATH of piqa, winogrande, arc_easy, "
                  "arc_challenge, obqa, boolq, mmlu, choices, lambada, wikitext or longbench (a folder); or mqar, "
                  "passkey, needle, which need no file")
      ->type_name("NAME[=PATH]")
      ->take_all()
      ->allow_extra_args(false);
  command
      .add_option("--items", f.items,
                  "tasks: use the first so many items (default: all; 32 of mqar, passkey and needle)")
      ->check(is_positive());
  command
      .add_option("--lengths", f.lengths,
                  "tasks mqar, passkey, needle: tokens of a sequence, joined by commas (default: as in training)")
      ->delimiter(',')
      ->check(is_positive());
  command
      .add_option("--mqar-pairs,--pairs", f.pairs,
                  "task mqar: keys and values of a sequence (default: as in training on mqar, else 16)")
      ->check(is_positive());
  command
      .add_option("--mqar-vocab", f.mqar_vocab,
                  "task mqar: number of ids (default: as in training on mqar, else up to 8192)")
      ->check(is_positive());
  command
      .add_option("--mqar-skew", f.mqar_skew,
                  "task mqar: 1, keys come back anywhere; more, mostly early (default: as in training on mqar, else 1)")
      ->check(is_positive());
  command.add_option("--needles", f.needles, "task needle: numbers hidden in the text")
      ->check(whole_number(1, 24))
      ->capture_default_str();
  command
      .add_option("--max-prompt", f.max_prompt,
                  "task longbench: tokens of a prompt; longer ones lose their middle (default: no limit)")
      ->check(is_positive());
  command.add_option("--seed,--task-seed", f.seed, "tasks mqar, passkey, needle: seed of the sequences")
      ->check(is_seed())
      ->capture_default_str();
  add_precision(command, f.precision, "tasks: precision of the weights, f32 or bf16");
}

std::vector<const char*> task_flags() {
  return {"--items",   "--lengths",    "--mqar-pairs", "--mqar-vocab", "--mqar-skew",
          "--needles", "--max-prompt", "--seed",       "--precision"};
}

void set_tasks(const TaskFlags& f, JsonValue& request) {
  JsonValue tasks = JsonValue::array(), lengths = JsonValue::array();
  for (const std::string& text : f.tasks) {
    const std::size_t equals = text.find('=');
    tasks.push(JsonValue()
                   .set("task", text.substr(0, equals))
                   .set("data", equals == std::string::npos ? "" : text.substr(equals + 1)));
  }
  for (const std::int64_t length : f.lengths) lengths.push(length);
  request.set("command", "eval lm tasks")
      .set("tasks", tasks)
      .set("lengths", lengths)
      .set("items", f.items)
      .set("pairs", f.pairs)
      .set("needles", f.needles)
      .set("mqar_vocab", f.mqar_vocab)
      .set("mqar_skew", f.mqar_skew)
      .set("max_prompt", f.max_prompt)
      .set("seed", f.seed)
      .set("precision", f.precision);
}

void print_task(const JsonValue& row, const Output& out) {
  std::string text = fmt::format("{:<22} {:>6} items", row.at("task").as_string(), row.at("items").as_int());
  if (const JsonValue* length = row.find("length")) text += fmt::format("  length {:>7}", length->as_int());
  if (const JsonValue* pairs = row.find("pairs")) text += fmt::format("  {:>4} pairs", pairs->as_int());
  for (const JsonValue::Member& figure : row.at("figures").members()) {
    if (figure.key.size() > 6 && figure.key.compare(figure.key.size() - 6, 6, "_error") == 0) {
      text += fmt::format(" +- {:.4f}", figure.value.as_double());
    } else {
      text += fmt::format("  {} {:.4f}", figure.key, figure.value.as_double());
    }
  }
  if (const std::string& policy = row.at("length_policy").as_string(); policy != "none")
    text += fmt::format("  length policy {}", policy);
  if (row.at("limit").as_int() > 0) text += fmt::format(", at most {} tokens", row.at("limit").as_int());
  if (const JsonValue* prompts = row.find("prompts")) text += fmt::format("  prompts {}", prompts->as_string());
  out.line(text);
}

}  // namespace mhla::apps
