#include "mhla/io/text/pipeline/regex_syntax.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "mhla/core/error.h"
#include "mhla/io/text/pipeline/regex_class.h"
#include "mhla/io/text/unicode.h"

namespace mhla::pipeline {
namespace {

constexpr std::size_t kMaxPattern = std::size_t{1} << 16;  // bytes
constexpr std::uint64_t kMaxRepeat = 65535;                // of PCRE2

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {
    if (pattern.size() > kMaxPattern)
      fail("the pattern has ", pattern.size(), " bytes, expected at most ", kMaxPattern);
  }

  PcrePattern run() {
    while (at_ < pattern_.size()) step();
    if (groups_.size() > 1) fail("byte ", groups_.back().begin, " of the pattern opens a group that is not closed");
    return {out_, captures_};
  }

 private:
  struct Group {
    std::size_t begin = 0, out = 0, content = 0;  // in the pattern; in what is written; where its content begins there
    bool ignore_case = false, looks = false;
  };
  static constexpr std::size_t kNone = std::string::npos;

  [[nodiscard]] bool ahead(std::string_view text) const { return pattern_.substr(at_, text.size()) == text; }
  bool next(std::string_view text) {
    const bool there = ahead(text);
    if (there) at_ += text.size();
    return there;
  }
  [[noreturn]] void refuse(std::size_t begin, std::string_view why) const {
    fail(pattern_.substr(begin, 12), " at byte ", begin, " of the pattern ", why);
  }
  void atom(const std::string& text) {
    atom_ = out_.size();
    out_ += text;
    previous_ = 0;
  }
  void mark(std::string_view text) {  // what cannot be repeated
    out_ += text;
    atom_ = kNone, previous_ = 0;
  }

  void step() {
    switch (pattern_[at_]) {
      case '\\': return escape();
      case '[': {
        const std::size_t begin = at_;
        return set(read_class(pattern_, at_), begin);
      }
      case '(': return open();
      case ')': return close();
      case '|': return ++at_, mark("|");
      case '^': return ++at_, mark("^");
      case '$': return ++at_, mark("$");
      case '.': return ++at_, atom(".");
      case '*':
      case '+':
      case '?': return repeat();
      case '{':
        if (interval()) return;
        break;
      default: break;
    }
    const Code code = first_code(pattern_.substr(at_));
    literal(code.code, at_);
    at_ += code.length;
  }

  void set(const std::string& text, std::size_t begin) {
    if (groups_.back().ignore_case)
      for (const char* cased : {"{Lu}", "{Ll}", "{Lt}", "{Uppercase}", "{Lowercase}"})
        if (text.find(cased) != std::string::npos) refuse(begin, "has upper or lower case under (?i)");
    atom(text);
  }

  // Case folding of Oniguruma makes two characters of one: ss also matches a sharp s. PCRE2's does not.
  void literal(std::uint32_t code, std::size_t begin) {
    const std::uint32_t before = previous_;
    atom(escaped(code));
    if (!groups_.back().ignore_case) return;
    if (code >= 0x80) refuse(begin, "is a letter beyond ASCII under (?i)");
    const std::uint32_t lower = code >= 'A' && code <= 'Z' ? code - 'A' + 'a' : code;
    if ((before == 's' && (lower == 's' || lower == 't')) ||
        (before == 'f' && (lower == 'f' || lower == 'i' || lower == 'l')))
      refuse(begin, "is the second of two letters that one character folds to, under (?i)");
    previous_ = lower;
  }

  void escape() {
    const std::size_t begin = at_++;
    if (at_ >= pattern_.size()) fail("the pattern ends in a backslash");
    const char letter = pattern_[at_];
    if (letter == 'p' || letter == 'P') return set(fragment(read_property(pattern_, at_), false), begin);
    if (const CharSet named = set_of_letter(letter, false); !named.empty())
      return ++at_, set(fragment(named, false), begin);
    const std::string word = fragment(set_of_letter('w', false), false);
    switch (letter) {
      case 'b': return ++at_, mark(str("(?:(?<=", word, ")(?!", word, ")|(?<!", word, ")(?=", word, "))"));
      case 'B': return ++at_, mark(str("(?:(?<=", word, ")(?=", word, ")|(?<!", word, ")(?!", word, "))"));
      case 'A':
      case 'z':
      case 'Z':
      case 'G': return ++at_, mark(std::string{'\\', letter});
      case 'R': return ++at_, atom("\\R");
      default: break;
    }
    if (letter >= '1' && letter <= '9') {
      const int number = letter - '0';
      if (number > closed_ || (at_ + 1 < pattern_.size() && pattern_[at_ + 1] >= '0' && pattern_[at_ + 1] <= '9'))
        refuse(begin, "does not refer to a group that is closed before it");
      captures_ = true;
      return ++at_, atom(str("\\g{", number, "}"));
    }
    const std::int64_t code = read_escaped_code(pattern_, at_, false);
    if (code < 0) refuse(begin, "is not supported");
    literal(static_cast<std::uint32_t>(code), begin);
  }

