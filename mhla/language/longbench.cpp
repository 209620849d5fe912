#include "mhla/language/longbench.h"

#include <algorithm>
#include <filesystem>

#include "mhla/core/error.h"
#include "mhla/io/file.h"
#include "mhla/io/folder.h"
#include "mhla/io/json_lines.h"
#include "mhla/language/text_metrics.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

enum class Measure { kF1, kRouge, kParagraph, kParagraphZh, kCode };

struct Row {
  const char* task;
  Measure measure;
  std::int64_t max_tokens;
  bool first_line;  // what is said behind it does not count
  const char* prompt;
};

constexpr const char* kAsk = "{context}\n\nQuestion: {input}\nAnswer:";
constexpr const char* kSummary = "{context}\n\nSummary:";
constexpr const char* kExamples = "{context}\n\n{input}";

constexpr Row kRows[] = {
    {"narrativeqa", Measure::kF1, 128, false, kAsk},
    {"qasper", Measure::kF1, 128, false, kAsk},
    {"hotpotqa", Measure::kF1, 32, false, kAsk},
    {"2wikimqa", Measure::kF1, 32, false, kAsk},
    {"musique", Measure::kF1, 32, false, kAsk},
    {"triviaqa", Measure::kF1, 32, true, kExamples},
    {"gov_report", Measure::kRouge, 512, false, kSummary},
    {"qmsum", Measure::kRouge, 512, false, kAsk},
    {"multi_news", Measure::kRouge, 512, false, kSummary},
    {"samsum", Measure::kRouge, 128, true, kExamples},
    {"passage_retrieval_en", Measure::kParagraph, 32, false,
     "{context}\n\nAbstract: {input}\n\nThe abstract is that of Paragraph"},
    {"passage_retrieval_zh", Measure::kParagraphZh, 32, false,
     "{context}\n\n\xe6\x91\x98\xe8\xa6\x81\xef\xbc\x9a{input}\n\n\xe6\x91\x98\xe8\xa6\x81\xe5\x87\xba\xe8\x87\xaa\xe6"
     "\xae\xb5\xe8\x90\xbd"},
    {"lcc", Measure::kCode, 64, false, "{context}"},
    {"repobench-p", Measure::kCode, 64, false, "{context}{input}"},
};

const Row& row_of(const std::string& task) {
  for (const Row& row : kRows)
    if (task == row.task) return row;
  std::string names;
  for (const Row& row : kRows) names += str(names.empty() ? "" : ", ", row.task);
  fail("longbench: task '", task, "' is unknown, expected one of ", names);
}

std::string filled(std::string_view prompt, std::string_view context, std::string_view input) {
  std::string text;
  while (!prompt.empty()) {
    const std::size_t at = prompt.find('{');
    text += prompt.substr(0, at);
    prompt.remove_prefix(std::min(at, prompt.size()));
    bool found = false;
    for (const auto& [name, value] : {std::pair{std::string_view("{context}"), context}, {"{input}", input}})
      if (prompt.substr(0, name.size()) == name) {
        text += value;
        prompt.remove_prefix(name.size());
        found = true;
        break;
      }
    if (!found && !prompt.empty()) {
      text += prompt.front();
      prompt.remove_prefix(1);
    }
  }
  return text;
}

fs::path find_prompts(const fs::path& folder) {
  for (const fs::path& place : {folder, folder / "config", folder / ".." / "config"})
    if (is_there(place / "dataset2prompt.json")) return place / "dataset2prompt.json";
  return {};
}

}  // namespace

std::vector<std::string> longbench_tasks() {
  std::vector<std::string> names;
  for (const Row& row : kRows) names.emplace_back(row.task);
  return names;
}

LongBenchTask read_longbench(const std::string& task, const std::string& folder, std::int64_t limit) {
  const Row& row = row_of(task);
  const fs::path path = fs::path(folder) / (task + ".jsonl"), prompts = find_prompts(folder);
  LongBenchTask out{task, prompts.empty() ? "short" : prompts.lexically_normal().string(), {}};
  std::string prompt = row.prompt;
  if (!prompts.empty()) {
    const JsonValue all = read_json(prompts);
    const JsonValue* mine = all.is_object() ? all.find(task) : nullptr;
    if (mine == nullptr || !mine->is_string()) fail(prompts.string(), ": no prompt for ", task);
    prompt = mine->as_string();
  }
  const std::vector<std::byte> bytes = read_file(path);
  read_json_lines({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path.string(),
                  [&](const std::string& name, const JsonValue& value) {
                    if (limit > 0 && static_cast<std::int64_t>(out.items.size()) >= limit) return;
                    try {
                      LongBenchItem item;
                      item.prompt = filled(prompt, value.at("context").as_string(), value.at("input").as_string());
                      for (const JsonValue& answer : value.at("answers").items())
                        item.answers.push_back(answer.as_string());
                      if (item.answers.empty()) fail("answers are none, expected one at least");
                      out.items.push_back(std::move(item));
                    } catch (const Error& error) {
                      fail(name, ": ", error.what());
                    }
                  });
  if (out.items.empty()) fail("task: ", path.string(), " has no items");
  return out;
}

double longbench_score(const std::string& task, std::string_view said, std::span<const std::string> answers) {
  const Row& row = row_of(task);
  if (row.first_line) {
    said.remove_prefix(std::min(said.find_first_not_of('\n'), said.size()));
    said = said.substr(0, said.find('\n'));
  }
  double best = 0.0;
  for (const std::string& answer : answers) {
    double score = 0.0;
    switch (row.measure) {
      case Measure::kF1: score = word_f1(said, answer); break;
      case Measure::kRouge: score = rouge_l(said, answer); break;
      case Measure::kParagraph: score = retrieved(said, answer, "Paragraph "); break;
      case Measure::kParagraphZh: score = retrieved(said, answer, "\xe6\xae\xb5\xe8\x90\xbd"); break;
      case Measure::kCode: score = code_similarity(said, answer); break;
    }
    best = std::max(best, score);
  }
  return best;
}

TaskResult run_longbench(const LongBenchTask& task, std::int64_t max_prompt, TextModel& model) {
  const Row& row = row_of(task.task);
  std::vector<double> scores, cut;
  for (const LongBenchItem& item : task.items) {
    std::vector<std::uint32_t> tokens = model.tokenizer().encode(item.prompt);
    const auto count = static_cast<std::int64_t>(tokens.size());
    cut.push_back(max_prompt > 0 && count > max_prompt ? 1.0 : 0.0);
    if (cut.back() > 0.0) tokens.erase(tokens.begin() + max_prompt / 2, tokens.end() - max_prompt / 2);
    const std::string said = model.generate(tokens, row.max_tokens, {});
    scores.push_back(100.0 * longbench_score(task.task, said, item.answers));
  }
  Figure part = mean_figure("cut", cut);
  part.error = 0.0;
  return {task.task, static_cast<std::int64_t>(task.items.size()), {mean_figure("score", scores), part}};
}

}  // namespace mhla
