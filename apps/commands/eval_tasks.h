// The tasks of `mhla eval lm --task`: their flags, and what is said of them.
#pragma once

#include <string>
#include <vector>

#include "apps/cli/output.h"

namespace CLI {
class App;
}

namespace mhla::apps {

struct TaskFlags {
  std::vector<std::string> tasks;  // NAME or NAME=PATH
  std::vector<std::int64_t> lengths;
  std::int64_t items = 0, max_prompt = 0, pairs = 0, needles = 8, mqar_vocab = 0, mqar_skew = 0;
  std::uint64_t seed = 0;
  std::string precision = "f32";
};

void add_task_flags(CLI::App& command, TaskFlags& flags);
std::vector<const char*> task_flags();  // those that perplexity does not have
// Into the request of `mhla eval lm`, whose command becomes "eval lm tasks".
void set_tasks(const TaskFlags& flags, JsonValue& request);
void print_task(const JsonValue& row, const Output& out);

}  // namespace mhla::apps
