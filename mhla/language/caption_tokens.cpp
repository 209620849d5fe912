#include "mhla/language/caption_tokens.h"

#include <algorithm>

#include "mhla/core/error.h"
#include "mhla/io/text/prompt_cleaning.h"

namespace mhla {
namespace {

constexpr std::string_view kInstruction =
    R"(Given a user prompt, generate an "Enhanced prompt" that provides detailed visual descriptions suitable for image generation. Evaluate the level of detail in the user prompt:
- If the prompt is simple, focus on adding specifics about colors, shapes, sizes, textures, and spatial relationships to create vivid and concrete scenes.
- If the prompt is already detailed, refine and enhance the existing details slightly without overcomplicating.
Here are examples of how to transform or refine prompts:
- User Prompt: A cat sleeping -> Enhanced: A small, fluffy white cat curled up in a round shape, sleeping peacefully on a warm sunny windowsill, surrounded by pots of blooming red flowers.
- User Prompt: A busy city street -> Enhanced: A bustling city street scene at dusk, featuring glowing street lamps, a diverse crowd of people in colorful clothing, and a double-decker bus passing by towering glass skyscrapers.
Please generate only the enhanced description for the prompt below and avoid including any additional commentary or evaluations:
User Prompt: )";

std::vector<std::uint32_t> opening_of(const Tokenizer& tokenizer) {
  if (tokenizer.opening().empty())
    if (const auto first = tokenizer.find_special("<bos>")) return {*first};  // of Gemma's SentencePiece model
  return tokenizer.document_opening();
}

}  // namespace

std::string_view sana_instruction() { return kInstruction; }

CaptionTokens caption_tokens(const Tokenizer& tokenizer, const std::vector<std::string>& prompts,
                             std::string_view instruction, std::int64_t tokens) {
  if (tokens < 2) fail("caption_tokens: ", tokens, " tokens, expected at least 2");
  const std::vector<std::uint32_t> opening = opening_of(tokenizer);
  const auto encoded = [&](const std::string& text) {
    std::vector<std::uint32_t> ids = opening;
    const std::vector<std::uint32_t> words = tokenizer.encode(text);
    ids.insert(ids.end(), words.begin(), words.end());
    return ids;
  };
  const std::string before(instruction);
  CaptionTokens result;
  result.captions = static_cast<std::int64_t>(prompts.size());
  result.length = before.empty() ? tokens : static_cast<std::int64_t>(encoded(before).size()) + tokens - 2;
  const std::int64_t padding = tokenizer.find_special("<pad>").value_or(0);
  for (const std::string& prompt : prompts) {
    const std::vector<std::uint32_t> ids = encoded(before + prompt);
    const std::size_t kept = std::min(ids.size(), static_cast<std::size_t>(result.length));
    const std::size_t rest = static_cast<std::size_t>(result.length) - kept;
    result.ids.insert(result.ids.end(), ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(kept));
    result.ids.insert(result.ids.end(), rest, padding);
    result.mask.insert(result.mask.end(), kept, 1);
    result.mask.insert(result.mask.end(), rest, 0);
    result.left_out.push_back(static_cast<std::int64_t>(ids.size() - kept));
  }
  return result;
}

std::vector<std::int64_t> umt5_caption(const Tokenizer& tokenizer, const std::string& prompt) {
  const std::optional<std::uint32_t> end = tokenizer.find_special("</s>");
  if (!end) fail("umt5_caption: the tokenizer has no </s>, expected umT5's");
  const std::vector<std::uint32_t> ids = tokenizer.encode(clean_prompt(prompt));
  std::vector<std::int64_t> caption(ids.begin(), ids.end());
  caption.push_back(*end);
  return caption;
}

}  // namespace mhla
