// Debian's dict-gcide is a page that was typed: a paragraph is lines up to an empty one, an entry opens at the margin.
// What stands in it besides text:
//   Abate \A*bate"\ ([.a]*b[=a]t")   how a word is spoken, between backslashes and behind them in parentheses
//   {Ab*sorb"ing}                    another entry; * " ` are its syllables
//   [1913 Webster +PJC]              whom a paragraph was taken from
//   caf['e], [ae]on, [=a]            letters that ASCII does not have
#include <algorithm>
#include <optional>

#include "mhla/data/corpus.h"

namespace mhla {
namespace {

struct Letter {
  std::string_view mark, text;
};

// Those of running text; marks of pronunciation are recognised by their letter alone (letter_of).
constexpr Letter kLetters[] = {
    {"'a", "\u00e1"},    {"'e", "\u00e9"},    {"'i", "\u00ed"},    {"'o", "\u00f3"},    {"'u", "\u00fa"},
    {"'y", "\u00fd"},    {"'A", "\u00c1"},    {"'E", "\u00c9"},    {"`a", "\u00e0"},    {"`e", "\u00e8"},
    {"`i", "\u00ec"},    {"`o", "\u00f2"},    {"`u", "\u00f9"},    {"\"a", "\u00e4"},   {"\"e", "\u00eb"},
    {"\"i", "\u00ef"},   {"\"o", "\u00f6"},   {"\"u", "\u00fc"},   {"\"A", "\u00c4"},   {"\"O", "\u00d6"},
    {"\"U", "\u00dc"},   {"^a", "\u00e2"},    {"^e", "\u00ea"},    {"^i", "\u00ee"},    {"^o", "\u00f4"},
    {"^u", "\u00fb"},    {"=a", "\u0101"},    {"=e", "\u0113"},    {"=i", "\u012b"},    {"imac", "\u012b"},
    {"=o", "\u014d"},    {"=u", "\u016b"},    {"=y", "\u0233"},    {"=ae", "\u01e3"},   {"a^", "\u0103"},
    {"e^", "\u0115"},    {"i^", "\u012d"},    {"o^", "\u014f"},    {"u^", "\u016d"},    {"~n", "\u00f1"},
    {"~a", "\u00e3"},    {"~o", "\u00f5"},    {",c", "\u00e7"},    {"aum", "\u00e4"},   {"ae", "\u00e6"},
    {"AE", "\u00c6"},    {"oe", "\u0153"},    {"OE", "\u0152"},    {"thorn", "\u00fe"}, {"eth", "\u00f0"},
    {"yogh", "\u021d"},  {"deg", "\u00b0"},   {"root", "\u221a"},  {"sect", "\u00a7"},  {"pounds", "\u00a3"},
    {"times", "\u00d7"}, {"ng", "ng"},        {"th", "th"},        {"=oo", "oo"},       {"oo^", "oo"},
    {"add", "a"},        {"udd", "u"},        {"asl", "a"},        {"alpha", "\u03b1"}, {"beta", "\u03b2"},
    {"gamma", "\u03b3"}, {"Delta", "\u0394"}, {"delta", "\u03b4"}, {"theta", "\u03b8"}, {"pi", "\u03c0"},
    {"phi", "\u03c6"},   {"sharp", "\u266f"}, {"flat", "\u266d"},
};

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// What a mark in brackets stands for: nothing where it is a remark, as [Obs.].
std::optional<std::string_view> letter_of(std::string_view mark) {
  for (const Letter& letter : kLetters)
    if (letter.mark == mark) return letter.text;
  constexpr std::string_view kAccents = "'`\"^=~.,-*:";
  if (mark.size() == 2 && kAccents.find(mark[0]) != std::string_view::npos && is_letter(mark[1])) return mark.substr(1);
  if (mark.size() == 2 && mark[1] == '^' && is_letter(mark[0])) return mark.substr(0, 1);
  return std::nullopt;
}

// "1913 Webster +PJC", "WordNet sense 2": names of sources, numbers and nothing else.
bool is_source(std::string_view mark) {
  constexpr std::string_view kNames[] = {"Webster", "WordNet", "PJC",  "PJC.", "AS",
                                         "RP",      "RDH",     "RHUD", "MW10", "Century"};
  constexpr std::string_view kBesides[] = {"Suppl.", "sense", "Dict.", "Dict.,", "Dictionary", "&", "PC"};
  bool named = false;
  while (!mark.empty()) {
    const std::size_t end = std::min(mark.find_first_of(" +"), mark.size());
    const std::string_view word = mark.substr(0, end);
    mark.remove_prefix(std::min(end + 1, mark.size()));
    if (word.find_first_not_of("0123456789.") == std::string_view::npos) continue;  // an empty one, too
    if (std::find(std::begin(kNames), std::end(kNames), word) != std::end(kNames))
      named = true;
    else if (std::find(std::begin(kBesides), std::end(kBesides), word) == std::end(kBesides))
      return false;
  }
  return named;
}

// Of what stands in parentheses: (k[=o]k), (-t[i^]z), (?; 277); not (Zo["o]l.) or (a kind).
bool is_spoken(std::string_view inner, bool behind_word) {
  if (inner.empty() || (inner[0] >= 'A' && inner[0] <= 'Z')) return false;
  if (behind_word) return inner[0] == '-' || inner.find_first_of("[*\"`?#") != std::string_view::npos;
  std::size_t star = inner.find('*');
  while (star != std::string_view::npos && star > 0 && inner[star - 1] == '[')
    star = inner.find('*', star + 1);  // [*a]
  return star != std::string_view::npos && inner.find('[') != std::string_view::npos;
}

std::string plain_text(std::string_view text) {
  std::string out;
  const auto drop_space = [&] {
    if (!out.empty() && out.back() == ' ') out.pop_back();
  };
  bool in_word = false, behind_word = false;  // {word}; \word\ too
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const auto up_to = [&](char close) {  // what stands from here to its close, or nothing
      const std::size_t end = text.find(close, i + 1);
      return end == std::string_view::npos ? std::string_view() : text.substr(i + 1, end - i - 1);
    };
    if (c == '\\') {
      drop_space();
      const std::size_t end = text.find('\\', i + 1);
      if (end == std::string_view::npos) continue;
      i = end;
      behind_word = true;
      if (i + 1 < text.size() && is_letter(text[i + 1])) out += ' ';
    } else if (c == '{' || c == '}') {
      in_word = c == '{';
      behind_word = c == '}';
    } else if (const std::string_view mark = c == '[' ? up_to(']') : ""; !mark.empty() && is_source(mark)) {
      drop_space();
      i += mark.size() + 1;
    } else if (const auto letter = mark.empty() ? std::nullopt : letter_of(mark)) {
      out += *letter;
      i += mark.size() + 1;
    } else if (const std::string_view inner = c == '(' ? up_to(')') : ""; is_spoken(inner, behind_word)) {
      drop_space();
      i += inner.size() + 1;
      if (i + 1 < text.size() && is_letter(text[i + 1])) out += ' ';
    } else if (c == ' ') {
      if (!out.empty() && out.back() != ' ') out += c;
    } else if (!in_word || (c != '*' && c != '"' && c != '`')) {
      out += c;
      behind_word = behind_word && c == ',';
    }
  }
  drop_space();
  return out;
}

}  // namespace

void split_dictionary(std::string_view text, const std::function<void(std::string_view document)>& take) {
  constexpr std::size_t kDocument = 4096;
  std::string document, paragraph;
  bool begun = false, is_entry = false;
  const auto end_paragraph = [&] {
    const std::string plain = plain_text(paragraph);
    paragraph.clear();
    if (plain.empty()) return;
    if (is_entry && document.size() >= kDocument) {
      take(document);
      document.clear();
    }
    document += plain;
    document += '\n';
  };
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const std::size_t begin = line.find_first_not_of(' ');
    // Ahead of the first entry stands what the file says about itself.
    begun = begun || (begin == 0 && line.find(" \\") != std::string_view::npos);
    if (!begun) continue;
    if (begin == std::string_view::npos) {
      end_paragraph();
      continue;
    }
    if (paragraph.empty()) is_entry = begin == 0;
    paragraph += paragraph.empty() ? "" : " ";
    paragraph += line.substr(begin);
  }
  end_paragraph();
  if (!document.empty()) take(document);
}

}  // namespace mhla
