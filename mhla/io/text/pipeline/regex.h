// Regular expressions as tokenizer.json has them (Oniguruma's syntax, regex_syntax.h), matched by PCRE2 where the build
// has it. No pattern and no text takes unlimited time: a match may take `steps` at one place of the text, and all
// matches of one text together as long as its budget says. Beyond that is an Error that names the limit. Private to
// this room.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace mhla::pipeline {

struct Span {
  std::size_t begin = 0, end = 0;  // bytes
  friend bool operator==(const Span&, const Span&) = default;
};

struct RegexLimits {
  std::uint32_t steps = 5'000'000;  // PCRE2's match limit, for one place where a match may begin
  double seconds = 10.0;            // for one text, and as much again for every MB of it
};

// Of one text. Starts when it is made.
class RegexBudget {
 public:
  RegexBudget(std::size_t bytes, const RegexLimits& limits);
  void check(const std::string& pattern) const;
  [[nodiscard]] std::uint32_t steps() const { return steps_; }

 private:
  std::chrono::steady_clock::time_point end_;
  double seconds_;
  std::uint32_t steps_;
};

class Regex {
 public:
  explicit Regex(const std::string& pattern);  // an Error without PCRE2, or for what it cannot do
  ~Regex();
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

  // All matches, which do not overlap, in order; `text` is UTF-8. A match may be empty, but not right behind another.
  void find_all(std::string_view text, const RegexBudget& budget, std::vector<Span>& matches) const;

 private:
  struct Code;
  std::string pattern_;
  std::unique_ptr<const Code> code_;
};

}  // namespace mhla::pipeline
