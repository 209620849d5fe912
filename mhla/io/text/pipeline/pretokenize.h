// The pre_tokenizer of a tokenizer.json: cuts a text into the pieces that merges never cross. Private to this room.
#pragma once

#include <memory>
#include <vector>

#include "mhla/io/text/pipeline/normalize.h"

namespace mhla::pipeline {

struct Pieces : StepText {
  std::vector<Span> spans;  // of `text`, none empty, in order; what lies between them was removed
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void apply(Pieces& pieces, const RegexBudget& budget) const = 0;
};

using PreTokenizers = std::vector<std::unique_ptr<const PreTokenizer>>;

// Split, ByteLevel, Metaspace, Digits, WhitespaceSplit, Sequence, and (through ICU) Whitespace, Punctuation,
// BertPreTokenizer. Others are refused by name.
PreTokenizers read_pre_tokenizers(const JsonValue& value);

}  // namespace mhla::pipeline
