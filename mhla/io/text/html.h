// Character references of HTML, "&amp;" and "&#8217;", as Python's html.unescape() reads them. Private to this room.
#pragma once

#include <string>
#include <string_view>

namespace mhla {

// All of them: names without a semicolon and beginnings of longer words, too.
std::string html_unescape(std::string_view text);
// Only those that end in a semicolon: in plain text "this&not that" is no reference.
std::string html_unescape_closed(std::string_view text);

// What a byte of 0x80 to 0x9f means in Windows-1252, which is what such a code stands for on the Web; 0: nothing.
char32_t windows_1252(char32_t code);

}  // namespace mhla
