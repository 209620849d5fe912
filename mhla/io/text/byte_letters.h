// A vocabulary is JSON text, so each byte has a letter: printable ones of Latin-1 their own, the others those from
// U+0100 on, in order. A space is U+0120. Private to this room.
#pragma once

#include <string>
#include <string_view>

namespace mhla {

const std::string& letter_of(char byte);
std::string to_letters(std::string_view bytes);
bool from_letters(std::string_view text, std::string& bytes);  // false when a character is no byte's letter

}  // namespace mhla
