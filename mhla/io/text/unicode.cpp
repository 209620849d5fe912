// Classes of all 1,114,112 codes at two bits each, 272 KiB, filled from the ranges on first use.
#include "mhla/io/text/unicode.h"

#include <memory>

#include "mhla/io/text/unicode_ranges.h"
#include "mhla/io/utf8.h"

namespace mhla {
namespace {

constexpr std::uint32_t kCodes = 0x110000;
constexpr UnicodeRange kSpaceRanges[] = {{0x09, 0x0d},     {0x20, 0x20},     {0x85, 0x85},     {0xa0, 0xa0},
                                         {0x1680, 0x1680}, {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f},
                                         {0x205f, 0x205f}, {0x3000, 0x3000}};

class Classes {
 public:
  Classes() {
    for (const UnicodeRange& range : kLetterRanges) fill(range, CharClass::kLetter);
    for (const UnicodeRange& range : kNumberRanges) fill(range, CharClass::kNumber);
    for (const UnicodeRange& range : kSpaceRanges) fill(range, CharClass::kSpace);
  }
  [[nodiscard]] CharClass at(std::uint32_t code) const {
    return static_cast<CharClass>((bits_[code / 4] >> (code % 4 * 2)) & 3);
  }

 private:
  void fill(const UnicodeRange& range, CharClass kind) {
    for (std::uint32_t code = range.first; code <= range.last; ++code)
      bits_[code / 4] |= static_cast<std::uint8_t>(static_cast<unsigned>(kind) << (code % 4 * 2));
  }
  std::unique_ptr<std::uint8_t[]> bits_ = std::make_unique<std::uint8_t[]>(kCodes / 4);
};

constexpr auto O = CharClass::kOther, L = CharClass::kLetter, N = CharClass::kNumber, S = CharClass::kSpace;

}  // namespace

const CharClass kAsciiClasses[128] = {
    O, O, O, O, O, O, O, O, O, S, S, S, S, S, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O,  //
    S, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, N, N, N, N, N, N, N, N, N, N, O, O, O, O, O, O,  //
    O, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, O, O, O, O, O,  //
    O, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, O, O, O, O, O,
};

CharClass class_of(std::uint32_t code) {
  static const Classes classes;
  return code < kCodes ? classes.at(code) : CharClass::kOther;
}

Code first_code(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) return {byte(0), 1};
  const std::size_t length = utf8_length(text);
  std::uint32_t code = byte(0) & (0xffu >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) code = code << 6 | (byte(i) & 0x3fu);
  return {code, static_cast<std::uint8_t>(length)};
}

Character other_character(std::string_view text) {
  const Code first = first_code(text);
  return first.length == 0 ? Character{CharClass::kOther, 1} : Character{class_of(first.code), first.length};
}

void append_utf8(std::uint32_t code, std::string& text) {
  const auto put = [&](std::uint32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code < 0x80) return put(code);
  if (code < 0x800) return put(0xc0 | code >> 6), put(0x80 | (code & 0x3f));
  if (code < 0x10000) return put(0xe0 | code >> 12), put(0x80 | (code >> 6 & 0x3f)), put(0x80 | (code & 0x3f));
  put(0xf0 | code >> 18), put(0x80 | (code >> 12 & 0x3f)), put(0x80 | (code >> 6 & 0x3f)), put(0x80 | (code & 0x3f));
}

}  // namespace mhla
