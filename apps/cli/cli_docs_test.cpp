// Every command of the program that a document shows, against the flags that the program has: code blocks must parse
// whole, commands within a sentence may leave things out, and flags stand there by the name that --help shows.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "apps/cli/command_line.h"
#include "mhla/core/error.h"
#include "mhla/testing/messages.h"

namespace mhla::apps {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

struct Shown {
  std::string where;  // "docs/training.md:12"
  Words words;        // without `mhla`
  bool whole = true;  // of a code block
};

// Words of a shell's line, one list for each command of it; what stands behind # is a remark.
std::vector<Words> commands_of(const std::string& line) {
  std::vector<Words> commands(1);
  std::string word;
  bool begun = false;
  char quote = 0;
  int depth = 0;  // of $((...))
  const auto end_word = [&] {
    if (begun) commands.back().push_back(word);
    word.clear(), begun = false;
  };
  for (const char c : line) {
    depth += c == '(' ? 1 : c == ')' ? -1 : 0;
    if (quote != 0 ? c == quote : c == '"' || c == '\'') {
      quote = quote != 0 ? char{0} : c, begun = true;
    } else if (quote != 0 || depth > 0) {
      word += c, begun = true;
    } else if (c == '#' && !begun) {
      break;
    } else if (c == ' ' || c == '\t') {
      end_word();
    } else if (c == ';' || c == '|' || c == '&' || c == '>' || c == '<') {
      end_word();
      commands.emplace_back();
    } else {
      word += c, begun = true;
    }
  }
  end_word();
  return commands;
}

// Of a command the words behind `mhla`, where it is one of ours; "VAR=1 time build/bin/mhla" is.
bool is_ours(Words& words) {
  const auto ahead = [](const std::string& word) {
    return word == "$" || word == "do" || word == "time" ||
           (word.find('=') != std::string::npos && word.front() >= 'A' && word.front() <= 'Z');
  };
  words.erase(words.begin(), std::find_if_not(words.begin(), words.end(), ahead));
  if (words.empty() || fs::path(words.front()).filename() != "mhla") return false;
  words.erase(words.begin());
  for (std::string& word : words)
    if (word.find('$') != std::string::npos) word = "1";  // of a loop
  words.erase(std::remove(words.begin(), words.end(), "..."), words.end());
  return true;
}

class Document {
 public:
  explicit Document(const fs::path& path) : name_(fs::relative(path, MHLA_SOURCE_DIR).string()) {
    std::ifstream file(path);
    bool fenced = false;
    for (std::string line; std::getline(file, line);) {
      ++number_;
      const std::size_t begin = std::min(line.find_first_not_of(' '), line.size());
      if (line.compare(begin, 3, "```") == 0) {
        fenced = !fenced;
        end_code();
      } else if (begin == line.size()) {
        end_code(), end_paragraph();
      } else if (fenced || (begin >= 4 && paragraph_.empty())) {
        code(line, begin);
      } else {
        end_code();
        if (paragraph_.empty()) paragraph_at_ = number_;
        paragraph_ += line + " ";
      }
    }
    end_code(), end_paragraph();
  }
  std::vector<Shown> commands;
  std::vector<std::pair<std::string, std::string>> flags;  // `--flag` in a sentence: where, which

 private:
  // A line that ends in a backslash, or is followed by flags that are indented further, goes on.
  void code(const std::string& line, std::size_t begin) {
    const bool more = !code_.empty() && (goes_on_ || (begin > code_begin_ && line.compare(begin, 2, "--") == 0));
    if (!more) end_code();
    if (code_.empty()) code_begin_ = begin, code_at_ = number_;
    goes_on_ = line.back() == '\\';
    code_ += " " + line.substr(0, line.size() - (goes_on_ ? 1 : 0));
  }
  void end_code() {
    for (Words& words : commands_of(code_))
      if (is_ours(words)) commands.push_back({name_ + ":" + std::to_string(code_at_), words, true});
    code_.clear(), goes_on_ = false;
  }
  void end_paragraph() {
    std::stringstream parts(paragraph_);
    std::string part;
    for (bool span = false; std::getline(parts, part, '`'); span = !span) {
      if (!span) continue;
      const std::string where = name_ + ":" + std::to_string(paragraph_at_);
      Words words = commands_of(part).front();
      if (is_ours(words)) commands.push_back({where, words, false});
      if (part.compare(0, 2, "--") != 0) continue;
      for (const std::string& word : words)
        if (word.compare(0, 2, "--") == 0 && word.size() > 2) flags.emplace_back(where, word.substr(0, word.find('=')));
    }
    paragraph_.clear();
  }

