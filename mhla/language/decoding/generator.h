// Texts that a language model writes after a context: a loop over a session (session.h).
#pragma once

#include <functional>

#include "mhla/language/decoding/session.h"

namespace mhla {

struct Generated {
  std::vector<GeneratedText> texts;
  std::int64_t steps = 0;  // of the model
  double seconds = 0.0;
};

// Whole characters as they come: which text, and what is new of it.
using TakeText = std::function<void(std::int64_t text, const std::string& piece)>;

// An Error before the first token where the length policy does not allow `max_tokens` more. When it returns, the
// context is that of the texts with what was written; a text that ended at a stop string continues after it. `stopped`
// is asked before every token: true interrupts all texts where they are.
Generated generate(LanguageModelImpl& model, const Tokenizer& tokenizer, TextContext& context,
                   const GenerateOptions& options, const TakeText& take = {},
                   const std::function<bool()>& stopped = {});

}  // namespace mhla
