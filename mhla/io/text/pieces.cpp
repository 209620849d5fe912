#include "mhla/io/text/pieces.h"

#include "mhla/io/text/unicode.h"

namespace mhla {
namespace {

constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// First character that is not of `kind`, from `at` on.
std::size_t run_end(std::string_view text, std::size_t at, CharClass kind) {
  while (at < text.size()) {
    const Character c = first_character(text.substr(at));
    if (c.kind != kind) break;
    at += c.length;
  }
  return at;
}

// 's 't 'm 'd 're 've 'll behind an apostrophe: bytes with it, or 0.
std::size_t contraction(std::string_view text, bool any_case) {
  const auto letter = [&](std::size_t i) {
    const char c = i < text.size() ? text[i] : '\0';
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  const char a = letter(1), b = letter(2);
  if (any_case && a == '\xc5' && b == '\xbf') return 3;  // a long s, which is an S to a pattern without case
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
  return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

bool is_break(char c) { return c == '\r' || c == '\n'; }

// A run of spaces, the text opening with one: all of it at the end of the text, else without the last character, which
// the next piece may take along; a lone one is a piece. The text ends at a number where those stand apart.
std::size_t spaces(std::string_view text, bool numbers_apart = false) {
  std::size_t end = 0, last = 0;
  while (end < text.size()) {
    const Character c = first_character(text.substr(end));
    if (c.kind == CharClass::kNumber && numbers_apart) return end;
    if (c.kind != CharClass::kSpace) break;
    last = end;
    end += c.length;
  }
  return end == text.size() || last == 0 ? end : last;
}

std::size_t gpt2_piece(std::string_view text, bool numbers_apart = false) {
  if (text[0] == '\'')
    if (const std::size_t length = contraction(text, false)) return length;
  const Character first = first_character(text);
  if (first.kind != CharClass::kSpace) return run_end(text, first.length, first.kind);
  if (text[0] == ' ' && text.size() > 1) {
    const Character second = first_character(text.substr(1));
    if (second.kind == CharClass::kNumber && numbers_apart) return 1;
    if (second.kind != CharClass::kSpace) return run_end(text, 1 + second.length, second.kind);
  }
  return spaces(text, numbers_apart);
}

std::size_t digits_piece(std::string_view text) {
  const Character first = first_character(text);
  return first.kind == CharClass::kNumber ? first.length : gpt2_piece(text, true);
}

std::size_t llama3_piece(std::string_view text) {
  if (text[0] == '\'')
    if (const std::size_t length = contraction(text, true)) return length;
  const Character first = first_character(text);
  if (first.kind == CharClass::kLetter) return run_end(text, first.length, CharClass::kLetter);
  if (first.kind == CharClass::kNumber) {
    std::size_t end = first.length;
    for (int count = 1; count < 3 && end < text.size(); ++count) {
      const Character c = first_character(text.substr(end));
      if (c.kind != CharClass::kNumber) break;
      end += c.length;
    }
    return end;
  }
  const Character second =
      first.length < text.size() ? first_character(text.substr(first.length)) : Character{CharClass::kSpace, 0};
  if (!is_break(text[0]) && second.kind == CharClass::kLetter)
    return run_end(text, std::size_t{first.length} + second.length, CharClass::kLetter);
  if (first.kind == CharClass::kOther || (text[0] == ' ' && second.kind == CharClass::kOther)) {
    std::size_t end = run_end(text, text[0] == ' ' ? 1 : 0, CharClass::kOther);
    while (end < text.size() && is_break(text[end])) ++end;
    return end;
  }
  const std::string_view run = text.substr(0, run_end(text, 0, CharClass::kSpace));
  const std::size_t last_break = run.find_last_of("\r\n");
  return last_break != std::string_view::npos ? last_break + 1 : spaces(text);
}

}  // namespace

const char* name_of(PieceRule rule) {
  switch (rule) {
    case PieceRule::kGpt2: return "gpt2";
    case PieceRule::kLlama3: return "llama3";
    case PieceRule::kWhole: return "whole";
    case PieceRule::kDigits: return "digits";
    case PieceRule::kNumbers: return "numbers";
  }
  return "";
}

std::string_view pattern_of(PieceRule rule) {
  return rule == PieceRule::kGpt2 ? kGpt2Pattern : rule == PieceRule::kLlama3 ? kLlama3Pattern : std::string_view();
}

std::optional<PieceRule> rule_of_pattern(std::string_view pattern) {
  for (const PieceRule rule : {PieceRule::kGpt2, PieceRule::kLlama3})
    if (pattern == pattern_of(rule)) return rule;
  return std::nullopt;
}

std::size_t piece_length(PieceRule rule, std::string_view text) {
  switch (rule) {
    case PieceRule::kGpt2: return gpt2_piece(text);
    case PieceRule::kLlama3: return llama3_piece(text);
    case PieceRule::kWhole: break;
    case PieceRule::kDigits: return digits_piece(text);
    case PieceRule::kNumbers: return gpt2_piece(text, true);
  }
  return text.size();
}

}  // namespace mhla
