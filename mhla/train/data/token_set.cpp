#include "mhla/train/data/token_set.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "mhla/core/error.h"
#include "mhla/io/file.h"
#include "mhla/io/json.h"
#include "mhla/io/text/bpe_train.h"
#include "mhla/train/data/corpus.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

constexpr const char* kIndex = "dataset.json";

std::string hex(std::uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

TokenizerPtr make_tokenizer(const TokenizeOptions& o, std::int64_t trained_to) {
  if (trained_to == 0) return open_tokenizer(o.tokenizer);
  BpeTrainOptions options;
  options.vocab_size = trained_to;
  BpeTrainer trainer(options);
  read_corpus(o.data, [&](const std::string&, std::string_view text) { trainer.add(text); });
  return trainer.train();
}

// Shards of one split, a new one when the last is full.
class SplitWriter {
 public:
  SplitWriter(const TokenizeOptions& o, const Tokenizer& tokenizer, const char* name, TokenSplit& split)
      : options_(o), tokenizer_(tokenizer), name_(name), split_(split) {}
  void add(std::span<const std::uint32_t> document) {
    if (!shard_) shard_.emplace(tokenizer_.fingerprint(), tokenizer_.vocab_size());
    shard_->add(document);
    if (shard_->tokens() >= options_.shard_tokens) close();
  }
  void close() {
    if (!shard_) return;
    char number[16];
    std::snprintf(number, sizeof number, "%05d", static_cast<int>(split_.shards.size()));
    split_.shards.push_back(str(name_, "-", number, ".tokens"));
    split_.documents += shard_->documents();
    split_.tokens += shard_->tokens();
    shard_->write(fs::path(options_.out) / split_.shards.back());
    shard_.reset();
  }

 private:
  const TokenizeOptions& options_;
  const Tokenizer& tokenizer_;
  const char* name_;
  TokenSplit& split_;
  std::optional<TokenShardWriter> shard_;
};

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
    info.tokenizer_kind = json.at("tokenizer").as_string();
    const std::string& print = json.at("fingerprint").as_string();
    const auto [stop, error] = std::from_chars(print.data(), print.data() + print.size(), info.fingerprint, 16);
    if (error != std::errc() || hex(info.fingerprint) != print)
      fail("fingerprint is '", print, "', expected 16 digits");
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
  if (!info.valid_source.empty()) json.set("valid_source", info.valid_source);
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
  if (error != std::errc() || stop != end || size < 1)
    fail("tokenizer is '", tokenizer, "', expected bytes, a tokenizer.json, a .model, or train:SIZE");
  return size;
}

bool has_tokenizer(const TokenSetInfo& info, const std::string& tokenizer) {
  if (const std::int64_t size = trained_size(tokenizer); size > 0)
    return (info.trained_to > 0 ? info.trained_to : info.vocab_size) == size;
  return open_tokenizer(tokenizer)->fingerprint() == info.fingerprint;
}

bool is_token_set(const std::string& folder) {
  std::error_code none;
  return fs::is_regular_file(fs::path(folder) / kIndex, none);
}

