// The normalizer of a tokenizer.json: what is done to a text before it is cut. Private to this room.
#pragma once

#include <memory>
#include <vector>

#include "mhla/io/json.h"
#include "mhla/io/text/pipeline/regex.h"

namespace mhla::pipeline {

// A text on its way through the steps.
struct StepText {
  std::string text;
  // Leading bytes of `text` that stand for the first character of what was to be encoded; Metaspace asks whether a
  // piece begins there.
  std::size_t head = 0;
  bool goes_on = false;  // it continues another text: no space is put before it
};

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual void apply(StepText& text, const RegexBudget& budget) const = 0;
};

using Normalizers = std::vector<std::unique_ptr<const Normalizer>>;

// NFC, NFD, NFKC, NFKD, Lowercase, StripAccents and BertNormalizer (through ICU), Replace, Prepend, Strip, Sequence.
// Others are refused by name.
Normalizers read_normalizers(const JsonValue& value);

}  // namespace mhla::pipeline
