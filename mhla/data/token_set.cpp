#include "mhla/data/token_set.h"

#include <algorithm>
#include <charconv>

#include "mhla/core/hex.h"
#include "mhla/core/limits.h"
#include "mhla/io/crc32c.h"
#include "mhla/io/file.h"
#include "mhla/io/json.h"
#include "mhla/io/text/bpe.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

template <class Value>
Value from_hex(const std::string& text, const char* name) {
  Value value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || hex(value) != text)
    fail(name, " is '", text, "', expected ", 2 * sizeof(Value), " digits");
  return value;
}

std::string size_of(const CorpusPrint& text) {
  return str(text.files, text.files == 1 ? " file of " : " files of ", text.bytes, " bytes, checksum ",
             hex(text.checksum));
}

JsonValue split_json(const TokenSplit& split) {
  JsonValue shards = JsonValue::array();
  for (const std::string& shard : split.shards) shards.push(shard);
  return JsonValue().set("documents", split.documents).set("tokens", split.tokens).set("shards", shards);
}

TokenSplit split_from(const JsonValue& json) {
  TokenSplit split;
  split.documents = json.at("documents").as_int();
  split.tokens = json.at("tokens").as_int();
  if (split.documents < 0 || split.tokens < 0)
    fail(split.documents, " documents of ", split.tokens, " tokens, expected 0 or more");
  for (const JsonValue& shard : json.at("shards").items()) {
    const std::string& name = shard.as_string();
    if (name.empty() || name == "." || name == ".." || fs::path(name).filename() != name)
      fail("shard '", name, "', expected a name in the folder");
    split.shards.push_back(name);
  }
  return split;
}

}  // namespace

TokenSetInfo parse_token_index(std::string_view text, const std::string& label) {
  const JsonValue json = parse_json(text, label);
  try {
    if (json.at("format").as_string() != "mhla tokens" || json.at("version").as_int() != 1)
      fail("is no list of token shards of version 1");
    TokenSetInfo info;
    info.source = json.at("source").as_string();
    if (const JsonValue* valid = json.find("valid_source")) info.valid_source = valid->as_string();
    if (const JsonValue* text_now = json.find("text")) {
      info.text = CorpusPrint{text_now->at("files").as_int(), text_now->at("bytes").as_int(),
                              from_hex<std::uint32_t>(text_now->at("crc32c").as_string(), "crc32c")};
    }
    if (const JsonValue* part = json.find("valid_part")) info.valid_part = part->as_double();
    if (const JsonValue* tail = json.find("valid_tail")) info.valid_tail = tail->as_bool();
    info.tokenizer_kind = json.at("tokenizer").as_string();
    info.fingerprint = from_hex<std::uint64_t>(json.at("fingerprint").as_string(), "fingerprint");
    info.vocab_size = json.at("vocab_size").as_int();
    if (info.vocab_size < 1 || info.vocab_size > kMaxVocab)
      fail("vocab_size is ", info.vocab_size, ", expected 1 to ", kMaxVocab);
    if (const JsonValue* size = json.find("trained_to"))
      if ((info.trained_to = size->as_int()) < 1) fail("trained_to is ", info.trained_to, ", expected 1 or more");
    if (!json.at("document_token").is_null()) {
      const std::int64_t token = json.at("document_token").as_int();
      if (token < 0 || token >= info.vocab_size)
        fail("document_token is ", token, ", expected 0 to ", info.vocab_size - 1);
      info.document_token = token;
    }
    info.bytes = json.at("bytes").as_int();
    if (info.bytes < 0) fail("bytes is ", info.bytes, ", expected 0 or more");
    info.train = split_from(json.at("train"));
    info.valid = split_from(json.at("valid"));
    return info;
  } catch (const Error& error) {
    fail(label, ": ", error.what());
  }
}

std::string write_token_index(const TokenSetInfo& info) {
  JsonValue json = JsonValue().set("format", "mhla tokens").set("version", 1).set("source", info.source);
  if (info.text)
    json.set("text", JsonValue()
                         .set("files", info.text->files)
                         .set("bytes", info.text->bytes)
                         .set("crc32c", hex(info.text->checksum)));
  if (info.valid_part) json.set("valid_part", *info.valid_part);
  if (!info.valid_source.empty()) json.set("valid_source", info.valid_source);
  if (info.valid_tail) json.set("valid_tail", true);
  json.set("tokenizer", info.tokenizer_kind);
  if (info.trained_to > 0) json.set("trained_to", info.trained_to);
  return write_json(json.set("fingerprint", hex(info.fingerprint))
                        .set("vocab_size", info.vocab_size)
                        .set("document_token", info.document_token ? JsonValue(*info.document_token) : JsonValue())
                        .set("bytes", info.bytes)
                        .set("train", split_json(info.train))
                        .set("valid", split_json(info.valid)),
                    2) +
         "\n";
}

std::int64_t trained_size(const std::string& tokenizer) {
  constexpr std::string_view kTrain = "train:";
  if (tokenizer.compare(0, kTrain.size(), kTrain) != 0) return 0;
  std::int64_t size = 0;
  const char *begin = tokenizer.data() + kTrain.size(), *end = tokenizer.data() + tokenizer.size();
  const auto [stop, error] = std::from_chars(begin, end, size);
  if (error != std::errc() || stop != end || size < 1 || size > limits::kVocab.most)
    fail("tokenizer is '", tokenizer, "', expected bytes, a tokenizer.json, a .model, or train:SIZE of at most ",
         limits::kVocab.most, " tokens");
  return size;
}

