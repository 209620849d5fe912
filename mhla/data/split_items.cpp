#include "mhla/data/split_items.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "mhla/data/philox.h"

namespace mhla {
namespace {

// The items of every class, each class in a random order.
std::vector<std::vector<std::int64_t>> shuffled_classes(const std::vector<int>& labels, int count, std::uint64_t seed) {
  std::vector<std::vector<std::int64_t>> classes(static_cast<std::size_t>(count));
  for (std::size_t item = 0; item < labels.size(); ++item)
    classes[static_cast<std::size_t>(labels[item])].push_back(static_cast<std::int64_t>(item));
  for (std::size_t c = 0; c < classes.size(); ++c) {
    Philox random(seed, Philox::kSubset, 0, static_cast<std::int64_t>(c));
    for (std::size_t left = classes[c].size(); left > 1; --left)
      std::swap(classes[c][left - 1],
                classes[c][static_cast<std::size_t>(random.below(static_cast<std::int64_t>(left)))]);
  }
  return classes;
}

// How many of each class: its share rounded down, the rest to those that lost most by that, lower classes first.
std::vector<std::int64_t> shares(const std::vector<std::vector<std::int64_t>>& classes, std::int64_t size,
                                 std::int64_t count) {
  std::vector<std::int64_t> share, lost;
  std::int64_t rest = count;
  for (const auto& items : classes) {
    const auto of_class = static_cast<std::int64_t>(items.size());
    share.push_back(of_class * count / size);
    lost.push_back(of_class * count % size);
    rest -= share.back();
  }
  std::vector<std::size_t> by_loss(classes.size());
  std::iota(by_loss.begin(), by_loss.end(), std::size_t{0});
  std::stable_sort(by_loss.begin(), by_loss.end(), [&](std::size_t a, std::size_t b) { return lost[a] > lost[b]; });
  for (std::size_t i = 0; rest > 0; ++i, --rest) ++share[by_loss[i]];
  return share;
}

}  // namespace

std::vector<std::int64_t> subset_items(const std::vector<int>& labels, int classes, std::int64_t count,
                                       std::uint64_t seed) {
  const auto by_class = shuffled_classes(labels, classes, seed);
  const std::vector<std::int64_t> share = shares(by_class, static_cast<std::int64_t>(labels.size()), count);
  std::vector<std::int64_t> items;
  for (std::size_t c = 0; c < by_class.size(); ++c)
    items.insert(items.end(), by_class[c].begin(), by_class[c].begin() + share[c]);
  std::sort(items.begin(), items.end());
  return items;
}

std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>> hold_out_items(const std::vector<int>& labels,
                                                                               int classes, double fraction,
                                                                               std::uint64_t seed) {
  std::vector<std::int64_t> kept, held;
  for (const auto& items : shuffled_classes(labels, classes, seed)) {
    const auto cut = std::lround(fraction * static_cast<double>(items.size()));
    held.insert(held.end(), items.begin(), items.begin() + cut);
    kept.insert(kept.end(), items.begin() + cut, items.end());
  }
  std::sort(kept.begin(), kept.end());
  std::sort(held.begin(), held.end());
  return {kept, held};
}

}  // namespace mhla
