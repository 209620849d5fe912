#include "mhla/io/text/pipeline/pattern.h"

#include "mhla/io/text/json_part.h"

namespace mhla::pipeline {

Pattern::Pattern(const JsonValue& value, const std::string& name) {
  const JsonPart part(value, name, {"String", "Regex"});
  const JsonValue *string = part.find("String"), *regex = part.find("Regex");
  if ((string != nullptr) == (regex != nullptr)) fail(name, " is ", shown(value), ", expected a String or a Regex");
  string_ = (string != nullptr ? string : regex)->as_string();
  if (string != nullptr) {
    if (string_.empty()) fail(name, ".String is empty, expected text");
    return;
  }
  maybe_rule_ = rule_of_pattern(string_);
  if (!maybe_rule_) maybe_regex_ = std::make_unique<Regex>(string_);
}

void Pattern::find_all(std::string_view text, const RegexBudget& budget, std::vector<Span>& matches) const {
  if (maybe_regex_ != nullptr) return maybe_regex_->find_all(text, budget, matches);
  if (maybe_rule_) {
    for (std::size_t at = 0; at < text.size(); at = matches.back().end)
      matches.push_back({at, at + piece_length(*maybe_rule_, text.substr(at))});
    return;
  }
  for (std::size_t at = text.find(string_); at != std::string_view::npos; at = text.find(string_, at + string_.size()))
    matches.push_back({at, at + string_.size()});
}

}  // namespace mhla::pipeline
