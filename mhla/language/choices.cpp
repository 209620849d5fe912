#include "mhla/language/choices.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "mhla/core/error.h"
#include "mhla/io/csv.h"
#include "mhla/io/file.h"
#include "mhla/io/folder.h"
#include "mhla/io/json_lines.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

std::string trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return std::string(text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1));
}

// One context for all choices.
ChoiceItem asked(const std::string& context, const std::vector<std::string>& choices, std::int64_t gold) {
  if (gold < 0 || gold >= static_cast<std::int64_t>(choices.size()))
    fail("the answer is choice ", gold, ", expected 0 to ", static_cast<std::int64_t>(choices.size()) - 1);
  ChoiceItem item;
  for (const std::string& choice : choices) {
    if (choice.empty()) fail("choice ", item.contexts.size(), " is empty");
    item.contexts.push_back(context);
    item.continuations.push_back(str(" ", choice));
  }
  item.gold = static_cast<std::size_t>(gold);
  return item;
}

ChoiceItem piqa(const JsonValue& row) {
  return asked(str("Question: ", row.at("goal").as_string(), "\nAnswer:"),
               {row.at("sol1").as_string(), row.at("sol2").as_string()}, row.at("label").as_int());
}

// The part behind the gap is scored after each option.
ChoiceItem winogrande(const JsonValue& row) {
  const std::string& sentence = row.at("sentence").as_string();
  const std::size_t gap = sentence.find('_');
  if (gap == std::string::npos) fail("sentence has no _, expected one where the options go");
  const std::string& answer = row.at("answer").as_string();
  if (answer != "1" && answer != "2") fail("answer is '", answer, "', expected \"1\" or \"2\"");
  ChoiceItem item;
  for (const char* option : {"option1", "option2"}) {
    item.contexts.push_back(sentence.substr(0, gap) + row.at(option).as_string());
    item.continuations.push_back(str(" ", trimmed(std::string_view(sentence).substr(gap + 1))));
  }
  item.gold = answer == "1" ? 0 : 1;
  return item;
}

// Question, choices and key of ARC and OpenBookQA, in the form of their authors or as a table.
ChoiceItem science(const JsonValue& row, bool prefixed) {
  std::vector<std::string> choices, labels;
  const JsonValue* question = row.find("question");
  const bool nested = question != nullptr && question->is_object();
  const JsonValue& stem = nested                          ? question->at("stem")
                          : row.contains("question_stem") ? row.at("question_stem")
                                                          : row.at("question");
  if (nested) {
    for (const JsonValue& choice : question->at("choices").items()) {
      choices.push_back(choice.at("text").as_string());
      labels.push_back(choice.at("label").as_string());
    }
  } else {
    for (const JsonValue& text : row.at("choices").at("text").items()) choices.push_back(text.as_string());
    for (const JsonValue& label : row.at("choices").at("label").items()) labels.push_back(label.as_string());
    if (labels.size() != choices.size()) fail(choices.size(), " choices and ", labels.size(), " labels");
  }
  const std::string& key = row.at("answerKey").as_string();
  const auto gold = std::find(labels.begin(), labels.end(), key);
  if (gold == labels.end()) fail("answerKey is '", key, "', which is no label of a choice");
  const std::string context = prefixed ? str("Question: ", stem.as_string(), "\nAnswer:") : stem.as_string();
  return asked(context, choices, gold - labels.begin());
}

ChoiceItem arc(const JsonValue& row) { return science(row, true); }
ChoiceItem obqa(const JsonValue& row) { return science(row, false); }

ChoiceItem boolq(const JsonValue& row) {
  const JsonValue* answer = row.find("answer");
  const std::int64_t gold = answer != nullptr ? (answer->as_bool() ? 1 : 0) : row.at("label").as_int();
  return asked(row.at("passage").as_string() + "\nQuestion: " + row.at("question").as_string() + "?\nAnswer:",
               {"no", "yes"}, gold);
}

ChoiceItem mmlu(const JsonValue& row) {
  const JsonValue::Array& choices = row.at("choices").items();
  if (choices.size() != 4) fail(choices.size(), " choices, expected 4");
  std::string subject = row.at("subject").as_string();
  std::replace(subject.begin(), subject.end(), '_', ' ');
  std::string context = str("The following are multiple choice questions (with answers) about ", subject, ".\n\n",
                            trimmed(row.at("question").as_string()), "\n");
  const char* letters[] = {"A", "B", "C", "D"};
  for (std::size_t i = 0; i < 4; ++i) context += str(letters[i], ". ", choices[i].as_string(), "\n");
  return asked(context + "Answer:", {letters[0], letters[1], letters[2], letters[3]}, row.at("answer").as_int());
}

ChoiceItem plain(const JsonValue& row) {
  std::vector<std::string> choices;
  for (const JsonValue& choice : row.at("choices").items()) choices.push_back(choice.as_string());
  return asked(row.at("context").as_string(), choices, row.at("gold").as_int());
}

struct Layout {
  const char* task;
  ChoiceItem (*read)(const JsonValue& row);
};
constexpr std::array<Layout, 9> kLayouts = {{{"piqa", piqa},
                                             {"winogrande", winogrande},
                                             {"arc", arc},
                                             {"arc_easy", arc},
                                             {"arc_challenge", arc},
                                             {"obqa", obqa},
                                             {"boolq", boolq},
                                             {"mmlu", mmlu},
                                             {"choices", plain}}};

