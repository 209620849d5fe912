// Prompts as the published text-to-video models clean them before tokenization: ftfy's fixes, HTML references decoded
// twice, runs of white space to one space. "schÃ¶n", text that was decoded by the wrong table, is left as it is, and so
// are HTML names in capitals ("&EACUTE;"): the two things that ftfy repairs and this does not.
#pragma once

#include <string>
#include <string_view>

namespace mhla {

// Per line, until nothing changes: HTML references where the line has no '<', controls of Windows-1252, Latin
// ligatures, full-width and half-width forms, curly quotes, line ends, terminal escapes, control characters, normal
// form C. `text` is UTF-8. Without ICU normal forms are left as they are, and of other widths ASCII alone is known.
std::string fix_text(std::string_view text);

std::string clean_prompt(std::string_view text);

}  // namespace mhla
