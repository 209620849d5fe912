// How the summary of one chunk and kv head lies in memory: S as panels of columns, then the normaliser z. The width of
// a panel follows the vectors of the instruction set, so a saved state names its lanes and is rearranged on load.
#pragma once

#include <cstdint>

namespace mhla {

// Tokens of a chunk that join its summary in one chain of multiply-adds on CPU vectors. Chains are added up, so that
// rounding does not grow with the chunk.
inline constexpr std::int64_t kChainTokens = 64;

struct SummaryLayout {
  std::int64_t D = 0, E = 0;
  std::int64_t lanes = 0;   // floats per vector; 0: plain rows [D][E]
  bool normalized = false;  // z is kept

  [[nodiscard]] constexpr std::int64_t columns() const {  // E with the padding of the last panel
    if (lanes == 0) return E;
    const std::int64_t rest = E % (2 * lanes), half = lanes > 1 ? lanes / 2 : 1;
    if (rest > lanes + half) return E - rest + 2 * lanes;
    return E - rest + up(rest, rest > half && rest <= lanes ? lanes : half);
  }
  [[nodiscard]] constexpr std::int64_t z_offset() const { return up(D * columns(), step()); }
  [[nodiscard]] constexpr std::int64_t z_size() const { return normalized ? up(D, step()) : 0; }
  [[nodiscard]] constexpr std::int64_t size() const { return z_offset() + z_size(); }  // columns that are mixed
  // Distance of two summaries: an odd number of cache lines, so that chunks do not meet in one set of the caches.
  [[nodiscard]] constexpr std::int64_t stride() const { return (up(size(), 16) / 16 | 1) * 16; }

  // Where S[d][e] lies.
  [[nodiscard]] constexpr std::int64_t index(std::int64_t d, std::int64_t e) const {
    if (lanes == 0) return d * E + e;
    const std::int64_t half = lanes > 1 ? lanes / 2 : 1;
    std::int64_t first = e / (2 * lanes) * (2 * lanes), width = 2 * lanes;
    if (const std::int64_t rest = E - first; rest < 2 * lanes && rest <= lanes + half) {
      width = rest > half ? lanes : half;
      if (rest > half && e - first >= lanes) first += lanes, width = half;
    }
    return first * D + d * width + (e - first);
  }

 private:
  static constexpr std::int64_t up(std::int64_t value, std::int64_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
  }
  [[nodiscard]] constexpr std::int64_t step() const { return lanes == 0 ? 1 : lanes; }
};

// With `extend`, blocks at distance L - 1 and more share a coefficient and are kept as one sum. The oldest block that
// must stay apart from it while chunk i is open and `back` chunks may be taken back: rows before L weigh every block.
constexpr std::int64_t oldest_block(std::int64_t i, std::int64_t L, std::int64_t back) {
  if (i - back < L) return 0;
  return i - back - (L > 2 ? L - 2 : 0);
}

// Blocks that lie apart at most, the open one included.
constexpr std::int64_t most_blocks(std::int64_t L, std::int64_t back) { return L + back; }

}  // namespace mhla
