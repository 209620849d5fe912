#include "mhla/io/text/prompt_cleaning.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "mhla/io/text/html.h"
#include "mhla/io/text/pipeline/icu.h"
#include "mhla/io/text/tokenizer.h"
#include "mhla/io/text/unicode.h"

namespace mhla {
namespace {

constexpr std::pair<std::uint32_t, const char*> kLigatures[] = {
    {0x132, "IJ"},         {0x133, "ij"},  {0x149, "\xca\xbcn"}, {0x1c4, "D\xc5\xbd"}, {0x1c5, "D\xc5\xbe"},
    {0x1c6, "d\xc5\xbe"},  {0x1c7, "LJ"},  {0x1c8, "Lj"},        {0x1c9, "lj"},        {0x1ca, "NJ"},
    {0x1cb, "Nj"},         {0x1cc, "nj"},  {0x1f1, "DZ"},        {0x1f2, "Dz"},        {0x1f3, "dz"},
    {0xfb00, "ff"},        {0xfb01, "fi"}, {0xfb02, "fl"},       {0xfb03, "ffi"},      {0xfb04, "ffl"},
    {0xfb05, "\xc5\xbft"}, {0xfb06, "st"}};

bool is_removed(std::uint32_t code) {
  return code < 0x9 || code == 0xb || (code >= 0xe && code < 0x20) || code == 0x7f ||
         (code >= 0x206a && code < 0x2070) || code == 0xfeff || (code >= 0xfff9 && code < 0xfffd);
}

// One character after the other; `change` appends what becomes of it.
template <class Change>
std::string each_code(std::string_view text, const Change& change) {
  std::string out;
  while (!text.empty()) {
    const Code code = first_code(text);
    const std::size_t length = std::max<std::size_t>(1, code.length);
    const std::string_view bytes = text.substr(0, length);
    if (code.length == 0) {
      out += bytes;
    } else {
      change(code.code, bytes, out);
    }
    text.remove_prefix(length);
  }
  return out;
}

void change_letter(std::uint32_t code, std::string_view bytes, std::string& out) {
  for (const auto& [ligature, letters] : kLigatures)
    if (code == ligature) return void(out += letters);
  if (code == 0x3000) return void(out += ' ');
  if (code >= 0xff01 && code <= 0xff5e) return append_utf8(code - 0xfee0, out);
  if (code >= 0xff5f && code < 0xfff0 && has_icu())
    return void(out += pipeline::normalized(pipeline::NormalForm::kNfkc, bytes));
  out += bytes;
}

void change_mark(std::uint32_t code, std::string_view bytes, std::string& out) {
  if (code >= 0x201c && code <= 0x201f) return void(out += '"');
  if (code == 0x2bc || (code >= 0x2018 && code <= 0x201b)) return void(out += '\'');
  if (code == 0x2028 || code == 0x2029 || code == 0x85) return void(out += '\n');
  out += bytes;
}

void change_control(std::uint32_t code, std::string_view bytes, std::string& out) {
  if (const char32_t meant = windows_1252(code); meant != 0) return append_utf8(meant, out);
  out += bytes;
}

std::string unix_lines(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\r') {
      out += text[i];
    } else if (i + 1 == text.size() || text[i + 1] != '\n') {
      out += '\n';
    }
  }
  return out;
}

// ESC [ digits and semicolons, a letter.
std::string without_escapes(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    if (text.substr(0, 2) == "\033[") {
      const std::size_t end = text.find_first_not_of("0123456789;", 2);
      const char last = end == std::string_view::npos ? ' ' : text[end];
      if ((last >= 'a' && last <= 'z') || (last >= 'A' && last <= 'Z')) {
        text.remove_prefix(end + 1);
        continue;
      }
    }
    out += text[0];
    text.remove_prefix(1);
  }
  return out;
}

std::string fixed_line(std::string text, bool html) {
  while (true) {
    const std::string before = text;
    if (html) text = html_unescape_closed(text);
    text = each_code(text, change_control);
    text = each_code(text, change_letter);
    text = unix_lines(each_code(text, change_mark));
    text = without_escapes(text);
    text = each_code(text, [](std::uint32_t code, std::string_view bytes, std::string& out) {
      if (!is_removed(code)) out += bytes;
    });
    if (has_icu()) text = pipeline::normalized(pipeline::NormalForm::kNfc, text);
    if (text == before) return text;
  }
}

}  // namespace

std::string fix_text(std::string_view text) {
  std::string out;
  bool html = true;  // until a line looks like HTML itself
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
    const std::string_view line = text.substr(0, end);
    html = html && line.find('<') == std::string_view::npos;
    out += fixed_line(std::string(line), html);
    text.remove_prefix(end);
  }
  return out;
}

std::string clean_prompt(std::string_view text) {
  const std::string plain = html_unescape(html_unescape(fix_text(text)));
  std::string out;
  bool space = false;
  std::string_view rest = plain;
  while (!rest.empty()) {
    const Character next = first_character(rest);
    if (next.kind == CharClass::kSpace) {
      space = true;
    } else {
      if (space && !out.empty()) out += ' ';
      space = false;
      out += rest.substr(0, next.length);
    }
    rest.remove_prefix(next.length);
  }
  return out;
}

}  // namespace mhla
