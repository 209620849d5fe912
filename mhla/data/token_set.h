// A corpus as tokens: a folder with tokenizer.json, shards, and dataset.json, which is written last and names them. So
// a folder that has it is whole.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "mhla/data/corpus.h"
#include "mhla/io/text/token_shard.h"
#include "mhla/io/text/tokenizer.h"

namespace mhla {

inline constexpr const char* kTokenIndex = "dataset.json";

struct TokenizeOptions {
  std::string data = "default";     // as for read_corpus
  std::string tokenizer = "bytes";  // "bytes", a tokenizer.json or .model, or "train:SIZE"
  std::string out;                  // a folder, made if it is not there; one that has a dataset.json is refused
  double valid = 0.0;               // part of the documents that is held out: every n-th, n = round(1 / valid), of
                                    // fewer than n the last one, of a single one its last lines
  std::string valid_data;           // or documents of their own to hold out, as for read_corpus; no tokenizer sees them
  std::int64_t shard_tokens = std::int64_t{1} << 26;
};

// What dataset.json says of one split.
struct TokenSplit {
  std::int64_t documents = 0, tokens = 0;
  std::vector<std::string> shards;  // names in the folder, in order
  friend bool operator==(const TokenSplit&, const TokenSplit&) = default;
};

struct TokenSetInfo {
  std::string source, tokenizer_kind;
  std::optional<CorpusPrint> text;   // of the source; none in older files, as the next
  std::optional<double> valid_part;  // TokenizeOptions::valid
  std::string valid_source;          // of the held-out documents where they have one of their own
  bool valid_tail = false;           // held out are the last lines of the only document
  std::uint64_t fingerprint = 0;
  std::int64_t vocab_size = 0;
  std::int64_t trained_to = 0;  // SIZE of "train:SIZE", which little text may not fill; 0: the tokenizer was given
  std::optional<std::int64_t> document_token;  // stands before every document
  std::int64_t bytes = 0;                      // of text
  TokenSplit train, valid;
  std::vector<std::string> empty, broken, not_read;  // as CorpusCounts has them; not in the file
  friend bool operator==(const TokenSetInfo&, const TokenSetInfo&) = default;
};

// Warnings for people: a line for text that is not UTF-8, a line for files that were not read.
std::vector<std::string> text_warnings(const TokenSetInfo& info);

// In tokenize.cpp. Every document opens with Tokenizer::document_opening() and ends with closing(). `progress` gets
// the documents done. Files of one that was killed are removed first, and those of one that fails.
// Text that the tokenizer refuses is an Error with the name of its document.
TokenSetInfo tokenize_corpus(const TokenizeOptions& options, const std::function<void(std::int64_t)>& progress = {});

bool is_token_set(const std::string& folder);
std::int64_t trained_size(const std::string& tokenizer);  // SIZE of "train:SIZE"; 0: another kind of tokenizer
// Whether tokens were made with what TokenizeOptions::tokenizer says.
bool has_tokenizer(const TokenSetInfo& info, const std::string& tokenizer);
// An Error where the tokens of `folder` are those of another text than `data` has now. Where the file does not say, or
// the data is not there any more, the path decides.
void expect_tokens_of(const std::string& command, const std::string& folder, const TokenSetInfo& info,
                      const std::string& data);

// dataset.json, in and out.
TokenSetInfo parse_token_index(std::string_view text, const std::string& label);
std::string write_token_index(const TokenSetInfo& info);

// One split, opened: its documents are numbered through all shards, and so are its tokens.
class TokenSet {
 public:
  static TokenSet open(const std::string& folder, bool valid = false);

  [[nodiscard]] const TokenSetInfo& info() const { return info_; }
  [[nodiscard]] const std::string& folder() const { return folder_; }
  [[nodiscard]] TokenizerPtr tokenizer() const;  // an Error when it is not the one of the shards
  [[nodiscard]] std::int64_t documents() const { return documents_.back(); }
  [[nodiscard]] std::int64_t tokens() const { return tokens_.back(); }
  [[nodiscard]] std::int64_t document_begin(std::int64_t document) const;  // documents() gives tokens()
  [[nodiscard]] std::uint32_t checksum() const;                            // of the shards' own
  void copy(std::int64_t first, std::int64_t count, std::int64_t* out) const;
  void verify_checksums() const;  // reads every byte, about half a second a GB
  void verify() const;            // and holds every token against the vocabulary

 private:
  std::string folder_;
  TokenSetInfo info_;
  std::vector<TokenShard> shards_;
  std::vector<std::int64_t> documents_{0}, tokens_{0};  // [shards + 1], sums
};

}  // namespace mhla
