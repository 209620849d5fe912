#include "apps/commands/eval_tasks.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

namespace mhla::apps {

void check_task_flags(const RequestFlags& flags) {
  flags["task"].type_name("NAME[=PATH]")->take_all()->allow_extra_args(false);
  flags["lengths"].delimiter(',')->check(is_positive());
  for (const char* field : {"items", "mqar_pairs", "mqar_vocab", "mqar_skew", "max_prompt"})
    flags[field].check(is_positive());
  flags.shown("needles").check(whole_number(1, 24));
  flags.shown("seed").check(is_seed());
  flags.shown("precision").check(one_of({"f32", "bf16"}));
}

std::vector<const char*> task_flags() {
  return {"--items",   "--lengths",    "--mqar-pairs", "--mqar-vocab", "--mqar-skew",
          "--needles", "--max-prompt", "--seed",       "--precision"};
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
