// Sequences that a language model writes together, one token of every sequence at a time. Sequences join and leave
// between steps: generate() is a loop over a session, and a server can keep one open for all its clients.
//   Session session(model, tokenizer);
//   session.add(read_texts(model, tokenizer, {"Once"}), options);
//   while (session.going() > 0) for (const Written& w : session.step()) show(w);
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "mhla/language/decoding/context.h"
#include "mhla/language/sampler.h"
#include "mhla/language/text_stream.h"

namespace mhla {

class Decoder;

struct GenerateOptions {
  TokenSamplerOptions sampler;
  std::int64_t max_tokens = 128;   // of each text
  std::vector<std::string> stops;  // text that ends a text, and is not part of it
  bool end_with_document = true;   // the token that opens or closes a document ends a text
  // The context will be continued: half a character and the beginning of a stop string at the end of a text that ended
  // by its length or was interrupted are kept back for what continues it.
  bool goes_on = false;
};

enum class EndReason {
  kLength,       // max_tokens were written
  kStop,         // a stop string
  kDocument,     // the token that ends a document
  kInterrupted,  // taken out of the session before its end
};
const char* name_of(EndReason reason);  // "length", "stop", "end", "interrupted"

struct GeneratedText {
  std::string text;
  std::int64_t tokens = 0;  // that were drawn
  EndReason ended = EndReason::kInterrupted;
};

using SequenceId = std::int64_t;

// What a step has written of one sequence: whole characters, perhaps none yet.
struct Written {
  SequenceId id = 0;
  std::string text;
  std::optional<EndReason> ended;
};

class Session {
 public:
  // Both must outlive the session. No gradients are recorded.
  Session(LanguageModelImpl& model, const Tokenizer& tokenizer);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Every text of the context becomes a sequence that takes part in the next step. A token that is drawn depends on the
  // seed, the number of the text (first_number, first_number + 1, ...) and its place only, not on what else is in the
  // session. An Error where the length policy does not allow max_tokens more: session and context stay as they were.
  std::vector<SequenceId> add(TextContext&& context, const GenerateOptions& options, std::int64_t first_number = 0);

  // One token of every sequence that goes on. The first step of a sequence also shows what its context had held back.
  std::vector<Written> step();

  struct Removed {
    TextContext context;  // of one text, ready to be continued or saved
    GeneratedText text;
    std::string last;  // the end of the text where no step has shown it: it was interrupted
  };
  // Takes a sequence out, whether it has ended or not.
  Removed remove(SequenceId id);

  [[nodiscard]] std::int64_t going() const { return static_cast<std::int64_t>(going_.size()); }  // not ended yet
  [[nodiscard]] std::int64_t steps() const { return steps_; }                                    // of the model so far

 private:
  struct Sequence;
  using SequencePtr = std::unique_ptr<Sequence>;
  void draw(Sequence& sequence, const float* logits, Written& written);
  void put_aside(const std::vector<std::size_t>& places);  // sequences of `going_` that ended, in ascending order

  LanguageModelImpl& model_;
  const Tokenizer& tokenizer_;
  std::unique_ptr<Decoder> decoder_;
  std::set<std::uint32_t> ends_;        // tokens that end a document
  std::vector<std::uint32_t> missing_;  // ids that are no token
  std::vector<SequencePtr> going_, finished_;
  LmState state_;  // of those that go on, in their order
  SequenceId next_ = 0;
  std::int64_t steps_ = 0;
};

}  // namespace mhla
