// Multiple choice by log-likelihood: of the texts that may follow, the likeliest is the answer. Files as they are
// published, one JSON object a line:
//   piqa        goal, sol1, sol2, label (or <name>-labels.lst beside the file)
//   winogrande  sentence with _, option1, option2, answer "1" or "2"
//   arc         question and choices {text[], label[]}, or question {stem, choices[{text, label}]}; answerKey
//   obqa        the same, or question_stem and choices; answerKey
//   boolq       passage, question, answer true/false or label 0/1
//   mmlu        question, choices[4], answer 0 to 3, subject; or a folder of <subject>_test.csv
//   choices     context, choices[], gold: anything else
// Prompts are those of the common evaluation harness, without examples.
#pragma once

#include "mhla/io/json.h"
#include "mhla/language/text_model.h"

namespace mhla {

struct ChoiceItem {
  std::vector<std::string> contexts, continuations;  // [choices]; a continuation opens with its space
  std::size_t gold = 0;
};

bool is_choice_task(const std::string& task);  // arc_easy and arc_challenge are arc, too
ChoiceItem choice_item(const std::string& task, const JsonValue& row);
std::vector<ChoiceItem> read_choices(const std::string& task, const std::string& path, std::int64_t limit = 0);

// acc: the likeliest; acc_norm: the likeliest by character.
TaskResult run_choices(const std::string& task, std::span<const ChoiceItem> items, TextModel& model);

}  // namespace mhla
