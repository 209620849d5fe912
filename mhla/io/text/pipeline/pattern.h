// What a Split or Replace of tokenizer.json looks for: a String, or a Regex. The patterns of GPT-2 and Llama 3 are
// matched without a library (pieces.h). Private to this room.
#pragma once

#include <memory>
#include <optional>

#include "mhla/io/json.h"
#include "mhla/io/text/pieces.h"
#include "mhla/io/text/pipeline/regex.h"

namespace mhla::pipeline {

class Pattern {
 public:
  Pattern(const JsonValue& value, const std::string& name);  // {"String": ...} or {"Regex": ...}
  void find_all(std::string_view text, const RegexBudget& budget, std::vector<Span>& matches) const;

 private:
  std::string string_;
  std::optional<PieceRule> maybe_rule_;
  std::unique_ptr<const Regex> maybe_regex_;
};

}  // namespace mhla::pipeline
