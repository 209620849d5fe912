// Sets of characters in the patterns of Oniguruma, as fragments for PCRE2 that match one character each. Private to
// this room.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mhla::pipeline {

// What may stand between brackets, and what PCRE2 cannot put there: the complement of several ranges, for one.
struct CharSet {
  std::string items;                 // \p{L}a-z
  std::vector<std::string> outside;  // fragments of one character
  void add(const CharSet& other);
  [[nodiscard]] bool empty() const { return items.empty() && outside.empty(); }
};

std::string fragment(const CharSet& set, bool negated);
std::string escaped(std::uint32_t code);  // one character, in and outside of brackets

// \w \W \d \D \s \S \h \H by their letter; empty where it names no set.
CharSet set_of_letter(char letter, bool in_class);
// The set of \p{name}, \P{name}, \p{^name}: `name` as it stands between the braces. Scripts and rarer properties are
// left to PCRE2, which refuses what it does not know.
CharSet set_of_property(std::string_view name, bool negated);
CharSet set_of_posix(std::string_view name);  // [:name:], [:^name:]

// A class from its '[' on: its fragment. `at` moves past the ']'.
std::string read_class(std::string_view pattern, std::size_t& at);

// The code of an escape that stands for one character (\n, \x41, \x{20ac}, \u20ac, \.), `at` on the letter behind the
// backslash, moved past it; -1 where it is something else.
std::int64_t read_escaped_code(std::string_view pattern, std::size_t& at, bool in_class);
// \p{...} with `at` on the p, moved past the brace.
CharSet read_property(std::string_view pattern, std::size_t& at);

}  // namespace mhla::pipeline
