#include "mhla/io/text/pipeline/regex_class.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "mhla/core/error.h"
#include "mhla/io/text/unicode.h"

namespace mhla::pipeline {
namespace {

constexpr std::string_view kAny = R"([\x{0}-\x{10ffff}])";
constexpr std::string_view kSpaces = R"(\p{White_Space})";
constexpr std::string_view kHexDigits = "0-9A-Fa-f";
constexpr std::string_view kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
// Superscript digits and fractions of Latin-1 are words to Oniguruma's \w, but not inside of brackets.
constexpr std::string_view kLatin1Words = R"(\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})";

using Name = std::pair<std::string_view, std::string_view>;

// Long names of general categories, and those of POSIX, without case, '_', '-' and ' '.
constexpr auto kNames = std::to_array<Name>({
    {"letter", R"(\p{L})"},
    {"uppercaseletter", R"(\p{Lu})"},
    {"lowercaseletter", R"(\p{Ll})"},
    {"titlecaseletter", R"(\p{Lt})"},
    {"casedletter", R"(\p{Lu}\p{Ll}\p{Lt})"},
    {"lc", R"(\p{Lu}\p{Ll}\p{Lt})"},
    {"modifierletter", R"(\p{Lm})"},
    {"otherletter", R"(\p{Lo})"},
    {"mark", R"(\p{M})"},
    {"combiningmark", R"(\p{M})"},
    {"nonspacingmark", R"(\p{Mn})"},
    {"spacingmark", R"(\p{Mc})"},
    {"enclosingmark", R"(\p{Me})"},
    {"number", R"(\p{N})"},
    {"decimalnumber", R"(\p{Nd})"},
    {"digit", R"(\p{Nd})"},
    {"letternumber", R"(\p{Nl})"},
    {"othernumber", R"(\p{No})"},
    {"punctuation", R"(\p{P})"},
    {"punct", R"(\p{P})"},
    {"connectorpunctuation", R"(\p{Pc})"},
    {"dashpunctuation", R"(\p{Pd})"},
    {"openpunctuation", R"(\p{Ps})"},
    {"closepunctuation", R"(\p{Pe})"},
    {"initialpunctuation", R"(\p{Pi})"},
    {"finalpunctuation", R"(\p{Pf})"},
    {"otherpunctuation", R"(\p{Po})"},
    {"symbol", R"(\p{S})"},
    {"mathsymbol", R"(\p{Sm})"},
    {"currencysymbol", R"(\p{Sc})"},
    {"modifiersymbol", R"(\p{Sk})"},
    {"othersymbol", R"(\p{So})"},
    {"separator", R"(\p{Z})"},
    {"spaceseparator", R"(\p{Zs})"},
    {"lineseparator", R"(\p{Zl})"},
    {"paragraphseparator", R"(\p{Zp})"},
    {"control", R"(\p{Cc})"},
    {"cntrl", R"(\p{Cc})"},
    {"format", R"(\p{Cf})"},
    {"privateuse", R"(\p{Co})"},
    {"alpha", R"(\p{Alphabetic})"},
    {"alphabetic", R"(\p{Alphabetic})"},
    {"alnum", R"(\p{Alphabetic}\p{Nd})"},
    {"upper", R"(\p{Uppercase})"},
    {"uppercase", R"(\p{Uppercase})"},
    {"lower", R"(\p{Lowercase})"},
    {"lowercase", R"(\p{Lowercase})"},
    {"space", kSpaces},
    {"whitespace", kSpaces},
    {"blank", R"(\p{Zs}\x{9})"},
    {"word", kWord},
    {"xdigit", kHexDigits},
    {"any", R"(\x{0}-\x{10ffff})"},
    {"emoji", R"(\p{Emoji})"},
    {"emojipresentation", R"(\p{Emoji_Presentation})"},
    {"emojimodifier", R"(\p{Emoji_Modifier})"},
    {"extendedpictographic", R"(\p{Extended_Pictographic})"},
    {"ideographic", R"(\p{Ideographic})"},
});
constexpr std::string_view kCategories =
    " l lu ll lt lm lo m mn mc me n nd nl no p pc pd ps pe pi pf po s sm sc sk so "
    "z zs zl zp cc cf co ";

std::string plain_name(std::string_view name) {
  std::string plain;
  for (const char c : name) {
    if (c == '_' || c == '-' || c == ' ') continue;
    if (static_cast<unsigned char>(c) >= 0x80) fail("the property ", name, " is not known");
    plain += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return plain;
}

CharSet set_of(std::string_view items, bool negated) {
  CharSet set;
  if (!negated)
    set.items = items;
  else if (items.substr(0, 3) == "\\p{" && items.find('}') + 1 == items.size())
    set.items = str("\\P", items.substr(2));  // one property
  else
    set.outside.push_back(str("[^", items, "]"));
  return set;
}

bool is_hex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

// `digits` hexadecimal ones or, with 0, those up to a closing brace.
std::uint32_t read_hex(std::string_view pattern, std::size_t& at, std::size_t digits) {
  std::uint32_t code = 0;
  std::size_t count = 0;
  for (; at < pattern.size() && is_hex(pattern[at]) && (digits == 0 || count < digits) && count < 8; ++at, ++count)
    code = code * 16 + static_cast<std::uint32_t>(std::stoi(std::string(1, pattern[at]), nullptr, 16));
  const bool closed = digits != 0 ? count == digits : count > 0 && at < pattern.size() && pattern[at++] == '}';
  if (!closed || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff))
    fail("byte ", at, " of the pattern ends no number of a character");
  return code;
}

}  // namespace

void CharSet::add(const CharSet& other) {
  items += other.items;
  outside.insert(outside.end(), other.outside.begin(), other.outside.end());
}

std::string fragment(const CharSet& set, bool negated) {
  if (set.outside.empty()) return str(negated ? "[^" : "[", set.items, "]");
  std::string any_of;
  for (const std::string& one : set.outside) any_of += str(any_of.empty() ? "" : "|", one);
  if (negated) return str("(?:(?!", any_of, ")", set.items.empty() ? kAny : str("[^", set.items, "]"), ")");
  return str("(?:", set.items.empty() ? "" : str("[", set.items, "]|"), any_of, ")");
}

std::string escaped(std::uint32_t code) {
  std::string text;
  append_utf8(code, text);
  const char c = text[0];
  const bool plain = code >= 0x80 || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  if (plain) return text;
  constexpr const char* kDigits = "0123456789abcdef";
  return {'\\', 'x', '{', kDigits[code / 16], kDigits[code % 16], '}'};
}

CharSet set_of_letter(char letter, bool in_class) {
  switch (letter) {
    case 'w':
    case 'W': return set_of(str(kWord, in_class ? "" : kLatin1Words), letter == 'W');
    case 'd':
    case 'D': return set_of(R"(\p{Nd})", letter == 'D');
    case 's':
    case 'S': return set_of(kSpaces, letter == 'S');
    case 'h':
    case 'H': return set_of(kHexDigits, letter == 'H');
    default: return {};
  }
}

CharSet set_of_property(std::string_view name, bool negated) {
  if (name.substr(0, 1) == "^") name.remove_prefix(1), negated = !negated;
  const std::string plain = plain_name(name);
  const auto* const known =
      std::find_if(kNames.begin(), kNames.end(), [&](const Name& entry) { return entry.first == plain; });
  if (known != kNames.end()) return set_of(known->second, negated);
  if (plain.empty() || plain.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789") != std::string::npos)
    fail("the property \\p{", name, "} is not known");
  if (kCategories.find(" " + plain + " ") != std::string_view::npos) {
    std::string category = plain;
    category[0] = static_cast<char>(category[0] - 'a' + 'A');
    return set_of("\\p{" + category + "}", negated);
  }
  return set_of("\\p{sc:" + plain + "}", negated);
}

CharSet set_of_posix(std::string_view name) {
  const bool negated = name.substr(0, 1) == "^";
  if (negated) name.remove_prefix(1);
  for (const std::string_view known :
       {"alnum", "alpha", "blank", "cntrl", "digit", "lower", "space", "upper", "word", "xdigit"})
    if (name == known) return set_of_property(name, negated);
  if (name == "punct") return set_of(R"(\p{P}\p{S})", negated);
  fail("[:", name, ":] is not known");
}

std::int64_t read_escaped_code(std::string_view pattern, std::size_t& at, bool in_class) {
  const char letter = pattern[at];
  const auto one = [&](std::int64_t code) { return ++at, code; };
  switch (letter) {
    case 't': return one('\t');
    case 'n': return one('\n');
    case 'r': return one('\r');
    case 'f': return one('\f');
    case 'v': return one('\v');
    case 'a': return one('\a');
    case 'e': return one(0x1b);
    case 'b': return in_class ? one('\b') : -1;
    case 'u': return read_hex(pattern, ++at, 4);
    case 'x': {
      const bool braces = pattern.substr(at + 1, 1) == "{";
      const std::uint32_t code = read_hex(pattern, at += braces ? 2 : 1, braces ? 0 : 2);
      if (!braces && code > 0x7f) fail("byte ", at, " of the pattern ends a byte, not a character: expected \\x{...}");
      return code;
    }
    default: break;
  }
  const Code code = first_code(pattern.substr(at));
  if (code.code < 0x80 && escaped(code.code)[0] != '\\') return -1;  // a letter or a digit
  at += code.length;
  return code.code;
}

CharSet read_property(std::string_view pattern, std::size_t& at) {
  const bool negated = pattern[at] == 'P';
  const std::size_t end = pattern.find('}', at);
  if (pattern.substr(at + 1, 1) != "{" || end == std::string_view::npos)
    fail("byte ", at, " of the pattern opens no property, expected \\p{...}");
  const std::string_view name = pattern.substr(at + 2, end - at - 2);
  at = end + 1;
  return set_of_property(name, negated);
}

namespace {

class ClassReader {
 public:
  ClassReader(std::string_view pattern, std::size_t& at, int depth) : pattern_(pattern), at_(at), depth_(depth) {
    if (depth > 32) fail("classes of the pattern are nested more than 32 deep");
  }

  std::string read() {
    const std::size_t begin = at_++;
    const bool negated = next("^");
    if (ahead("]")) fail("byte ", begin, " of the pattern opens a class that is empty or begins with ]");
    std::vector<std::string> parts;  // of an intersection
    while (!next("]")) {
      if (at_ >= pattern_.size()) fail("byte ", begin, " of the pattern opens a class that is not closed");
      if (next("&&"))
        parts.push_back(finish());
      else
        read_item();
    }
    if (parts.empty()) return fragment(set_, negated);
    parts.push_back(finish());
    std::string all;
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) all += str("(?=", parts[i], ")");
    all += parts.back();
    return negated ? str("(?:(?!", all, ")", kAny, ")") : str("(?:", all, ")");
  }

 private:
  [[nodiscard]] bool ahead(std::string_view text) const { return pattern_.substr(at_, text.size()) == text; }
  bool next(std::string_view text) {
    const bool there = ahead(text);
    if (there) at_ += text.size();
    return there;
  }
  std::string finish() {
    if (set_.empty()) fail("byte ", at_, " of the pattern has an intersection with nothing");
    return fragment(std::exchange(set_, {}), false);
  }

  void read_item() {
    if (ahead("[:")) {
      const std::size_t end = pattern_.find(":]", at_);
      if (end == std::string_view::npos) fail("byte ", at_, " of the pattern opens a [: that is not closed");
      set_.add(set_of_posix(pattern_.substr(at_ + 2, end - at_ - 2)));
      at_ = end + 2;
      return no_range();
    }
    if (ahead("[")) {
      CharSet inner;
      inner.outside.push_back(ClassReader(pattern_, at_, depth_ + 1).read());
      set_.add(inner);
      return no_range();
    }
    if (ahead("\\")) {
      const CharSet named = read_set();
      if (!named.empty()) {
        set_.add(named);
        return no_range();
      }
    }
    const std::size_t begin = at_;
    const std::uint32_t first = read_code();
    if (!ahead("-") || pattern_.substr(at_, 2) == "-]") {
      set_.items += escaped(first);
      return;
    }
    ++at_;
    if (ahead("[") || ahead("&&") || (ahead("\\") && !read_set().empty()))
      fail("byte ", begin, " of the pattern opens a range that does not end in a character");
    const std::uint32_t last = read_code();
    if (last < first) fail("byte ", begin, " of the pattern opens a range that is empty");
    set_.items += escaped(first) + "-" + escaped(last);
    if (next("-")) set_.items += escaped('-');  // a-c-e
  }

  // A set between brackets may not open a range; Oniguruma refuses that, too.
  void no_range() {
    if (ahead("-") && !(pattern_.substr(at_, 2) == "-]"))
      fail("byte ", at_, " of the pattern is a range that opens with no character");
  }

  // Of \w, \p{L} and their like; empty, and nothing read, for an escape of one character.
  CharSet read_set() {
    const std::size_t begin = at_;
    if (++at_ >= pattern_.size()) fail("the pattern ends in a backslash");
    if (pattern_[at_] == 'p' || pattern_[at_] == 'P') return read_property(pattern_, at_);
    const CharSet set = set_of_letter(pattern_[at_], true);
    set.empty() ? at_ = begin : ++at_;
    return set;
  }

  std::uint32_t read_code() {
    if (at_ >= pattern_.size()) fail("the pattern ends inside a class");
    if (!next("\\")) {
      const Code code = first_code(pattern_.substr(at_));
      at_ += code.length;
      return code.code;
    }
    if (at_ >= pattern_.size()) fail("the pattern ends in a backslash");
    const std::int64_t code = read_escaped_code(pattern_, at_, true);
    if (code < 0) fail("\\", pattern_[at_], " at byte ", at_ - 1, " of the pattern is not supported inside a class");
    return static_cast<std::uint32_t>(code);
  }

  std::string_view pattern_;
  std::size_t& at_;
  int depth_;
  CharSet set_;
};

}  // namespace

std::string read_class(std::string_view pattern, std::size_t& at) { return ClassReader(pattern, at, 0).read(); }

}  // namespace mhla::pipeline
