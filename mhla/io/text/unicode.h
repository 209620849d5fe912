// Characters and their classes, for cutting text into pieces. A byte that is no UTF-8 is a character of its own, of
// class kOther: any bytes are text here. Private to this room.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace mhla {

enum class CharClass : std::uint8_t { kOther, kLetter, kNumber, kSpace };  // L, N, White_Space

struct Character {
  CharClass kind = CharClass::kOther;
  std::uint8_t length = 1;  // bytes
};

struct Code {
  std::uint32_t code = 0;
  std::uint8_t length = 1;  // bytes; 0: the text opens with no UTF-8
};

CharClass class_of(std::uint32_t code);
Code first_code(std::string_view text);            // `text` is not empty
Character other_character(std::string_view text);  // the first one of a text that opens with a byte above 127

extern const CharClass kAsciiClasses[128];

inline Character first_character(std::string_view text) {
  const auto byte = static_cast<unsigned char>(text[0]);
  return byte < 128 ? Character{kAsciiClasses[byte], 1} : other_character(text);
}

void append_utf8(std::uint32_t code, std::string& text);

}  // namespace mhla
