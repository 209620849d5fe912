#include "mhla/io/text/tokenizer_json.h"

#include <algorithm>
#include <initializer_list>
#include <unordered_map>

#include "mhla/core/error.h"
#include "mhla/io/file.h"
#include "mhla/io/json.h"
#include "mhla/io/text/unicode.h"

namespace mhla {
namespace {

constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::uint64_t kMaxFile = std::uint64_t{64} << 20;

// A vocabulary is JSON text, so each byte has a letter: printable ones of Latin-1 their own, the others those from
// U+0100 on, in order. A space is U+0120.
struct ByteLetters {
  std::string letters[256];
  std::unordered_map<std::string, char> bytes;
  ByteLetters() {
    std::uint32_t next = 0x100;
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
      append_utf8(printable ? byte : next++, letters[byte]);
      bytes.emplace(letters[byte], static_cast<char>(byte));
    }
  }
};

const ByteLetters& byte_letters() {
  static const ByteLetters letters;
  return letters;
}

std::string to_letters(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) text += byte_letters().letters[static_cast<unsigned char>(c)];
  return text;
}

// False when a character is no byte's letter.
bool from_letters(std::string_view text, std::string& bytes) {
  bytes.clear();
  while (!text.empty()) {
    const auto found = byte_letters().bytes.find(std::string(text.substr(0, first_character(text).length)));
    if (found == byte_letters().bytes.end()) return false;
    bytes.push_back(found->second);
    text.remove_prefix(found->first.size());
  }
  return true;
}

std::string shown(const JsonValue& value) {
  const std::string text = write_json(value);
  return text.size() <= 80 ? text : text.substr(0, 80) + "...";
}

// One object of the file: what it may hold, and with which values.
class Part {
 public:
  Part(const JsonValue& value, std::string name, std::initializer_list<std::string_view> known)
      : value_(value), name_(std::move(name)) {
    if (!value.is_object()) fail(name_, " is ", shown(value), ", expected an object");
    for (const JsonValue::Member& member : value.members())
      if (std::find(known.begin(), known.end(), member.key) == known.end())
        fail(name_, " has ", json_quote(member.key).substr(0, 80), ", which is not known here");
  }
  [[nodiscard]] const JsonValue* find(std::string_view key) const {  // null where the file says null
    const JsonValue* value = value_.find(key);
    return value != nullptr && value->is_null() ? nullptr : value;
  }
  [[nodiscard]] const JsonValue& at(std::string_view key) const {
    const JsonValue* value = find(key);
    if (value == nullptr) fail(name_, " has no '", key, "'");
    return *value;
  }
  [[nodiscard]] bool flag(std::string_view key, bool otherwise) const {
    const JsonValue* value = find(key);
    return value != nullptr ? value->as_bool() : otherwise;
  }
  // Absent, null, or the one value that means nothing happens.
  void only(std::string_view key, const JsonValue& harmless) const {
    const JsonValue* value = find(key);
    if (value != nullptr && !(*value == harmless))
      fail(name_, ".", key, " is ", shown(*value), ", expected ",
           harmless.is_null() ? "null" : "null or " + shown(harmless), ": it would change what is encoded");
  }

 private:
  const JsonValue& value_;
  std::string name_;
};

std::string type_of(const JsonValue& value, const std::string& name) {
  if (!value.is_object() || !value.contains("type") || !value.at("type").is_string())
    fail(name, " is ", shown(value), ", expected an object with a type");
  return value.at("type").as_string();
}

