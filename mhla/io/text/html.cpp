#include "mhla/io/text/html.h"

#include <algorithm>
#include <cstdint>
#include <unordered_map>

#include "mhla/io/text/html_entities.h"
#include "mhla/io/text/unicode.h"
#include "mhla/io/utf8.h"

namespace mhla {
namespace {

constexpr std::size_t kLongestName = 32;  // of a reference without its semicolon, as html.unescape() has it

using HtmlEntities = std::unordered_map<std::string_view, std::string>;

const HtmlEntities& html_entities() {
  static const HtmlEntities kTable = [] {
    HtmlEntities table;
    std::string_view rest = kHtmlEntities;
    while (!rest.empty()) {
      const std::string_view entry = rest.substr(0, rest.find(' '));
      rest.remove_prefix(entry.size() + 1);
      const std::size_t equals = entry.find('=');
      std::string text;
      std::uint32_t code = 0;
      for (const char c : std::string(entry.substr(equals + 1)) + "+") {
        if (c == '+') {
          append_utf8(code, text), code = 0;
        } else {
          code = code * 16 + static_cast<std::uint32_t>(c <= '9' ? c - '0' : c - 'a' + 10);
        }
      }
      table.emplace(entry.substr(0, equals), std::move(text));
    }
    return table;
  }();
  return kTable;
}

int digit_value(char c, int base) {  // or -1
  if (c >= '0' && c <= '9') return c - '0';
  if (base == 16 && c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (base == 16 && c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Codes that html.unescape() leaves out: controls and non-characters.
bool is_dropped(char32_t code) {
  return (code >= 0x1 && code <= 0x8) || code == 0xb || (code >= 0xe && code <= 0x1f) ||
         (code >= 0x7f && code <= 0x9f) || (code >= 0xfdd0 && code <= 0xfdef) || (code & 0xfffe) == 0xfffe;
}

struct Reference {
  std::size_t length = 0;  // of the text that it takes; 0: there is none
  std::string text;
};

// "&#65;" or "&#x41", `text` starts with "&#".
Reference numeric_reference(std::string_view text) {
  const bool hex = text.size() > 2 && (text[2] == 'x' || text[2] == 'X');
  const int base = hex ? 16 : 10;
  std::size_t at = hex ? 3 : 2;
  const std::size_t first = at;
  char32_t code = 0;
  for (; at < text.size() && digit_value(text[at], base) >= 0; ++at)
    code = std::min<char32_t>(0x110000,
                              code * static_cast<char32_t>(base) + static_cast<char32_t>(digit_value(text[at], base)));
  if (at == first) return {};
  if (at < text.size() && text[at] == ';') ++at;
  Reference found{at, {}};
  if (code == 0 || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) {
    found.text = kReplacementCharacter;
  } else if (const char32_t meant = windows_1252(code); meant != 0) {
    append_utf8(meant, found.text);
  } else if (code == 0xd) {
    found.text = "\r";
  } else if (const bool itself = code >= 0x80 && code <= 0x9f; itself || !is_dropped(code)) {
    append_utf8(code, found.text);  // five codes of Windows-1252 mean themselves
  }
  return found;
}

// "&eacute;", or the longest name at the start of what could be one.
Reference named_reference(std::string_view text) {
  std::size_t end = 1, characters = 0;
  while (end < text.size() && characters < kLongestName &&
         std::string_view("\t\n\f <&#;").find(text[end]) == std::string_view::npos) {
    end += std::max<std::size_t>(1, utf8_length(text.substr(end)));
    ++characters;
  }
  if (characters == 0) return {};
  if (end < text.size() && text[end] == ';') ++end;
  const std::string_view name = text.substr(1, end - 1);
  const HtmlEntities& table = html_entities();
  if (const auto whole = table.find(name); whole != table.end()) return {end, whole->second};
  for (std::size_t size = name.size(); size-- > 2;)
    if (const auto start = table.find(name.substr(0, size)); start != table.end()) return {size + 1, start->second};
  return {};
}

// "&" to ";" with up to 24 letters and digits between.
Reference closed_reference(std::string_view text) {
  std::size_t end = text.size() > 1 && text[1] == '#' ? 2 : 1;
  const std::size_t first = end;
  const auto is_name = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  };
  while (end < text.size() && end - first < 24 && is_name(text[end])) ++end;
  if (end == first || end == text.size() || text[end] != ';') return {};
  ++end;
  if (first == 2) {
    const Reference found = numeric_reference(text.substr(0, end));
    return found.length == end ? found : Reference{};
  }
  const auto whole = html_entities().find(text.substr(1, end - 1));
  return whole == html_entities().end() ? Reference{} : Reference{end, whole->second};
}

template <class Find>
std::string unescaped_by(std::string_view text, const Find& find) {
  std::string out;
  while (!text.empty()) {
    const std::size_t plain = std::min(text.find('&'), text.size());
    out += text.substr(0, plain);
    text.remove_prefix(plain);
    if (text.empty()) break;
    const Reference found = find(text);
    out += found.length > 0 ? found.text : "&";
    text.remove_prefix(std::max<std::size_t>(1, found.length));
  }
  return out;
}

}  // namespace

char32_t windows_1252(char32_t code) {
  static constexpr char16_t kCodes[32] = {0x20ac, 0,      0x201a, 0x0192, 0x201e, 0x2026, 0x2020, 0x2021,
                                          0x02c6, 0x2030, 0x0160, 0x2039, 0x0152, 0,      0x017d, 0,
                                          0,      0x2018, 0x2019, 0x201c, 0x201d, 0x2022, 0x2013, 0x2014,
                                          0x02dc, 0x2122, 0x0161, 0x203a, 0x0153, 0,      0x017e, 0x0178};
  return code >= 0x80 && code <= 0x9f ? kCodes[code - 0x80] : 0;
}

std::string html_unescape(std::string_view text) {
  return unescaped_by(text, [](std::string_view at) {
    return at.size() > 1 && at[1] == '#' ? numeric_reference(at) : named_reference(at);
  });
}

std::string html_unescape_closed(std::string_view text) {
  return unescaped_by(text, [](std::string_view at) { return closed_reference(at); });
}

}  // namespace mhla
