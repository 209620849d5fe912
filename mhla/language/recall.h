// Tasks made on the fly, by length and seed: can a model find again what stood earlier?
//   mqar     keys and values as tokens, then the keys again (data/mqar.h)
//   passkey  text with one number in it; needle: with several, of which one is asked for
#pragma once

#include "mhla/data/mqar.h"
#include "mhla/language/text_model.h"

namespace mhla {

TaskResult run_mqar(const MqarOptions& options, std::int64_t items, TextModel& model);

inline constexpr std::int64_t kAnswerTokens = 12;  // that a model may write when it is asked for a number

struct NeedleOptions {
  std::int64_t length = 1024;  // tokens of the prompt, at most
  std::int64_t needles = 1;    // up to 24; one is asked for
  double depth = 0.5;          // where in the text it stands, 0 to 1
  std::uint64_t seed = 0;
};

struct NeedleItem {
  std::string prompt, answer;  // the answer is five digits
};

NeedleItem needle_item(const NeedleOptions& options, std::int64_t item, const Tokenizer& tokenizer);
// Of `items` at depths from 0 to 1, the part whose number greedy decoding says first.
TaskResult run_needles(NeedleOptions options, std::int64_t items, TextModel& model);

}  // namespace mhla