  std::string name_, code_, paragraph_;
  int number_ = 0, code_at_ = 0, paragraph_at_ = 0;
  std::size_t code_begin_ = 0;
  bool goes_on_ = false;
};

std::vector<Document> documents() {
  std::vector<Document> all;
  for (fs::recursive_directory_iterator at(MHLA_SOURCE_DIR), end; at != end; ++at) {
    const std::string name = at->path().filename().string();
    if (at->is_directory() && (name == "build" || name.front() == '.')) at.disable_recursion_pending();
    if (at->is_regular_file() && at->path().extension() == ".md" && name != "CHANGELOG.md")
      all.emplace_back(at->path());
  }
  return all;
}

bool shown(const CLI::Option& option, const std::string& flag) {
  const std::vector<std::string>& off = option.get_fnames();
  return !option.get_group().empty() &&
         (flag == "--" + option.get_lnames().front() || std::find(off.begin(), off.end(), flag.substr(2)) != off.end());
}

// What is wrong with a command, or nothing.
std::string mistake_in(const Words& words, bool whole) {
  Job job;
  const std::unique_ptr<CLI::App> app = make_parser(job);
  try {
    parse_words(*app, words);
  } catch (const CLI::Success&) {  // --help
  } catch (const Error& error) {
    const std::string text = error.what();
    const bool left_out = has(text, "required") || has(text, "no command is given");
    if (whole || !left_out) return text;
  }
  const CLI::App* command = app.get();
  while (!command->get_subcommands().empty()) command = command->get_subcommands().back();
  for (const std::string& word : words) {
    const CLI::Option* option = word.compare(0, 2, "--") == 0 ? command->get_option_no_throw(word) : nullptr;
    if (option != nullptr && !shown(*option, word))
      return word + " is an older spelling of --" + option->get_lnames().front();
  }
  return {};
}

TEST(CliDocs, EveryCommandParses) {
  int whole = 0, within = 0;
  for (const Document& document : documents()) {
    for (const Shown& one : document.commands) {
      std::string line = "mhla";
      for (const std::string& word : one.words) line += " " + word;
      EXPECT_EQ(mistake_in(one.words, one.whole), "") << one.where << ": " << line;
      ++(one.whole ? whole : within);
    }
  }
  EXPECT_GT(whole, 25);
  EXPECT_GT(within, 60);
}

void collect_flags(const CLI::App& command, std::set<std::string>& names) {
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames())
      if (shown(*option, "--" + name)) names.insert("--" + name);
  }
  for (const CLI::App* one : command.get_subcommands({})) collect_flags(*one, names);
}

TEST(CliDocs, EveryFlagInASentenceExists) {
  Job job;
  std::set<std::string> names;
  collect_flags(*make_parser(job), names);
  const std::set<std::string> of_others{"--gtest_filter", "--lengths", "--lrs", "--jobs"};  // GoogleTest, scripts/
  int count = 0;
  for (const Document& document : documents()) {
    for (const auto& [where, flag] : document.flags) {
      EXPECT_TRUE(names.count(flag) != 0 || of_others.count(flag) != 0) << where << ": " << flag;
      ++count;
    }
  }
  EXPECT_GT(count, 60);
}

// The test itself: what it finds, and what it makes of mistakes.
TEST(CliDocs, MistakesAreFound) {
  EXPECT_TRUE(has(mistake_in({"train", "lm", "--bacth", "3", "--out", "x"}, true), "--bacth is unknown"));
  EXPECT_TRUE(has(mistake_in({"eval", "lm", "--length", "3"}, false), "older spelling of --context"));
  EXPECT_TRUE(has(mistake_in({"eval", "lm"}, true), "--run is required"));
  EXPECT_EQ(mistake_in({"eval", "lm"}, false), "");
  const fs::path file = fs::temp_directory_path() / "mhla_docs_test.md";
  std::ofstream(file)
      << "Text `mhla doctor --json` and `--seed 3`.\n\n    A=1 time x/mhla verify --quick | tee log  # no\n"
         "    mhla train lm --data a \\\n        --out 'b c'\n    mhla demo\n      --seed 3\n";
  const Document found(file);
  fs::remove(file);
  ASSERT_EQ(found.commands.size(), 4u);
  EXPECT_EQ(found.commands[0].words, (Words{"doctor", "--json"}));
  EXPECT_EQ(found.commands[1].words, (Words{"verify", "--quick"}));
  EXPECT_EQ(found.commands[2].words, (Words{"train", "lm", "--data", "a", "--out", "b c"}));
  EXPECT_EQ(found.commands[3].words, (Words{"demo", "--seed", "3"}));
  ASSERT_EQ(found.flags.size(), 1u);
  EXPECT_EQ(found.flags[0].second, "--seed");
}

}  // namespace
}  // namespace mhla::apps
