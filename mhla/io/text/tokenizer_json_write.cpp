// The other direction of tokenizer_json.cpp.
#include "mhla/core/error.h"
#include "mhla/io/json.h"
#include "mhla/io/text/byte_letters.h"
#include "mhla/io/text/tokenizer_json.h"

namespace mhla {
namespace {

JsonValue template_json(const BpeTable& table) {
  if (table.opening.empty() && table.closing.empty()) return nullptr;
  JsonValue specials = JsonValue::object();
  const auto around = [&](bool pair) {
    JsonValue::Array list;
    const auto add = [&](const std::vector<std::uint32_t>& tokens) {
      for (const std::uint32_t id : tokens) {
        const std::string name = str("token ", id);
        list.push_back(JsonValue().set("SpecialToken", JsonValue().set("id", name).set("type_id", 0)));
        specials.set(name, JsonValue()
                               .set("id", name)
                               .set("ids", JsonValue::array({id}))
                               .set("tokens", JsonValue::array({table.tokens[id]})));
      }
    };
    add(table.opening);
    for (const char* text : {"A", "B"})
      if (pair || *text == 'A')
        list.push_back(JsonValue().set("Sequence", JsonValue().set("id", text).set("type_id", 0)));
    add(table.closing);
    return list;
  };
  const JsonValue single = around(false), pair = around(true);
  return JsonValue()
      .set("type", "TemplateProcessing")
      .set("single", single)
      .set("pair", pair)
      .set("special_tokens", specials);
}

}  // namespace

std::string write_tokenizer_json(const BpeTable& table) {
  JsonValue::Array added;
  for (const SpecialToken& token : table.specials)
    added.push_back(JsonValue()
                        .set("id", token.id)
                        .set("content", token.text)
                        .set("single_word", false)
                        .set("lstrip", false)
                        .set("rstrip", false)
                        .set("normalized", false)
                        .set("special", token.special));
  JsonValue::Object vocab;
  std::size_t special = 0;  // the next of table.specials, which are in the order of their ids
  for (std::uint32_t id = 0; id < table.tokens.size(); ++id) {
    const bool is_special = special < table.specials.size() && table.specials[special].id == id;
    // Special tokens stand here too: readers give one that does not a new id behind the last.
    if (is_special) vocab.push_back({table.specials[special++].text, id});
    if (!table.tokens[id].empty() && !is_special) vocab.push_back({to_letters(table.tokens[id]), id});
  }
  JsonValue::Array merges;
  for (const auto& [left, right] : table.merges)
    merges.push_back(to_letters(table.tokens[left]) + " " + to_letters(table.tokens[right]));
  const auto byte_level = [&](bool use_regex) {
    return JsonValue()
        .set("type", "ByteLevel")
        .set("add_prefix_space", table.add_prefix_space)
        .set("trim_offsets", true)
        .set("use_regex", use_regex);
  };
  const JsonValue split = JsonValue()
                              .set("type", "Split")
                              .set("pattern", JsonValue().set("Regex", pattern_of(PieceRule::kLlama3)))
                              .set("behavior", "Isolated")
                              .set("invert", false);
  const JsonValue digits = JsonValue().set("type", "Digits").set("individual_digits", table.rule == PieceRule::kDigits);
  const auto behind = [](const JsonValue& first, const JsonValue& second) {
    return JsonValue().set("type", "Sequence").set("pretokenizers", JsonValue::array({first, second}));
  };
  const bool digits_first = table.rule == PieceRule::kDigits || table.rule == PieceRule::kNumbers;
  const JsonValue pre_tokenizer = digits_first                       ? behind(digits, byte_level(true))
                                  : table.rule == PieceRule::kLlama3 ? behind(split, byte_level(false))
                                                                     : byte_level(table.rule == PieceRule::kGpt2);
  const JsonValue model = JsonValue()
                              .set("type", "BPE")
                              .set("dropout", nullptr)
                              .set("unk_token", nullptr)
                              .set("continuing_subword_prefix", nullptr)
                              .set("end_of_word_suffix", nullptr)
                              .set("fuse_unk", false)
                              .set("byte_fallback", false)
                              .set("ignore_merges", table.ignore_merges)
                              .set("vocab", std::move(vocab))
                              .set("merges", std::move(merges));
  return write_json(JsonValue()
                        .set("version", "1.0")
                        .set("truncation", nullptr)
                        .set("padding", nullptr)
                        .set("added_tokens", std::move(added))
                        .set("normalizer", nullptr)
                        .set("pre_tokenizer", pre_tokenizer)
                        .set("post_processor", template_json(table))
                        .set("decoder", byte_level(true))
                        .set("model", model),
                    1) +
         "\n";
}

}  // namespace mhla
