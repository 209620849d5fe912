// Patterns of tokenizer.json are written for Oniguruma; this rewrites them for PCRE2 (UTF, MULTILINE, newline LF) so
// that they match the same text. Different are, among others:
//   \s \w \b      Oniguruma's sets: no U+180E, marks and the fractions of Latin-1 in words
//   \h \v         a hexadecimal digit, a vertical tab
//   [a[bc]&&d]    classes inside classes, intersections
//   a{2}+ a{2}?   (?:a{2})+ and (?:a{2})?, neither possessive nor lazy
//   (?m) \p{Han}  a dot that takes line breaks; the script without its extensions
// What has no counterpart, or might have another meaning there, is an Error that names it. Private to this room.
#pragma once

#include <string>
#include <string_view>

namespace mhla::pipeline {

struct PcrePattern {
  std::string text;
  bool captures = false;  // it refers back to a group
};

PcrePattern to_pcre(std::string_view pattern);  // valid UTF-8

}  // namespace mhla::pipeline
