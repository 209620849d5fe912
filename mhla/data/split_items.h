// Which items of a labelled set belong to a part of it: the same share of every class, chosen by a seed. For sets of
// images (subset(), hold_out()) and of latents alike.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace mhla {

// `count` of the items 0, 1, ..., ascending. Labels are in [0, classes).
std::vector<std::int64_t> subset_items(const std::vector<int>& labels, int classes, std::int64_t count,
                                       std::uint64_t seed);
// The items that stay, and `fraction` of every class, both ascending; either may be empty.
std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>> hold_out_items(const std::vector<int>& labels,
                                                                               int classes, double fraction,
                                                                               std::uint64_t seed);

}  // namespace mhla
