// What a language model has read and written of some texts, ready to go on: every token of the prompt and every one
// that was drawn, those of a stop string too. The state has seen all tokens of a text but the last, which is fed
// together with what follows: so a context that was saved goes on without reading anything again.
#pragma once

#include <functional>

#include "mhla/io/text/tokenizer.h"
#include "mhla/models/lm/lm.h"

namespace mhla {

struct TextContext {
  LmState state;                                   // of one sequence a text
  std::vector<std::vector<std::uint32_t>> tokens;  // of each text, at least one
  std::vector<std::string> held;  // of each text, or none: bytes of its last tokens that generate() has still to show

  [[nodiscard]] std::int64_t texts() const { return static_cast<std::int64_t>(tokens.size()); }
  [[nodiscard]] std::int64_t longest() const;  // tokens
};

// Called before each piece of a text that is read; what it throws ends the reading.
using BeforePiece = std::function<void()>;

// Texts of any lengths, each read in parallel, `piece` tokens at a time. What opens a document is put before them.
TextContext read_texts(LanguageModelImpl& model, const Tokenizer& tokenizer, const std::vector<std::string>& texts,
                       std::int64_t piece = 2048, const BeforePiece& before = {});
TextContext read_tokens(LanguageModelImpl& model, std::vector<std::vector<std::uint32_t>> tokens,
                        std::int64_t piece = 2048, const BeforePiece& before = {});  // as they are; none is empty
// `more` behind each text, as it is: no space comes between them; a context of one text is forked for every text of
// `more`.
TextContext read_more(LanguageModelImpl& model, const Tokenizer& tokenizer, TextContext context,
                      const std::vector<std::string>& more, std::int64_t piece = 2048, const BeforePiece& before = {});

// What `more` becomes behind `tokens`: a text that goes on, or the beginning of one where nothing but its opening is
// there.
std::vector<std::uint32_t> encode_behind(const Tokenizer& tokenizer, const std::vector<std::uint32_t>& tokens,
                                         const std::string& more);

// One file, written atomically: the state with checksums of itself and of the weights, the tokens, the fingerprint of
// the tokenizer, the length policy and whether the model was exact. Whatever does not match the model, the tokenizer or
// the policy is an Error, and so is a state that is not exact for a model that is.
void save_context(const LanguageModelImpl& model, const Tokenizer& tokenizer, const TextContext& context,
                  const std::filesystem::path& path);
TextContext load_context(const LanguageModelImpl& model, const Tokenizer& tokenizer, const std::filesystem::path& path);

}  // namespace mhla
