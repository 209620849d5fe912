#include "mhla/io/text/bpe_encoder.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <queue>

#include "mhla/core/error.h"
#include "mhla/io/text/bpe_index.h"

namespace mhla {
namespace {

constexpr std::size_t kShort = 64;  // bytes; up to here looking at all pairs for every merge beats a queue

}  // namespace

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
  if (words_.empty()) words_.resize(kWords);
  while (!text.empty()) {
    const std::string_view piece = text.substr(0, piece_length(table.rule, text));
    text.remove_prefix(piece.size());
    if (piece.size() > kWordBytes) {
      encode_piece(piece, ids);
      continue;
    }
    Word& word = words_[hash_bytes(piece) & (kWords - 1)];
    if (word.length != piece.size() || std::memcmp(word.text, piece.data(), piece.size()) != 0) {
      const std::size_t begin = ids.size();
      encode_piece(piece, ids);
      const std::size_t count = ids.size() - begin;
      if (count > kWordTokens) continue;
      std::copy(ids.begin() + static_cast<std::ptrdiff_t>(begin), ids.end(), word.ids);
      std::memcpy(word.text, piece.data(), piece.size());
      word.length = static_cast<std::uint8_t>(piece.size());
      word.count = static_cast<std::uint8_t>(count);
      continue;
    }
    ids.insert(ids.end(), word.ids, word.ids + word.count);
  }
}

void BpeEncoder::encode_piece(std::string_view piece, std::vector<std::uint32_t>& ids) {
  if (tokenizer_.table_.ignore_merges) {
    const auto found = tokenizer_.index_->ids.find(piece);
    if (found != tokenizer_.index_->ids.end()) return ids.push_back(found->second);
  }
  if (piece.size() <= kShort)
    merge_short(piece, ids);
  else
    merge_long(piece, ids);
}

void BpeEncoder::merge_short(std::string_view piece, std::vector<std::uint32_t>& ids) const {
  const PairTable& pairs = tokenizer_.index_->pairs;
  std::array<std::uint32_t, kShort> id;
  std::array<Merge, kShort> merge;  // of id[i] and id[i + 1]
  std::size_t count = piece.size();
  for (std::size_t i = 0; i < count; ++i) id[i] = tokenizer_.byte_ids_[static_cast<unsigned char>(piece[i])];
  for (std::size_t i = 0; i + 1 < count; ++i) merge[i] = pairs.find(id[i], id[i + 1]);
  while (count > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < count; ++i)
      if (merge[i].rank < merge[best].rank) best = i;
    if (merge[best].rank == kNoMerge) break;
    id[best] = merge[best].id;
    --count;
    for (std::size_t i = best + 1; i < count; ++i) {
      id[i] = id[i + 1];
      merge[i - 1] = merge[i];
    }
    if (best + 1 < count) merge[best] = pairs.find(id[best], id[best + 1]);
    if (best > 0) merge[best - 1] = pairs.find(id[best - 1], id[best]);
  }
  ids.insert(ids.end(), id.begin(), id.begin() + static_cast<std::ptrdiff_t>(count));
}

// The same by a queue of pairs over a linked list: n log n for a piece of any length. An entry of the queue whose pair
// has changed since is stale and dropped.
void BpeEncoder::merge_long(std::string_view piece, std::vector<std::uint32_t>& ids) {
  constexpr std::uint32_t kEnd = kNoMerge;
  if (piece.size() >= kEnd) fail("tokenizer: a piece of ", piece.size(), " bytes, expected less than 4 GiB");
  struct Entry {
    std::uint32_t rank, at, left, right, id;
    bool operator>(const Entry& other) const { return rank != other.rank ? rank > other.rank : at > other.at; }
  };
  const PairTable& pairs = tokenizer_.index_->pairs;
  const auto count = static_cast<std::uint32_t>(piece.size());
  next_.resize(count), before_.resize(count), id_.resize(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    id_[i] = tokenizer_.byte_ids_[static_cast<unsigned char>(piece[i])];
    next_[i] = i + 1 < count ? i + 1 : kEnd;
    before_[i] = i > 0 ? i - 1 : kEnd;
  }
  std::vector<Entry> entries;
  const auto entry_at = [&](std::uint32_t at, auto&& push) {
    if (at == kEnd || next_[at] == kEnd) return;
    const std::uint32_t left = id_[at], right = id_[next_[at]];
    const Merge merge = pairs.find(left, right);
    if (merge.rank != kNoMerge) push(Entry{merge.rank, at, left, right, merge.id});
  };
  for (std::uint32_t i = 0; i < count; ++i) entry_at(i, [&](const Entry& entry) { entries.push_back(entry); });
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue(std::greater<>{}, std::move(entries));
  constexpr std::uint32_t kGone = kNoMerge;  // id of what was joined to its left neighbour
  while (!queue.empty()) {
    const Entry top = queue.top();
    queue.pop();
    const std::uint32_t right = next_[top.at];
    if (id_[top.at] != top.left || right == kEnd || id_[right] != top.right) continue;
    id_[top.at] = top.id;
    id_[right] = kGone;
    next_[top.at] = next_[right];
    if (next_[right] != kEnd) before_[next_[right]] = top.at;
    const auto push = [&](const Entry& entry) { queue.push(entry); };
    entry_at(before_[top.at], push);
    entry_at(top.at, push);
  }
  for (std::uint32_t i = 0; i != kEnd; i = next_[i]) ids.push_back(id_[i]);
}

}  // namespace mhla
