// Captions of a text-to-image model as token ids, padded on the right to one length. SANA puts an instruction before a
// prompt; its text encoder's states are then taken at position 0 and the last `tokens` - 1 (models/text_encoder).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mhla/io/text/tokenizer.h"

namespace mhla {

// The eight lines of SANA's published configs ("complex human instruction"), the last of which is "User Prompt: ".
std::string_view sana_instruction();

struct CaptionTokens {
  std::int64_t captions = 0, length = 0;
  std::vector<std::int64_t> ids, mask;  // [captions, length]; mask 0 for padding
  std::vector<std::int64_t> left_out;   // [captions]: tokens at the end of each that were cut
};

// `tokens`: what the image model sees. With an instruction a text is cut at (tokens of the instruction) + tokens - 2,
// so that what is selected ends where the longest prompt does; without one, as for a prompt that is left out, at
// tokens. Every text opens with the tokenizer's own first token.
CaptionTokens caption_tokens(const Tokenizer& tokenizer, const std::vector<std::string>& prompts,
                             std::string_view instruction = sana_instruction(), std::int64_t tokens = 300);

// A prompt as umT5 is given it: cleaned (io/text/prompt_cleaning.h), its tokens, then </s>. It is not cut.
std::vector<std::int64_t> umt5_caption(const Tokenizer& tokenizer, const std::string& prompt);

}  // namespace mhla
