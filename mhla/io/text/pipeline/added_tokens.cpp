#include "mhla/io/text/pipeline/added_tokens.h"

#include <algorithm>

#include "mhla/io/text/json_part.h"
#include "mhla/io/text/pipeline/icu.h"
#include "mhla/io/text/unicode.h"

namespace mhla::pipeline {
namespace {

// Where the last character of `text` begins.
std::size_t last_character(std::string_view text) {
  std::size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) --at;
  return at;
}

std::size_t spaces_begin(std::string_view text) {  // of those at its end
  while (!text.empty()) {
    const std::size_t last = last_character(text);
    if (first_character(text.substr(last)).kind != CharClass::kSpace) break;
    text = text.substr(0, last);
  }
  return text.size();
}

std::size_t spaces_end(std::string_view text) {  // of those at its beginning
  std::size_t at = 0;
  while (at < text.size()) {
    const Character c = first_character(text.substr(at));
    if (c.kind != CharClass::kSpace) break;
    at += c.length;
  }
  return at;
}

bool stands_alone(std::string_view text, const Span& span) {
  const std::string_view before = text.substr(0, span.begin), behind = text.substr(span.end);
  return (before.empty() || !is_word(first_code(before.substr(last_character(before))).code)) &&
         (behind.empty() || !is_word(first_code(behind).code));
}

}  // namespace

std::vector<AddedToken> read_added_tokens(const JsonValue& list) {
  std::vector<AddedToken> tokens;
  for (const JsonValue& item : list.items()) {
    const JsonPart part(item, "added_tokens",
                        {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token;
    const std::int64_t id = part.at("id").as_int();
    if (id < 0 || id > 0xffffffff) fail("added_tokens.id is ", id, ", expected a number of 32 bits");
    token.id = static_cast<std::uint32_t>(id);
    token.text = part.at("content").as_string();
    if (token.text.empty()) fail("added token ", id, " is empty");
    token.single_word = part.flag("single_word", false);
    token.lstrip = part.flag("lstrip", false);
    token.rstrip = part.flag("rstrip", false);
    token.special = part.flag("special", true);
    token.normalized = part.flag("normalized", !token.special);
    if (token.single_word) need_icu("added_tokens.single_word");
    tokens.push_back(std::move(token));
  }
  return tokens;
}

void TextTrie::add(std::string_view text, std::uint32_t value) {
  if (text.empty()) fail("an added token is empty once it is normalised");
  std::uint32_t state = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const auto [next, added] = next_.emplace(std::uint64_t{state} << 8 | byte, values_.size());
    if (added) values_.emplace_back();
    state = next->second;
  }
  begins_[static_cast<unsigned char>(text[0])] = true;
  if (values_[state]) fail("added token ", json_quote(text).substr(0, 80), " stands there twice");
  values_[state] = value;
}

TextTrie::Found TextTrie::longest(std::string_view text) const {
  Found found;
  if (text.empty() || !begins_[static_cast<unsigned char>(text[0])]) return found;
  std::uint32_t state = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const auto next = next_.find(std::uint64_t{state} << 8 | static_cast<unsigned char>(text[at]));
    if (next == next_.end()) break;
    state = next->second;
    if (values_[state]) found = {at + 1, *values_[state]};
  }
  return found;
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, const std::vector<std::string>& as_normalized)
    : tokens_(std::move(tokens)) {
  for (std::uint32_t i = 0; i < tokens_.size(); ++i)
    tries_[tokens_[i].normalized ? 1 : 0].add(tokens_[i].normalized ? as_normalized[i] : tokens_[i].text, i);
}

void AddedTokens::cut(std::string_view text, bool normalized, SpecialText special,
                      std::vector<Section>& sections) const {
  const TextTrie& trie = tries_[normalized ? 1 : 0];
  std::size_t done = 0;
  for (std::size_t at = 0; at < text.size() && !trie.empty();) {
    const TextTrie::Found found = trie.longest(text.substr(at));
    if (found.length == 0) {
      ++at;
      continue;
    }
    Span span{at, at + found.length};
    at = span.end;
    const AddedToken& token = tokens_[found.value];
    if (token.special && special == SpecialText::kPlain) continue;
    if (token.single_word && !stands_alone(text, span)) continue;
    if (token.lstrip) span.begin = std::max(done, spaces_begin(text.substr(0, span.begin)));
    if (token.rstrip) span.end += spaces_end(text.substr(span.end));
    if (done < span.begin) sections.push_back({{done, span.begin}, std::nullopt});
    sections.push_back({span, token.id});
    done = span.end;
  }
  if (done < text.size()) sections.push_back({{done, text.size()}, std::nullopt});
}

}  // namespace mhla::pipeline
