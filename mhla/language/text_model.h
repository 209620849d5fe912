// What an evaluation asks of a language model. Tasks are functions over this, so they are tested with a model that is
// none.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "mhla/io/text/tokenizer.h"

namespace mhla {

struct TextRequest {
  std::vector<std::uint32_t> context, continuation;  // an empty context: from the beginning of a document
  bool windows = false;  // without a context: may be scored in windows side by side where the model is limited
};

struct TextScore {
  double log_likelihood = 0.0;  // of the continuation behind the context, natural logarithm
  bool greedy = false;          // every token of it is the most likely one
};

class TextModel {
 public:
  virtual ~TextModel() = default;
  [[nodiscard]] virtual const Tokenizer& tokenizer() const = 0;  // an Error where the ids of the model are no text
  [[nodiscard]] virtual std::int64_t vocab_size() const { return tokenizer().vocab_size(); }
  virtual std::vector<TextScore> score(std::span<const TextRequest> requests) = 0;
  // The most likely text of at most `max_tokens` tokens, up to the first of `stops` or the end of the document.
  virtual std::string generate(std::span<const std::uint32_t> context, std::int64_t max_tokens,
                               const std::vector<std::string>& stops) = 0;
  // The most likely token behind each of `places` of a sequence.
  virtual std::vector<std::uint32_t> likeliest(std::span<const std::uint32_t> tokens,
                                               std::span<const std::int64_t> places) = 0;
};

// A context and what follows it, cut where the tokens of the whole are cut: spaces at the end of the context belong to
// the continuation, as words have theirs in front.
TextRequest text_request(const Tokenizer& tokenizer, std::string context, std::string continuation);

struct Figure {
  std::string name;
  double value = 0.0;
  double error = 0.0;  // of the mean, one standard deviation; 0: not known
};

struct TaskResult {
  std::string task;
  std::int64_t items = 0;
  std::vector<Figure> figures;
};

Figure mean_figure(const std::string& name, std::span<const double> values);

}  // namespace mhla
