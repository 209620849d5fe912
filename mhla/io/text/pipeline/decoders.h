// The decoder of a tokenizer.json: tokens back to text. Private to this room.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "mhla/io/json.h"
#include "mhla/io/text/pipeline/regex.h"

namespace mhla::pipeline {

// Where tokens stand: what a decoder does at the beginning and at the end of a text is not done in the middle of one.
struct DecodeEnds {
  bool first = true, last = true;
  bool bytes = false;  // tokens of bytes that are no UTF-8 together stay bytes, for more may come; else U+FFFD for each
};

class DecodeStep {
 public:
  virtual ~DecodeStep() = default;
  virtual void apply(std::vector<std::string>& tokens, const DecodeEnds& ends, const RegexBudget& budget) const = 0;
};

class TokenDecoder {
 public:
  explicit TokenDecoder(const JsonValue* maybe_value);  // none: tokens with spaces between them
  [[nodiscard]] std::string decode(std::vector<std::string> tokens, const RegexBudget& budget,
                                   const DecodeEnds& ends = {}) const;

 private:
  std::vector<std::unique_ptr<const DecodeStep>> steps_;
};

}  // namespace mhla::pipeline
