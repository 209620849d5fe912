#include "mhla/io/text/bpe.h"

#include <algorithm>

#include "mhla/core/error.h"
#include "mhla/io/file.h"
#include "mhla/io/json.h"
#include "mhla/io/text/bpe_encoder.h"
#include "mhla/io/text/bpe_index.h"
#include "mhla/io/text/fingerprint.h"
#include "mhla/io/text/sentencepiece.h"
#include "mhla/io/text/tokenizer_json.h"

namespace mhla {
namespace {

std::uint64_t fingerprint_of(const BpeTable& table) {
  Fingerprint print;
  print.add("mhla bpe 1");
  print.add(name_of(table.rule));
  print.add((table.ignore_merges ? 1u : 0u) | (table.add_prefix_space ? 2u : 0u));
  print.add(table.tokens.size());
  for (const std::string& token : table.tokens) print.add(token);
  print.add(table.merges.size());
  for (const auto& [left, right] : table.merges) print.add(std::uint64_t{left} << 32 | right);
  for (const SpecialToken& token : table.specials) {
    print.add(token.id);
    print.add(token.special ? 1u : 0u);
  }
  if (!table.opening.empty() || !table.closing.empty()) {
    for (const auto* tokens : {&table.opening, &table.closing}) {
      print.add(tokens->size());
      for (const std::uint32_t token : *tokens) print.add(token);
    }
  }
  return print.value();
}

std::string shown(std::string_view token) { return json_quote(token.substr(0, 40)); }

}  // namespace

BpeTokenizer::~BpeTokenizer() = default;

BpeTokenizer::BpeTokenizer(BpeTable table, const std::string& label) : table_(std::move(table)) {
  const std::vector<std::string>& tokens = table_.tokens;
  if (vocab_size() > kMaxVocab) fail(label, ": ", tokens.size(), " tokens, expected at most ", kMaxVocab);
  auto index = std::make_unique<Index>(table_.merges.size());
  std::vector<char> is_special(tokens.size());
  std::sort(table_.specials.begin(), table_.specials.end(),
            [](const SpecialToken& a, const SpecialToken& b) { return a.id < b.id; });
  for (const SpecialToken& token : table_.specials) {
    if (token.text.empty()) fail(label, ": special token ", token.id, " is empty");
    if (token.id >= tokens.size() || tokens[token.id] != token.text || is_special[token.id] != 0)
      fail(label, ": special token ", shown(token.text), " has id ", token.id, ", which is another token's");
    is_special[token.id] = 1;
    for (const SpecialText mode : {SpecialText::kPlain, SpecialText::kParse})
      if (!token.special || mode == SpecialText::kParse) index->added[static_cast<int>(mode)].push_back(token.id);
  }
  for (auto& added : index->added)  // where two fit, the longer one
    std::stable_sort(added.begin(), added.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return tokens[a].size() > tokens[b].size(); });
  for (std::uint32_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].empty() || is_special[id] != 0) continue;
    const auto [same, added] = index->ids.emplace(tokens[id], id);
    if (!added) fail(label, ": tokens ", same->second, " and ", id, " are both ", shown(tokens[id]));
  }
  for (int byte = 0; byte < 256; ++byte) {
    const char letter = static_cast<char>(byte);
    const auto found = index->ids.find(std::string_view(&letter, 1));
    if (found == index->ids.end()) fail(label, ": no token for byte ", byte, ", expected one for each of 256 bytes");
    byte_ids_[static_cast<std::size_t>(byte)] = found->second;
  }
  std::string joined;
  for (std::size_t rank = 0; rank < table_.merges.size(); ++rank) {
    const auto [left, right] = table_.merges[rank];
    for (const std::uint32_t part : {left, right})
      if (part >= tokens.size() || tokens[part].empty() || is_special[part] != 0)
        fail(label, ": merge ", rank, " joins token ", part, ", which is none of the vocabulary");
    joined.assign(tokens[left]).append(tokens[right]);
    const auto found = index->ids.find(joined);
    if (found == index->ids.end()) fail(label, ": merge ", rank, " makes ", shown(joined), ", which is no token");
    if (!index->pairs.add(left, right, {static_cast<std::uint32_t>(rank), found->second}))
      fail(label, ": merge ", rank, " of ", shown(tokens[left]), " and ", shown(tokens[right]), " stands there twice");
  }
  for (const auto* list : {&table_.opening, &table_.closing})
    for (const std::uint32_t id : *list)
      if (id >= tokens.size() || tokens[id].empty())
        fail(label, ": a document gets token ", id, ", which is none of the vocabulary");
  index_ = std::move(index);
  fingerprint_ = fingerprint_of(table_);
}

std::string_view BpeTokenizer::token_text(std::int64_t id) const {
  if (id < 0 || id >= vocab_size()) fail("tokenizer: id ", id, " is out of range, expected 0 to ", vocab_size() - 1);
  const std::string& text = table_.tokens[static_cast<std::size_t>(id)];
  if (text.empty()) fail("tokenizer: id ", id, " has no token in this vocabulary of ", vocab_size());
  return text;
}

std::unique_ptr<Encoder> BpeTokenizer::encoder(SpecialText special) const {
  return std::make_unique<BpeEncoder>(*this, special);
}

void BpeTokenizer::save(const std::filesystem::path& path) const { write_file(path, write_tokenizer_json(table_)); }

std::vector<std::uint32_t> Tokenizer::encode(std::string_view text, SpecialText special) const {
  std::vector<std::uint32_t> ids;
  encoder(special)->encode(text, ids);
  return ids;
}

std::string Tokenizer::text_after(std::int64_t /*before*/, std::int64_t id) const {
  return std::string(token_text(id));
}

std::string Tokenizer::decode(std::span<const std::uint32_t> ids) const {
  std::string text;
  for (const std::uint32_t id : ids) text += token_text(id);
  return text;
}

std::optional<std::uint32_t> Tokenizer::find_special(std::string_view text) const {
  for (const SpecialToken& token : specials())
    if (token.text == text) return token.id;
  return std::nullopt;
}

std::vector<std::uint32_t> Tokenizer::document_opening() const {
  if (!opening().empty()) return opening();
  for (const std::string_view name : {kEndOfText, std::string_view("<s>"), std::string_view("<|begin_of_text|>")})
    if (const auto id = find_special(name)) return {*id};
  return {};
}

TokenizerPtr byte_tokenizer() {
  BpeTable table;
  for (int byte = 0; byte < 256; ++byte) table.tokens.emplace_back(1, static_cast<char>(byte));
  table.tokens.emplace_back(kEndOfText);
  table.specials = {{256, std::string(kEndOfText)}};
  return std::make_shared<BpeTokenizer>(std::move(table));
}

TokenizerPtr open_tokenizer(const std::string& name) {
  if (name == "bytes") return byte_tokenizer();
  if (std::filesystem::path(name).extension() == ".model") return open_sentencepiece(name);
  return read_tokenizer(name);
}

}  // namespace mhla
