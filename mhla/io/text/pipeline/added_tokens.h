// The added_tokens of a tokenizer.json: texts that are found before all others and are one token each. Those that are
// not "normalized" are looked for in the text as it came, the others in the normalised one. Where several fit, the
// first, and of those the longest is taken. Private to this room.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "mhla/io/json.h"
#include "mhla/io/text/pipeline/regex.h"
#include "mhla/io/text/tokenizer.h"

namespace mhla::pipeline {

struct AddedToken {
  std::uint32_t id = 0;
  std::string text;
  bool single_word = false;             // not inside of a word
  bool lstrip = false, rstrip = false;  // takes the spaces before and behind it along
  bool normalized = false;
  bool special = true;
};

std::vector<AddedToken> read_added_tokens(const JsonValue& list);

// Texts by their bytes, one state each.
class TextTrie {
 public:
  void add(std::string_view text, std::uint32_t value);  // an Error where it is there
  struct Found {
    std::size_t length = 0;  // 0: none
    std::uint32_t value = 0;
  };
  [[nodiscard]] Found longest(std::string_view text) const;  // that `text` begins with
  [[nodiscard]] bool empty() const { return next_.empty(); }

 private:
  std::unordered_map<std::uint64_t, std::uint32_t> next_;  // by state * 256 + byte
  std::vector<std::optional<std::uint32_t>> values_{std::nullopt};
  bool begins_[256] = {};
};

// A stretch of text: plain, or an added token.
struct Section {
  Span span;
  std::optional<std::uint32_t> maybe_id;
};

class AddedTokens {
 public:
  // `as_normalized`: the texts of tokens that are looked for in normalised text, by their place in `tokens`.
  AddedTokens(std::vector<AddedToken> tokens, const std::vector<std::string>& as_normalized);
  // Sections are not empty. Special tokens are plain text unless `special` says otherwise.
  void cut(std::string_view text, bool normalized, SpecialText special, std::vector<Section>& sections) const;

 private:
  std::vector<AddedToken> tokens_;
  TextTrie tries_[2];  // by whether text is normalised; values are places in tokens_
};

}  // namespace mhla::pipeline