  void open() {
    const std::size_t begin = at_++;
    if (next("?#")) {
      at_ = pattern_.find(')', at_);
      if (at_ == kNone) refuse(begin, "is a comment that is not closed");
      ++at_;
      return;
    }
    Group group = groups_.back();
    group.begin = begin;
    group.out = out_.size();
    group.looks = false;
    for (const char* kind : {"?:", "?>", "?=", "?!", "?<=", "?<!"})
      if (next(kind)) {
        group.looks = kind[1] != ':' && kind[1] != '>';
        mark(str("(", kind));
        return enter(group);
      }
    if (ahead("*")) refuse(begin, "is not supported");
    if (!next("?")) {
      ++groups_in_all_;
      mark("(");
      capturing_.push_back(groups_.size());
      return enter(group);
    }
    const std::string flags = options(begin, group.ignore_case);
    if (next(":")) {
      mark(str("(?", flags, ":"));
      return enter(group);
    }
    ++at_;  // the bracket that closes it
    // Behind other things Oniguruma's reach to the end of the group across '|', PCRE2's likewise but not its branches.
    if (out_.size() != groups_.back().content) refuse(begin, "sets options in the middle of a group");
    groups_.back().ignore_case = group.ignore_case;
    mark(str("(?", flags, ")"));
    groups_.back().content = out_.size();
  }

  void enter(Group group) {
    group.content = out_.size();
    if (groups_.size() >= 200) fail("groups of the pattern are nested more than 200 deep");
    groups_.push_back(group);
  }

  // i, m and what is switched off behind a '-', up to ':' or ')', as PCRE2 has them.
  std::string options(std::size_t begin, bool& ignore_case) {
    std::string flags;
    bool on = true;
    for (; at_ < pattern_.size() && pattern_[at_] != ':' && pattern_[at_] != ')'; ++at_) {
      const char c = pattern_[at_];
      if (c == 'i')
        flags += 'i', ignore_case = on;
      else if (c == 'm')
        flags += 's';
      else if (c == '-' && on)
        flags += '-', on = false;
      else
        refuse(begin, "is not supported");
    }
    if (at_ >= pattern_.size() || flags.empty()) refuse(begin, "is not supported");
    return flags;
  }

  void close() {
    if (groups_.size() == 1) fail("byte ", at_, " of the pattern closes a group that was not opened");
    const Group group = groups_.back();
    groups_.pop_back();
    if (!capturing_.empty() && capturing_.back() == groups_.size()) {
      capturing_.pop_back();
      if (capturing_.empty()) closed_ = groups_in_all_;  // referred to from outside of all groups, or not at all
    }
    ++at_;
    mark(")");
    if (!group.looks) atom_ = group.out;
  }

  void repeat() {
    const std::size_t begin = at_;
    if (atom_ == kNone) refuse(begin, "repeats nothing that can be repeated");
    std::string sign(1, pattern_[at_++]);
    if (at_ < pattern_.size() && (pattern_[at_] == '?' || pattern_[at_] == '+')) sign += pattern_[at_++];
    mark(sign);
  }

  std::optional<std::uint64_t> number() {
    const std::size_t begin = at_;
    std::uint64_t value = 0;
    for (; at_ < pattern_.size() && pattern_[at_] >= '0' && pattern_[at_] <= '9'; ++at_)
      value = std::min<std::uint64_t>(value * 10 + static_cast<std::uint64_t>(pattern_[at_] - '0'), kMaxRepeat + 1);
    if (at_ == begin) return std::nullopt;
    return value;
  }

  // {2}, {2,}, {2,3}, {,3}; false, and nothing read, where the brace is a character like others.
  bool interval() {
    const std::size_t begin = at_++, atom = atom_;
    const auto least = number();
    const bool comma = next(",");
    const auto most = comma ? number() : least;
    if ((!least && !most) || !next("}")) return at_ = begin, false;
    if (atom == kNone) refuse(begin, "repeats nothing that can be repeated");
    if (std::max(least.value_or(0), most.value_or(0)) > kMaxRepeat)
      refuse(begin, str("repeats more than ", kMaxRepeat, " times"));
    if (most && least.value_or(0) > *most) refuse(begin, "has its limits the wrong way round");
    std::string sign = str("{", least.value_or(0), comma ? "," : "");
    if (comma && most) sign += str(*most);
    sign += "}";
    if (ahead("+") || (ahead("?") && !comma)) {  // a repetition of the repetition, where PCRE2 has another meaning
      out_ = str(out_.substr(0, atom), "(?:", out_.substr(atom), sign, ")");
      sign = pattern_[at_++];
    } else if (next("?")) {
      sign += "?";
    }
    mark(sign);
    return true;
  }

  std::string_view pattern_;
  std::size_t at_ = 0;
  std::string out_;
  std::size_t atom_ = kNone;            // where the last atom of out_ begins, if a repetition may follow
  std::uint32_t previous_ = 0;          // the literal before, in lower case, under (?i)
  std::vector<Group> groups_{{}};       // open ones, the pattern itself first
  std::vector<std::size_t> capturing_;  // how many groups were open before each that is counted
  int groups_in_all_ = 0, closed_ = 0;
  bool captures_ = false;
};

}  // namespace

PcrePattern to_pcre(std::string_view pattern) { return Translator(pattern).run(); }

}  // namespace mhla::pipeline
