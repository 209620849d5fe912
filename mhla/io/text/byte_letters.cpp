#include "mhla/io/text/byte_letters.h"

#include <unordered_map>

#include "mhla/io/text/unicode.h"

namespace mhla {
namespace {

struct ByteLetters {
  std::string letters[256];
  std::unordered_map<std::string, char> bytes;
  ByteLetters() {
    std::uint32_t next = 0x100;
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
      append_utf8(printable ? byte : next++, letters[byte]);
      bytes.emplace(letters[byte], static_cast<char>(byte));
    }
  }
};

const ByteLetters& byte_letters() {
  static const ByteLetters letters;
  return letters;
}

}  // namespace

const std::string& letter_of(char byte) { return byte_letters().letters[static_cast<unsigned char>(byte)]; }

std::string to_letters(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) text += letter_of(c);
  return text;
}

bool from_letters(std::string_view text, std::string& bytes) {
  bytes.clear();
  while (!text.empty()) {
    const auto found = byte_letters().bytes.find(std::string(text.substr(0, first_character(text).length)));
    if (found == byte_letters().bytes.end()) return false;
    bytes.push_back(found->second);
    text.remove_prefix(found->first.size());
  }
  return true;
}

}  // namespace mhla
