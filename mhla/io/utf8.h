// UTF-8 by the table of RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace mhla {

std::size_t utf8_length(std::string_view text);  // bytes of the character at the start of `text`, 0 if invalid
std::size_t utf8_prefix(std::string_view text);  // bytes before the first invalid one
inline bool is_utf8(std::string_view text) { return utf8_prefix(text) == text.size(); }

// The text with bytes that are no UTF-8 spelled out, "caf\\xe9": names of files may have any.
std::string escaped(std::string_view text);

// For messages: at most 40 bytes of whole characters, then "...".
std::string start_of(const std::string& text);

inline constexpr std::string_view kReplacementCharacter = "\xef\xbf\xbd";  // U+FFFD, for bytes that are no text

}  // namespace mhla