const Layout* find_layout(const std::string& task) {
  for (const Layout& layout : kLayouts)
    if (task == layout.task) return &layout;
  return nullptr;
}

std::string text_of_file(const fs::path& path) {
  const std::vector<std::byte> bytes = read_file(path);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// PIQA keeps its answers in a file of their own, one a line.
std::vector<std::int64_t> labels_beside(const fs::path& path) {
  fs::path list = path;
  list.replace_filename(path.stem().string() + "-labels.lst");
  std::vector<std::int64_t> labels;
  if (!is_there(list)) return labels;
  read_json_lines(text_of_file(list), list.string(),
                  [&](const std::string&, const JsonValue& value) { labels.push_back(value.as_int()); });
  return labels;
}

// A table of MMLU as its authors have it: question, four choices, letter; the subject is in the file's name.
JsonValue mmlu_row(const std::vector<std::string>& cells, const fs::path& path) {
  if (cells.size() != 6) fail(cells.size(), " cells, expected a question, four choices and a letter");
  const std::string name = path.stem().string();
  JsonValue choices = JsonValue::array();
  for (std::size_t i = 1; i <= 4; ++i) choices.push(cells[i]);
  if (cells[5].size() != 1 || cells[5][0] < 'A' || cells[5][0] > 'D')
    fail("the answer is '", cells[5], "', expected A to D");
  return JsonValue()
      .set("question", cells[0])
      .set("choices", choices)
      .set("answer", cells[5][0] - 'A')
      .set("subject", name.substr(0, name.rfind('_')));
}

std::vector<fs::path> files_of(const std::string& path) {
  if (!is_folder(path)) return {path};
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error))
    if (entry->path().extension() == ".jsonl" || entry->path().extension() == ".csv") files.push_back(entry->path());
  if (error) fail(path, ": could not be listed: ", error.message());
  if (files.empty()) fail("task: no .jsonl or .csv file in ", path);
  std::sort(files.begin(), files.end());
  return files;
}

double characters(std::string_view text) {
  return static_cast<double>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

}  // namespace

bool is_choice_task(const std::string& task) { return find_layout(task) != nullptr; }

ChoiceItem choice_item(const std::string& task, const JsonValue& row) {
  const Layout* layout = find_layout(task);
  if (layout == nullptr) fail("task: '", task, "' has no choices");
  return layout->read(row);
}

std::vector<ChoiceItem> read_choices(const std::string& task, const std::string& path, std::int64_t limit) {
  std::vector<ChoiceItem> items;
  const auto add = [&](const std::string& name, const JsonValue& row) {
    if (limit > 0 && static_cast<std::int64_t>(items.size()) >= limit) return;
    try {
      items.push_back(choice_item(task, row));
    } catch (const Error& error) {
      fail(name, ": ", error.what());
    }
  };
  for (const fs::path& file : files_of(path)) {
    const std::string text = text_of_file(file);
    if (file.extension() == ".csv") {
      std::size_t number = 0;
      for (const auto& cells : parse_csv(text, file.string())) {
        const std::string name = str(file.string(), ": row ", ++number);
        try {
          add(name, mmlu_row(cells, file));
        } catch (const Error& error) {
          if (std::string_view(error.what()).substr(0, name.size()) == name) throw;
          fail(name, ": ", error.what());
        }
      }
      continue;
    }
    const std::vector<std::int64_t> labels = task == "piqa" ? labels_beside(file) : std::vector<std::int64_t>();
    std::size_t number = 0;
    read_json_lines(text, file.string(), [&](const std::string& name, const JsonValue& value) {
      JsonValue row = value;
      if (row.is_object() && !row.contains("label") && number < labels.size()) row.set("label", labels[number]);
      ++number;
      add(name, row);
    });
  }
  if (items.empty()) fail("task: ", path, " has no items");
  return items;
}

TaskResult run_choices(const std::string& task, std::span<const ChoiceItem> items, TextModel& model) {
  std::vector<TextRequest> requests;
  for (const ChoiceItem& item : items)
    for (std::size_t c = 0; c < item.contexts.size(); ++c)
      requests.push_back(text_request(model.tokenizer(), item.contexts[c], item.continuations[c]));
  const std::vector<TextScore> scores = model.score(requests);
  std::vector<double> acc, acc_norm;
  std::size_t at = 0;
  for (const ChoiceItem& item : items) {
    std::size_t best = 0, best_norm = 0;
    std::vector<double> norm;
    for (std::size_t c = 0; c < item.contexts.size(); ++c) {
      const double mine = scores[at + c].log_likelihood;
      norm.push_back(mine / characters(std::string_view(item.continuations[c]).substr(1)));
      if (mine > scores[at + best].log_likelihood) best = c;
      if (norm[c] > norm[best_norm]) best_norm = c;
    }
    acc.push_back(best == item.gold ? 1.0 : 0.0);
    acc_norm.push_back(best_norm == item.gold ? 1.0 : 0.0);
    at += item.contexts.size();
  }
  return {task, static_cast<std::int64_t>(items.size()), {mean_figure("acc", acc), mean_figure("acc_norm", acc_norm)}};
}

}  // namespace mhla
