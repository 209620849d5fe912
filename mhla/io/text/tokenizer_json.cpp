#include "mhla/io/text/tokenizer_json.h"

#include <algorithm>
#include <unordered_map>

#include "mhla/io/file.h"
#include "mhla/io/text/byte_letters.h"
#include "mhla/io/text/json_part.h"
#include "mhla/io/text/post_processor.h"

namespace mhla {
namespace {

constexpr std::uint64_t kMaxFile = std::uint64_t{64} << 20;

void read_byte_level(const JsonValue& value, const std::string& name, BpeTable& table, bool& use_regex) {
  const JsonPart part(value, name, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
  table.add_prefix_space = part.flag("add_prefix_space", true);  // the default of the format
  use_regex = part.flag("use_regex", true);
}

PieceRule split_rule(const JsonValue& value) {
  const JsonPart split(value, "pretokenizers[0]", {"type", "pattern", "behavior", "invert"});
  split.only("behavior", "Isolated");
  split.only("invert", false);
  const std::string pattern = JsonPart(split.at("pattern"), "pattern", {"Regex"}).at("Regex").as_string();
  const std::optional<PieceRule> rule = rule_of_pattern(pattern);
  if (!rule) fail("pattern is ", json_quote(pattern).substr(0, 200), ", expected the one of GPT-2 or of Llama 3");
  return *rule;
}

PieceRule digits_rule(const JsonValue& value) {
  const JsonPart digits(value, "pretokenizers[0]", {"type", "individual_digits"});
  return digits.at("individual_digits").as_bool() ? PieceRule::kDigits : PieceRule::kNumbers;
}

void read_pre_tokenizer(const JsonValue& value, BpeTable& table) {
  const std::string type = type_of(value, "pre_tokenizer");
  bool use_regex = true;
  if (type == "ByteLevel") {
    read_byte_level(value, "pre_tokenizer", table, use_regex);
    table.rule = use_regex ? PieceRule::kGpt2 : PieceRule::kWhole;
    return;
  }
  if (type != "Sequence")
    fail("pre_tokenizer is ", json_quote(type).substr(0, 80),
         ", expected ByteLevel, or a Split or Digits and ByteLevel");
  const JsonPart sequence(value, "pre_tokenizer", {"type", "pretokenizers"});
  const JsonValue& list = sequence.at("pretokenizers");
  const std::string first = list.is_array() && list.size() == 2 ? type_of(list.at(0), "pretokenizers[0]") : "";
  if ((first != "Split" && first != "Digits") || type_of(list.at(1), "pretokenizers[1]") != "ByteLevel")
    fail("pre_tokenizer is a Sequence of ", shown(list), ", expected a Split or Digits and ByteLevel");
  table.rule = first == "Split" ? split_rule(list.at(0)) : digits_rule(list.at(0));
  read_byte_level(list.at(1), "pretokenizers[1]", table, use_regex);
  if (use_regex != (first == "Digits"))
    fail("pretokenizers[1].use_regex is ", use_regex ? "true" : "false", " behind ", first, ", expected ",
         use_regex ? "false" : "true");
  if (table.add_prefix_space) fail("pretokenizers[1].add_prefix_space is true behind ", first, ", expected false");
}

// Decoding joins bytes; a normaliser would change them.
void check_processors(const JsonPart& root) {
  if (const JsonValue* decoder = root.find("decoder"))
    if (const std::string type = type_of(*decoder, "decoder"); type != "ByteLevel")
      fail("decoder is ", json_quote(type).substr(0, 80), ", expected ByteLevel");
  if (const JsonValue* normalizer = root.find("normalizer"))
    fail("normalizer is ", json_quote(type_of(*normalizer, "normalizer")).substr(0, 80),
         ", expected null: text would not come back as it was");
}

void put_token(BpeTable& table, std::size_t most, std::int64_t id, const std::string& bytes, const std::string& text) {
  if (id < 0 || static_cast<std::uint64_t>(id) >= most)
    fail("token ", json_quote(text).substr(0, 80), " has id ", id, ", expected 0 to ", most - 1);
  const auto at = static_cast<std::size_t>(id);
  if (table.tokens.size() <= at) table.tokens.resize(at + 1);
  if (bytes.empty()) fail("token ", id, " is empty");
  if (!table.tokens[at].empty() && table.tokens[at] != bytes)
    fail("tokens ", json_quote(text).substr(0, 80), " and ", json_quote(table.tokens[at]).substr(0, 80),
         " have both id ", id);
  table.tokens[at] = bytes;
}

void read_added_tokens(const JsonValue& list, std::size_t most, BpeTable& table) {
  for (const JsonValue& item : list.items()) {
    const JsonPart part(item, "added_tokens",
                        {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    part.only("single_word", false);
    part.only("lstrip", false);
    part.only("rstrip", false);
    const std::string& text = part.at("content").as_string();
    const std::int64_t id = part.at("id").as_int();
    put_token(table, most, id, text, text);
    table.specials.push_back({static_cast<std::uint32_t>(id), text, part.flag("special", true)});
  }
}

using TokenIds = std::unordered_map<std::string_view, std::uint32_t>;

void read_merges(const JsonValue& list, const TokenIds& ids, BpeTable& table) {
  table.merges.reserve(list.size());
  for (const JsonValue& item : list.items()) {
    std::string_view left, right;
    if (item.is_array() && item.size() == 2) {
      left = item.at(0).as_string(), right = item.at(1).as_string();
    } else if (item.is_string()) {  // "a b": no letter of a byte is a space
      const std::string_view text = item.as_string();
      const std::size_t space = text.find(' ');
      if (space != std::string_view::npos) left = text.substr(0, space), right = text.substr(space + 1);
    }
    const auto l = ids.find(left), r = ids.find(right);
    if (l == ids.end() || r == ids.end())
      fail("merge ", table.merges.size(), " is ", shown(item), ", expected two tokens of the vocabulary");
    table.merges.emplace_back(l->second, r->second);
  }
}

void read_model(const JsonValue& value, const JsonValue* added, BpeTable& table) {
  if (value.is_object() && value.contains("type") && type_of(value, "model") != "BPE")
    fail("model is ", json_quote(type_of(value, "model")).substr(0, 80), ", expected BPE");
  const JsonPart model(value, "model",
                       {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                        "byte_fallback", "ignore_merges", "vocab", "merges"});
  model.only("dropout", 0.0);
  model.only("continuing_subword_prefix", "");
  model.only("end_of_word_suffix", "");
  model.only("byte_fallback", false);  // that kind has letters for whole characters
  table.ignore_merges = model.flag("ignore_merges", false);
  const JsonValue::Object& vocab = model.at("vocab").members();
  // Ids may have holes, but a short file must not ask for gigabytes.
  const std::size_t most =
      std::min<std::size_t>(kMaxVocab, 2 * (vocab.size() + (added != nullptr ? added->size() : 0)) + 1024);
  if (added != nullptr) read_added_tokens(*added, most, table);
  TokenIds ids;
  std::string bytes;
  for (const JsonValue::Member& member : vocab) {
    const std::int64_t id = member.value.as_int();
    const bool is_added = std::any_of(table.specials.begin(), table.specials.end(), [&](const SpecialToken& token) {
      return token.id == id && token.text == member.key;
    });
    if (is_added) continue;
    if (!from_letters(member.key, bytes))
      fail("token ", json_quote(member.key).substr(0, 80), " is no byte-level text, as every token should be");
    put_token(table, most, id, bytes, member.key);
    ids.emplace(member.key, static_cast<std::uint32_t>(id));
  }
  read_merges(model.at("merges"), ids, table);
}

}  // namespace

BpeTable parse_tokenizer_json(std::string_view text, const std::string& label) {
  const JsonValue json = parse_json(text, label);
  try {
    const JsonPart root(json, "the file",
                        {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                         "post_processor", "decoder", "model"});
    root.only("version", "1.0");
    root.only("truncation", nullptr);
    root.only("padding", nullptr);
    BpeTable table;
    check_processors(root);
    read_pre_tokenizer(root.at("pre_tokenizer"), table);
    read_model(root.at("model"), root.find("added_tokens"), table);
    if (const JsonValue* processor = root.find("post_processor")) {
      AroundText around = read_post_processor(*processor, table.tokens.size());
      table.opening = std::move(around.opening), table.closing = std::move(around.closing);
    }
    return table;
  } catch (const Error& error) {
    fail(label, ": ", error.what());
  }
}

TokenizerPtr parse_tokenizer(std::string text, const std::string& label, const pipeline::RegexLimits& limits) {
  try {
    return std::make_shared<BpeTokenizer>(parse_tokenizer_json(text, label), label);
  } catch (const Error&) {  // the pipeline reads every file that is meant for a table, and says what is wrong with it
    return make_pipeline_tokenizer(std::move(text), label, limits);
  }
}

TokenizerPtr read_tokenizer(const std::filesystem::path& path) {
  const std::vector<std::byte> bytes = read_file(path, kMaxFile);
  return parse_tokenizer({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path.string());
}

}  // namespace mhla