TokenSetInfo tokenize_corpus(const TokenizeOptions& o, const std::function<void(std::int64_t)>& progress) {
  if (o.out.empty()) fail("tokenize: out is empty, expected a folder");
  if (!(o.valid >= 0.0 && o.valid <= 0.5)) fail("tokenize: valid is ", o.valid, ", expected 0 to 0.5");
  if (o.valid > 0.0 && !o.valid_data.empty())
    fail("tokenize: valid is ", o.valid, " and valid_data is ", o.valid_data, ", expected one of them");
  if (!o.valid_data.empty() && o.valid_data != "default" && !fs::exists(o.valid_data))
    fail("tokenize: valid_data is ", o.valid_data, ", which is not there");
  if (o.shard_tokens < 1) fail("tokenize: shard_tokens is ", o.shard_tokens, ", expected at least 1");
  if (is_token_set(o.out)) fail("tokenize: ", o.out, " has a ", kIndex, " already; give another folder");
  const std::int64_t trained_to = trained_size(o.tokenizer);
  const TokenizerPtr tokenizer = make_tokenizer(o, trained_to);
  std::error_code error;
  fs::create_directories(o.out, error);
  if (error) fail("tokenize: ", o.out, " could not be made: ", error.message());
  TokenSetInfo info;
  info.source = o.data, info.valid_source = o.valid_data;
  info.tokenizer_kind = tokenizer->kind();
  info.fingerprint = tokenizer->fingerprint();
  info.vocab_size = tokenizer->vocab_size(), info.trained_to = trained_to;
  const std::vector<std::uint32_t> opening = tokenizer->document_opening(), &closing = tokenizer->closing();
  if (!opening.empty()) info.document_token = opening.front();
  SplitWriter train(o, *tokenizer, "train", info.train), valid(o, *tokenizer, "valid", info.valid);
  const std::int64_t every = o.valid > 0.0 ? std::llround(1.0 / o.valid) : 0;
  const std::unique_ptr<Encoder> encoder = tokenizer->encoder();
  std::vector<std::uint32_t> ids;
  std::int64_t done = 0;
  const auto add = [&](std::string_view text, SplitWriter& to) {
    ids = opening;
    encoder->encode(text, ids);
    ids.insert(ids.end(), closing.begin(), closing.end());
    to.add(ids);
    if (++done % 256 == 0 && progress) progress(done);
  };
  CorpusCounts counts = read_corpus(o.data, [&](const std::string&, std::string_view text) {
    add(text, every > 0 && done % every == every - 1 ? valid : train);
  });
  if (!o.valid_data.empty()) {
    const CorpusCounts more =
        read_corpus(o.valid_data, [&](const std::string&, std::string_view text) { add(text, valid); });
    counts.bytes += more.bytes;
    counts.empty.insert(counts.empty.end(), more.empty.begin(), more.empty.end());
  }
  train.close();
  valid.close();
  if (info.train.documents == 0 || (every > 0 && info.valid.documents == 0))
    fail("tokenize: ", counts.documents, " documents are too few for a valid part of ", o.valid,
         ", expected valid 0, a larger part, or valid_data");
  info.bytes = counts.bytes;
  info.empty = counts.empty;
  tokenizer->save(fs::path(o.out) / tokenizer->file_name());
  write_file(fs::path(o.out) / kIndex, write_token_index(info));
  return info;
}

TokenSet TokenSet::open(const std::string& folder, bool valid) {
  TokenSet set;
  set.folder_ = folder;
  if (!is_token_set(folder)) fail("data: ", folder, " has no ", kIndex, ": make it with mhla data tokenize");
  const fs::path index = fs::path(folder) / kIndex;
  const std::vector<std::byte> text = read_file(index, std::uint64_t{64} << 20);
  set.info_ = parse_token_index({reinterpret_cast<const char*>(text.data()), text.size()}, index.string());
  const TokenSplit& split = valid ? set.info_.valid : set.info_.train;
  if (split.shards.empty()) fail("data: ", folder, " has no ", valid ? "held-out" : "training", " documents");
  for (const std::string& name : split.shards) {
    const TokenShard& shard = set.shards_.emplace_back(TokenShard::read(fs::path(folder) / name));
    if (shard.fingerprint() != set.info_.fingerprint || shard.vocab_size() != set.info_.vocab_size)
      fail(shard.label(), ": is of another tokenizer than ", kIndex, " says");
    set.documents_.push_back(set.documents() + shard.documents());
    set.tokens_.push_back(set.tokens() + shard.tokens());
  }
  if (set.documents() != split.documents || set.tokens() != split.tokens)
    fail("data: ", folder, ": shards have ", set.documents(), " documents of ", set.tokens(), " tokens, ", kIndex,
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
