// Texts that a language model writes behind a context, one token of every text at a time.
#pragma once

#include <functional>

#include "mhla/language/decoding/context.h"
#include "mhla/language/sampler.h"

namespace mhla {

struct GenerateOptions {
  SamplerOptions sampler;
  std::int64_t max_tokens = 128;   // of each text
  std::vector<std::string> stops;  // text that ends a text, and is no part of it
  bool end_with_document = true;   // the token that opens or closes a document ends a text
  std::function<bool()> stopped;   // asked before every token: true ends all texts where they are
};

struct GeneratedText {
  std::string text;
  std::int64_t tokens = 0;  // that were drawn
  std::string ended;        // "length", "stop", "end" of the document or "interrupted"
};

struct Generated {
  std::vector<GeneratedText> texts;
  std::int64_t steps = 0;  // of the model
  double seconds = 0.0;
};

// Whole characters as they come: which text, and what is new of it.
using TakeText = std::function<void(std::int64_t text, const std::string& piece)>;

// An Error before the first token where the length policy does not allow `max_tokens` more. The context is that of the
// texts with what was written when it returns; a token that is drawn depends on the seed, the number of the text and
// the place alone. Where `goes_on`, half a character and the beginning of a stop string at the end of a text that ended
// by its length or was interrupted are kept back: what continues the context will show them. A text that ended at a
// stop string goes on behind that.
Generated generate(LanguageModelImpl& model, const Tokenizer& tokenizer, TextContext& context,
                   const GenerateOptions& options, const TakeText& take = {}, bool goes_on = false);

}  // namespace mhla
