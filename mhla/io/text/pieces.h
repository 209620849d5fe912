// Cuts text into the pieces that merges never cross, as the published patterns do, without a regex library:
//   kGpt2    's 't 're 've 'm 'll 'd | ?L+ | ?N+ | ?[^ s L N]+ | spaces but the last before a word | spaces
//   kLlama3  the same endings in either case | [^ CR LF L N]?L+ | N{1,3} | ?[^ s L N]+[CR LF]* | spaces up to the last
//            line break | spaces but the last before a word | spaces
//   kWhole   the text is one piece
//   kDigits  every digit a piece, what stands between them cut by kGpt2: no space goes with a digit
//   kNumbers the same with runs of digits as one piece
// Pieces are never empty and together are the text, whatever its bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace mhla {

enum class PieceRule : std::uint8_t { kGpt2, kLlama3, kWhole, kDigits, kNumbers };

const char* name_of(PieceRule rule);
std::string_view pattern_of(PieceRule rule);                         // kGpt2, kLlama3: as it is published; else empty
std::optional<PieceRule> rule_of_pattern(std::string_view pattern);  // of those two; each takes all of a text
std::size_t piece_length(PieceRule rule, std::string_view text);     // of the first piece; `text` is not empty

}  // namespace mhla
