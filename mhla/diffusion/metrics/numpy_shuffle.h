// The order that numpy's RandomState(seed).permutation(n) gives, for metrics whose published code draws subsets with
// it: MT19937, and Fisher-Yates from the end with indices drawn by masking and rejection. choice(n, k, replace=False)
// is its first k.
#pragma once

#include <cstdint>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

namespace mhla {

class NumpyShuffle {
 public:
  explicit NumpyShuffle(std::uint32_t seed) : generator_(seed) {}

  std::vector<std::int64_t> permutation(std::int64_t count) {
    std::vector<std::int64_t> order(static_cast<std::size_t>(count));
    std::iota(order.begin(), order.end(), std::int64_t{0});
    for (std::size_t i = order.size(); i-- > 1;) std::swap(order[i], order[up_to(static_cast<std::uint32_t>(i))]);
    return order;
  }

 private:
  std::uint32_t up_to(std::uint32_t most) {  // 0 to most
    std::uint32_t mask = most;
    for (int shift = 1; shift < 32; shift *= 2) mask |= mask >> shift;
    for (;;) {
      const auto value = static_cast<std::uint32_t>(generator_()) & mask;
      if (value <= most) return value;
    }
  }

  std::mt19937 generator_;
};

}  // namespace mhla
