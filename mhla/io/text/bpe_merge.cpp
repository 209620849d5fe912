#include "mhla/io/text/bpe_merge.h"

#include <queue>

#include "mhla/core/error.h"

namespace mhla {

// An entry of the queue whose pair has changed since is stale and dropped.
void BpeMerger::merge_long(const PairTable& pairs, std::vector<std::uint32_t>& ids) {
  constexpr std::uint32_t kEnd = kNoMerge;
  if (ids.size() >= kEnd) fail("tokenizer: a piece of ", ids.size(), " bytes, expected less than 4 GiB");
  struct Entry {
    std::uint32_t rank, at, left, right, id;
    bool operator>(const Entry& other) const { return rank != other.rank ? rank > other.rank : at > other.at; }
  };
  const auto count = static_cast<std::uint32_t>(ids.size());
  next_.resize(count), before_.resize(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    next_[i] = i + 1 < count ? i + 1 : kEnd;
    before_[i] = i > 0 ? i - 1 : kEnd;
  }
  std::vector<Entry> entries;
  const auto entry_at = [&](std::uint32_t at, auto&& push) {
    if (at == kEnd || next_[at] == kEnd) return;
    const std::uint32_t left = ids[at], right = ids[next_[at]];
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
    if (ids[top.at] != top.left || right == kEnd || ids[right] != top.right) continue;
    ids[top.at] = top.id;
    ids[right] = kGone;
    next_[top.at] = next_[right];
    if (next_[right] != kEnd) before_[next_[right]] = top.at;
    const auto push = [&](const Entry& entry) { queue.push(entry); };
    entry_at(before_[top.at], push);
    entry_at(top.at, push);
  }
  std::size_t left = 0;
  for (std::uint32_t i = 0; i < count && i != kEnd; i = next_[i]) ids[left++] = ids[i];
  ids.resize(left);
}

}  // namespace mhla
