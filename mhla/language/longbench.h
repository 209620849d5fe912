// LongBench: 14 tasks of long texts, <task>.jsonl with input, context and answers, each with the measure it was
// published with, times 100. Prompts are those of dataset2prompt.json where that file lies in the folder, in its
// config/ or in config/ beside it; without it short ones of ours are used, and the result says so.
#pragma once

#include "mhla/language/text_model.h"

namespace mhla {

std::vector<std::string> longbench_tasks();

struct LongBenchItem {
  std::string prompt;
  std::vector<std::string> answers;
};

struct LongBenchTask {
  std::string task;
  std::string prompts;  // path of dataset2prompt.json, or "short"
  std::vector<LongBenchItem> items;
};

LongBenchTask read_longbench(const std::string& task, const std::string& folder, std::int64_t limit = 0);

// Prompts beyond `max_prompt` tokens (0: any) lose their middle, as published. Figures: score, and the part of prompts
// that were cut.
TaskResult run_longbench(const LongBenchTask& task, std::int64_t max_prompt, TextModel& model);

double longbench_score(const std::string& task, std::string_view said, std::span<const std::string> answers);  // 0 to 1

}  // namespace mhla