bool has_tokenizer(const TokenSetInfo& info, const std::string& tokenizer) {
  if (const std::int64_t size = trained_size(tokenizer); size > 0)
    return (info.trained_to > 0 ? info.trained_to : info.vocab_size) == size;
  return open_tokenizer(tokenizer)->fingerprint() == info.fingerprint;
}

void expect_tokens_of(const std::string& command, const std::string& folder, const TokenSetInfo& info,
                      const std::string& data) {
  const std::optional<CorpusPrint> now = info.text ? corpus_print(data) : std::nullopt;
  if (now ? *now == *info.text : info.source == data) return;
  if (!now) fail(command, ": ", folder, " has the tokens of ", info.source, ", expected those of ", data);
  const bool changed = info.source == data;
  fail(command, ": ", folder, " has the tokens of ", info.source, changed ? " as it was (" : " (", size_of(*info.text),
       "), expected those of ", data, changed ? " as it is now (" : " (", size_of(*now),
       "): give another folder for them, remove this one, or give it as data to take its tokens as they are");
}

bool is_token_set(const std::string& folder) {
  std::error_code none;
  return fs::is_regular_file(fs::path(folder) / kTokenIndex, none);
}

TokenSet TokenSet::open(const std::string& folder, bool valid) {
  TokenSet set;
  set.folder_ = folder;
  if (!is_token_set(folder)) fail("data: ", folder, " has no ", kTokenIndex, ": make it with mhla data tokenize");
  const fs::path index = fs::path(folder) / kTokenIndex;
  const std::vector<std::byte> text = read_file(index, std::uint64_t{64} << 20);
  set.info_ = parse_token_index({reinterpret_cast<const char*>(text.data()), text.size()}, index.string());
  const TokenSplit& split = valid ? set.info_.valid : set.info_.train;
  if (split.shards.empty()) fail("data: ", folder, " has no ", valid ? "held-out" : "training", " documents");
  for (const std::string& name : split.shards) {
    const TokenShard& shard = set.shards_.emplace_back(TokenShard::read(fs::path(folder) / name));
    if (shard.fingerprint() != set.info_.fingerprint || shard.vocab_size() != set.info_.vocab_size)
      fail(shard.label(), ": is of another tokenizer than ", kTokenIndex, " says");
    set.documents_.push_back(set.documents() + shard.documents());
    set.tokens_.push_back(set.tokens() + shard.tokens());
  }
  if (set.documents() != split.documents || set.tokens() != split.tokens)
    fail("data: ", folder, ": shards have ", set.documents(), " documents of ", set.tokens(), " tokens, ", kTokenIndex,
         " says ", split.documents, " of ", split.tokens);
  return set;
}

TokenizerPtr TokenSet::tokenizer() const {
  const char* name = info_.tokenizer_kind == "sentencepiece" ? "tokenizer.model" : "tokenizer.json";
  const std::string path = (fs::path(folder_) / name).string();
  TokenizerPtr tokenizer = open_tokenizer(path);
  if (tokenizer->fingerprint() != info_.fingerprint)
    fail(path, ": is another tokenizer (", hex(tokenizer->fingerprint()), ") than that of the shards (",
         hex(info_.fingerprint), ")");
  return tokenizer;
}

std::int64_t TokenSet::document_begin(std::int64_t document) const {
  if (document < 0 || document > documents()) fail("token set: document ", document, ", expected 0 to ", documents());
  if (document == documents()) return tokens();
  const auto shard = static_cast<std::size_t>(std::upper_bound(documents_.begin(), documents_.end(), document) -
                                              documents_.begin() - 1);
  const auto local = static_cast<std::size_t>(document - documents_[shard]);
  return tokens_[shard] + static_cast<std::int64_t>(shards_[shard].offsets()[local]);
}

std::uint32_t TokenSet::checksum() const {
  std::uint32_t sum = 0;
  for (const TokenShard& shard : shards_) {
    const std::uint32_t one = shard.checksum();
    sum = crc32c(std::as_bytes(std::span(&one, 1)), sum);
  }
  return sum;
}

void TokenSet::copy(std::int64_t first, std::int64_t count, std::int64_t* out) const {
  if (first < 0 || count < 0 || first > tokens() || count > tokens() - first)
    fail("token set: ", count, " tokens from ", first, " on, expected some of ", tokens());
  while (count > 0) {
    const auto shard =
        static_cast<std::size_t>(std::upper_bound(tokens_.begin(), tokens_.end(), first) - tokens_.begin() - 1);
    const std::int64_t here = std::min(count, tokens_[shard + 1] - first);
    shards_[shard].copy(first - tokens_[shard], here, out);
    first += here, out += here, count -= here;
  }
}

void TokenSet::verify_checksums() const {
  for (const TokenShard& shard : shards_) shard.verify_checksum();
}

void TokenSet::verify() const {
  for (const TokenShard& shard : shards_) shard.verify();
}

}  // namespace mhla