void read_byte_level(const JsonValue& value, const std::string& name, BpeTable& table, bool& use_regex) {
  const Part part(value, name, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
  table.add_prefix_space = part.flag("add_prefix_space", true);  // the default of the format
  use_regex = part.flag("use_regex", true);
}

PieceRule split_rule(const JsonValue& value) {
  const Part split(value, "pretokenizers[0]", {"type", "pattern", "behavior", "invert"});
  split.only("behavior", "Isolated");
  split.only("invert", false);
  const std::string pattern = Part(split.at("pattern"), "pattern", {"Regex"}).at("Regex").as_string();
  if (pattern != kLlama3Pattern && pattern != kGpt2Pattern)
    fail("pattern is ", json_quote(pattern).substr(0, 200), ", expected the one of GPT-2 or of Llama 3");
  return pattern == kLlama3Pattern ? PieceRule::kLlama3 : PieceRule::kGpt2;
}

PieceRule digits_rule(const JsonValue& value) {
  const Part digits(value, "pretokenizers[0]", {"type", "individual_digits"});
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
  const Part sequence(value, "pre_tokenizer", {"type", "pretokenizers"});
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
void check_processors(const Part& root) {
  if (const JsonValue* decoder = root.find("decoder"))
    if (const std::string type = type_of(*decoder, "decoder"); type != "ByteLevel")
      fail("decoder is ", json_quote(type).substr(0, 80), ", expected ByteLevel");
  if (const JsonValue* normalizer = root.find("normalizer"))
    fail("normalizer is ", json_quote(type_of(*normalizer, "normalizer")).substr(0, 80),
         ", expected null: text would not come back as it was");
}

// The tokens that a template puts around one text; what it does with a pair of texts is not asked for here.
void read_template(const JsonValue& value, BpeTable& table) {
  const Part part(value, "post_processor", {"type", "single", "pair", "special_tokens"});
  bool behind = false;
  for (const JsonValue& piece : part.at("single").items()) {
    const Part one(piece, "post_processor.single", {"SpecialToken", "Sequence"});
    if (const JsonValue* text = one.find("Sequence")) {
      if (behind || one.find("SpecialToken") != nullptr || text->at("id").as_string() != "A")
        fail("post_processor.single has ", shown(piece), ", expected the text A once");
      behind = true;
      continue;
    }
    const std::string& name = one.at("SpecialToken").at("id").as_string();
    for (const JsonValue& id : part.at("special_tokens").at(name).at("ids").items()) {
      const std::int64_t token = id.as_int();
      if (token < 0 || token >= static_cast<std::int64_t>(table.tokens.size()))
        fail("post_processor puts token ", token, ", expected 0 to ", table.tokens.size() - 1);
      (behind ? table.closing : table.opening).push_back(static_cast<std::uint32_t>(token));
    }
  }
  if (!behind) fail("post_processor.single has no text A");
}

void read_post_processor(const JsonValue& value, BpeTable& table) {
  const std::string type = type_of(value, "post_processor");
  if (type == "ByteLevel") return;  // it moves offsets, which are not asked for
  if (type == "TemplateProcessing") {
    if (!table.opening.empty() || !table.closing.empty()) fail("post_processor has two templates, expected one");
    return read_template(value, table);
  }
  if (type != "Sequence")
    fail("post_processor is ", json_quote(type).substr(0, 80), ", expected ByteLevel, TemplateProcessing or Sequence");
  for (const JsonValue& item : Part(value, "post_processor", {"type", "processors"}).at("processors").items()) {
    if (type_of(item, "post_processor") == "Sequence") fail("post_processor has a Sequence in a Sequence");
    read_post_processor(item, table);
  }
}

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
    const Part part(item, "added_tokens",
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

using Ids = std::unordered_map<std::string_view, std::uint32_t>;

void read_merges(const JsonValue& list, const Ids& ids, BpeTable& table) {
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
  const Part model(value, "model",
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
  Ids ids;
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
    const Part root(json, "the file",
                    {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                     "post_processor", "decoder", "model"});
    root.only("version", "1.0");
    root.only("truncation", nullptr);
    root.only("padding", nullptr);
    BpeTable table;
    check_processors(root);
    // The model first: a file of another kind is named after that.
    read_model(root.at("model"), root.find("added_tokens"), table);
    read_pre_tokenizer(root.at("pre_tokenizer"), table);
    if (const JsonValue* processor = root.find("post_processor")) read_post_processor(*processor, table);
    return table;
  } catch (const Error& error) {
    fail(label, ": ", error.what());
  }
}

BpeTable read_tokenizer_json(const std::filesystem::path& path) {
  const std::vector<std::byte> bytes = read_file(path, kMaxFile);
  return parse_tokenizer_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path.string());
}

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
                              .set("pattern", JsonValue().set("Regex", kLlama3Pattern))
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
