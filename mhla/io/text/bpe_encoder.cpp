#include "mhla/io/text/bpe_encoder.h"

#include <algorithm>
#include <array>

namespace mhla {
BpeEncoder::BpeEncoder(const BpeTokenizer& tokenizer, SpecialText special)
    : tokenizer_(tokenizer), added_(tokenizer.index_->added[static_cast<int>(special)]) {}

void BpeEncoder::encode(std::string_view text, std::vector<std::uint32_t>& ids) {
  const std::vector<std::string>& tokens = tokenizer_.table_.tokens;
  // Where each added token comes next; a text has many words and few of these.
  std::vector<std::size_t> places(added_.size());
  for (std::size_t i = 0; i < added_.size(); ++i) places[i] = text.find(tokens[added_[i]]);
  std::size_t at = 0;
  while (at < text.size()) {
    std::size_t first = std::string_view::npos, which = 0;
    for (std::size_t i = 0; i < added_.size(); ++i) {
      if (places[i] < at) places[i] = text.find(tokens[added_[i]], at);
      if (places[i] < first) first = places[i], which = i;  // the longest of those at one place comes first
    }
    const std::size_t end = std::min(first, text.size());
    if (end > at) encode_plain(text.substr(at, end - at), ids);
    at = end;
    if (first == std::string_view::npos) break;
    ids.push_back(added_[which]);
    at += tokens[added_[which]].size();
  }
}

void BpeEncoder::encode_plain(std::string_view text, std::vector<std::uint32_t>& ids) {
  const BpeTable& table = tokenizer_.table_;
  std::string with_space;
  if (table.add_prefix_space && text[0] != ' ') text = with_space.append(" ").append(text);
  if (table.merges.empty() && !table.ignore_merges) {
    for (const char c : text) ids.push_back(tokenizer_.byte_ids_[static_cast<unsigned char>(c)]);
    return;
  }
  while (!text.empty()) {
    const std::string_view piece = text.substr(0, piece_length(table.rule, text));
    text.remove_prefix(piece.size());
    words_.encode(piece, ids,
                  [this](std::string_view word, std::vector<std::uint32_t>& to) { encode_piece(word, to); });
  }
}

void BpeEncoder::encode_piece(std::string_view piece, std::vector<std::uint32_t>& ids) {
  if (tokenizer_.table_.ignore_merges) {
    const auto found = tokenizer_.index_->ids.find(piece);
    if (found != tokenizer_.index_->ids.end()) return ids.push_back(found->second);
  }
  const auto byte_id = [&](char byte) { return tokenizer_.byte_ids_[static_cast<unsigned char>(byte)]; };
  if (piece.size() <= BpeMerger::kShort) {
    std::array<std::uint32_t, BpeMerger::kShort> merged;
    std::transform(piece.begin(), piece.end(), merged.begin(), byte_id);
    const std::size_t count = BpeMerger::merge_short(tokenizer_.index_->pairs, merged.data(), piece.size());
    ids.insert(ids.end(), merged.begin(), merged.begin() + static_cast<std::ptrdiff_t>(count));
    return;
  }
  long_.resize(piece.size());
  std::transform(piece.begin(), piece.end(), long_.begin(), byte_id);
  merger_.merge_long(tokenizer_.index_->pairs, long_);
  ids.insert(ids.end(), long_.begin(), long_.end());
}

}  // namespace mhla
