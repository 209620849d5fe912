// Counts of pairs are kept up to date: joining a pair touches only the pieces that hold it. The queue may hold old
// counts; one that is popped and no longer true is put back with the true one.
#include "mhla/io/text/bpe_train.h"

#include <algorithm>
#include <queue>
#include <unordered_set>

#include "mhla/core/error.h"

namespace mhla {
namespace {

using Ids = std::vector<std::uint32_t>;

struct Piece {
  Ids ids;
  std::int64_t count = 0;
};

std::uint64_t pair_key(std::uint32_t left, std::uint32_t right) { return std::uint64_t{left} << 32 | right; }

struct Candidate {
  std::int64_t count;
  std::uint64_t pair;
  bool operator<(const Candidate& other) const {  // the top of the queue is the largest
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

class Merger {
 public:
  explicit Merger(std::vector<Piece> pieces) : pieces_(std::move(pieces)) {
    for (std::uint32_t p = 0; p < pieces_.size(); ++p) {
      const Ids& ids = pieces_[p].ids;
      for (std::size_t i = 0; i + 1 < ids.size(); ++i) more(ids[i], ids[i + 1], p);
    }
    queue_grown();
  }

  // Takes out the best pair that comes at least `least` times; false when there is none.
  bool take(std::int64_t least, std::uint32_t& left, std::uint32_t& right) {
    while (!queue_.empty()) {
      const Candidate top = queue_.top();
      queue_.pop();
      const auto known = pairs_.find(top.pair);
      if (known == pairs_.end()) continue;  // taken before
      if (known->second.count != top.count) {
        if (known->second.count < top.count) queue_.push({known->second.count, top.pair});
        continue;
      }
      if (top.count < least) return false;
      left = static_cast<std::uint32_t>(top.pair >> 32), right = static_cast<std::uint32_t>(top.pair);
      places_ = std::move(known->second.pieces);
      pairs_.erase(known);
      return true;
    }
    return false;
  }

  // Joins the pair that was taken, in every piece, from the left.
  void join(std::uint32_t left, std::uint32_t right, std::uint32_t id) {
    for (const std::uint32_t p : places_) {
      Ids& ids = pieces_[p].ids;
      std::size_t end = 0;
      for (std::size_t i = 0; i < ids.size(); ++i) {
        if (i + 1 == ids.size() || ids[i] != left || ids[i + 1] != right) {
          ids[end++] = ids[i];
          continue;
        }
        if (end > 0) less(ids[end - 1], left, p), more(ids[end - 1], id, p);
        if (i + 2 < ids.size()) less(right, ids[i + 2], p), more(id, ids[i + 2], p);
        ids[end++] = id;
        ++i;
      }
      ids.resize(end);
    }
    queue_grown();
  }

 private:
  struct Known {
    std::int64_t count = 0;
    Ids pieces;  // that hold the pair, or held it once
  };
  void less(std::uint32_t left, std::uint32_t right, std::uint32_t p) {
    const auto known = pairs_.find(pair_key(left, right));
    if (known != pairs_.end()) known->second.count -= pieces_[p].count;  // else it is the one being joined
  }
  void more(std::uint32_t left, std::uint32_t right, std::uint32_t p) {
    const std::uint64_t pair = pair_key(left, right);
    Known& known = pairs_[pair];
    known.count += pieces_[p].count;
    if (!known.pieces.empty() && known.pieces.back() == p) return;
    known.pieces.push_back(p);
    grown_.push_back(pair);
  }
  void queue_grown() {
    std::sort(grown_.begin(), grown_.end());
    grown_.erase(std::unique(grown_.begin(), grown_.end()), grown_.end());
    for (const std::uint64_t pair : grown_)
      if (const std::int64_t count = pairs_.at(pair).count; count > 0) queue_.push({count, pair});
    grown_.clear();
  }

  std::vector<Piece> pieces_;
  std::unordered_map<std::uint64_t, Known> pairs_;
  std::priority_queue<Candidate> queue_;
  std::vector<std::uint64_t> grown_;  // pairs whose count may be above the one in the queue
  Ids places_;                        // pieces of the pair that was taken
};

}  // namespace

BpeTrainer::BpeTrainer(BpeTrainOptions options) : options_(std::move(options)) {
  const auto least = static_cast<std::int64_t>(256 + options_.specials.size());
  if (options_.vocab_size < least || options_.vocab_size > kMaxVocab)
    fail("bpe training: vocab_size is ", options_.vocab_size, ", expected ", least, " (bytes and special tokens) to ",
         kMaxVocab);
  if (options_.min_count < 1) fail("bpe training: min_count is ", options_.min_count, ", expected at least 1");
}

void BpeTrainer::add(std::string_view document) {
  while (!document.empty()) {
    const std::size_t length = piece_length(options_.rule, document);
    key_.assign(document.substr(0, length));
    ++pieces_[key_];
    document.remove_prefix(length);
  }
}

std::shared_ptr<const BpeTokenizer> BpeTrainer::train() const {
  BpeTable table;
  table.rule = options_.rule;
  for (int byte = 0; byte < 256; ++byte) table.tokens.emplace_back(1, static_cast<char>(byte));
  for (const std::string& text : options_.specials) {
    table.specials.push_back({static_cast<std::uint32_t>(table.tokens.size()), text});
    table.tokens.push_back(text);
  }
  std::vector<Piece> pieces;
  for (const auto& [text, count] : pieces_) {
    Piece& piece = pieces.emplace_back();
    piece.count = count;
    for (const char c : text) piece.ids.push_back(static_cast<unsigned char>(c));
  }
  Merger merger(std::move(pieces));
  std::unordered_set<std::string> known(table.tokens.begin(), table.tokens.end());
  std::uint32_t left = 0, right = 0;
  while (static_cast<std::int64_t>(table.tokens.size()) < options_.vocab_size &&
         merger.take(options_.min_count, left, right)) {
    std::string joined = table.tokens[left] + table.tokens[right];
    // "a" "bc" behind "ab" "c": a token has one merge, and without this pair it stays that way.
    if (!known.insert(joined).second) continue;
    merger.join(left, right, static_cast<std::uint32_t>(table.tokens.size()));
    table.tokens.push_back(std::move(joined));
    table.merges.emplace_back(left, right);
  }
  return std::make_shared<BpeTokenizer>(std::move(table), "bpe training");
}

}  // namespace mhla
