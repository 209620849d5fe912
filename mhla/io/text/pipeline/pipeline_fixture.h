// Small tokenizer.json files for the tests of this folder.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "mhla/io/json.h"
#include "mhla/io/text/byte_letters.h"
#include "mhla/io/text/tokenizer_json.h"

namespace mhla::pipeline {

inline JsonValue step(const char* type) { return JsonValue().set("type", type); }

inline JsonValue sequence_of(const char* key, std::initializer_list<JsonValue> steps) {
  return step("Sequence").set(key, JsonValue::array(steps));
}

inline JsonValue split_by(const char* kind, const char* pattern, const char* behavior, bool invert = false) {
  return step("Split").set("pattern", JsonValue().set(kind, pattern)).set("behavior", behavior).set("invert", invert);
}

inline JsonValue byte_level(bool use_regex, bool prefix = false) {
  return step("ByteLevel").set("add_prefix_space", prefix).set("use_regex", use_regex);
}

inline JsonValue metaspace(const char* scheme, bool split) {
  return step("Metaspace").set("replacement", "\u2581").set("prepend_scheme", scheme).set("split", split);
}

// A file of these tokens in the order of their ids, without merges.
inline JsonValue file_of(const std::vector<std::string>& tokens) {
  JsonValue::Object vocab;
  for (const std::string& token : tokens) vocab.push_back({token, vocab.size()});
  return JsonValue()
      .set("version", "1.0")
      .set("added_tokens", JsonValue::array())
      .set("normalizer", nullptr)
      .set("pre_tokenizer", nullptr)
      .set("post_processor", nullptr)
      .set("decoder", nullptr)
      .set("model", step("BPE").set("vocab", vocab).set("merges", JsonValue::array()));
}

// A token for each byte, ids 0 to 255, and another 256 above where a piece ends: ids show every byte and every cut.
inline JsonValue visible_file(const JsonValue& normalizer, const JsonValue& pre_tokenizer) {
  std::vector<std::string> tokens;
  for (const char* end : {"", "|"})
    for (int byte = 0; byte < 256; ++byte) tokens.push_back(letter_of(static_cast<char>(byte)) + end);
  JsonValue file = file_of(tokens), model = file.at("model");
  JsonValue last = byte_level(false);
  return file.set("model", model.set("end_of_word_suffix", "|"))
      .set("normalizer", normalizer)
      .set("decoder", last)
      .set("pre_tokenizer", pre_tokenizer.is_null() ? last : sequence_of("pretokenizers", {pre_tokenizer, last}));
}

inline TokenizerPtr open(const JsonValue& file) { return parse_tokenizer(write_json(file), "f"); }

// The pieces of a text, with '|' between them, by a visible_file.
inline std::string cut(const JsonValue& file, const std::string& text) {
  std::string shown;
  for (const std::uint32_t id : open(file)->encode(text, SpecialText::kParse)) {
    if (id >= 512) {
      shown += "#|";
      continue;
    }
    shown += static_cast<char>(id % 256);
    if (id >= 256) shown += '|';
  }
  if (!shown.empty()) shown.pop_back();
  return shown;
}

inline JsonValue added_token(std::int64_t id, const char* text, bool special,
                             std::initializer_list<const char*> flags = {}) {
  JsonValue token = JsonValue().set("id", id).set("content", text).set("special", special);
  for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized"}) token.set(flag, false);
  for (const char* flag : flags) token.set(flag, true);
  return token;
}

}  // namespace mhla::pipeline
