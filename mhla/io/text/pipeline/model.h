// The BPE model of a tokenizer.json whose tokens are text: a piece begins as its characters, each with
// continuing_subword_prefix before all but the first and end_of_word_suffix behind the last, and pairs are merged. A
// character without token is its bytes as <0x41> (byte_fallback), or unk_token, or left out. Private to this room.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>

#include "mhla/io/json.h"
#include "mhla/io/text/bpe_merge.h"
#include "mhla/io/text/pipeline/added_tokens.h"

namespace mhla::pipeline {

class Model {
 public:
  // `added` are tokens of the vocabulary, too. Any other model than BPE is refused by name.
  Model(const JsonValue& value, const std::vector<AddedToken>& added);

  [[nodiscard]] const std::vector<std::string>& tokens() const { return tokens_; }  // by id; empty: no such id
  struct Scratch {
    BpeMerger merger;
    std::vector<std::uint32_t> ids;
  };
  void encode(std::string_view piece, Scratch& scratch, std::vector<std::uint32_t>& ids) const;  // appends

 private:
  void read_vocab(const JsonValue::Object& vocab, const std::vector<AddedToken>& added);
  void read_merges(const JsonValue& list);
  [[nodiscard]] std::optional<std::uint32_t> find(std::string_view text) const;
  void start(std::string_view piece, std::vector<std::uint32_t>& ids) const;
  bool put_bytes(std::string_view text, std::vector<std::uint32_t>& ids) const;

  std::vector<std::string> tokens_;
  std::unordered_map<std::string_view, std::uint32_t> ids_;  // of the model, which need not have the added ones
  std::optional<PairTable> pairs_;
  std::string prefix_, suffix_;
  std::optional<std::string> maybe_unk_;
  std::optional<std::uint32_t> maybe_unk_id_;
  std::optional<std::uint32_t> byte_ids_[256];
  bool fuse_unk_ = false, byte_fallback_ = false, ignore_merges_ = false;
};

}  // namespace mhla::pipeline
