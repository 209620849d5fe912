#include "apps/commands/eval_tasks.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "apps/cli/seed.h"

namespace mhla::apps {

void add_task_flags(CLI::App& command, TaskFlags& f) {
  command
      .add_option(
          "--task", f.tasks,
          "NAME=PATH of piqa, winogrande, arc_easy, arc_challenge, obqa, boolq, mmlu, choices, lambada, "
          "wikitext, longbench (a folder), or mqar, passkey, needle; in the place of perplexity; may come often")
      ->type_name("NAME[=PATH]")
      ->take_all()
      ->allow_extra_args(false);
  const auto whole = CLI::Range(std::int64_t{1}, std::int64_t{1} << 40);
  command.add_option("--items", f.items, "of a task, from its beginning (default: all; 32 of mqar, passkey, needle)")
      ->check(whole);
  command.add_option("--lengths", f.lengths, "tokens of mqar, passkey and needle (default: as in training)")
      ->delimiter(',')
      ->check(whole);
  command.add_option("--pairs", f.pairs, "keys and values of mqar (default: as in training on it, else 16)")
      ->check(whole);
  command.add_option("--mqar-vocab", f.mqar_vocab, "ids of mqar (default: as in training on it, else up to 8192)")
      ->check(whole);
  command
      .add_option("--mqar-skew", f.mqar_skew,
                  "1: keys come back anywhere; more: mostly early (default: as in training on it, else 1)")
      ->check(whole);
  command.add_option("--needles", f.needles, "numbers in the text of needle")
      ->check(CLI::Range(1, 24))
      ->capture_default_str();
  command
      .add_option("--max-prompt", f.max_prompt,
                  "tokens of a prompt of longbench, which loses its middle (default: any)")
      ->check(whole);
  command.add_option("--task-seed", f.seed, "of mqar, passkey and needle")->check(is_seed())->capture_default_str();
  command.add_option("--precision", f.precision, "of the weights in tasks: f32 or bf16")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
}

std::vector<const char*> task_flags() {
  return {"--items",   "--lengths",    "--pairs",     "--mqar-vocab", "--mqar-skew",
          "--needles", "--max-prompt", "--task-seed", "--precision"};
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
