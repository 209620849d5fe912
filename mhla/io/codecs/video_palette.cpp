#include "mhla/io/codecs/video_palette.h"

#include <algorithm>
#include <limits>
#include <unordered_map>

namespace mhla {
namespace {

using Rgb = std::array<std::uint8_t, 3>;
constexpr std::size_t kColours = 256, kCells = 32768;

std::uint32_t packed(const std::uint8_t* rgb) {
  return static_cast<std::uint32_t>(rgb[0]) << 16 | static_cast<std::uint32_t>(rgb[1]) << 8 | rgb[2];
}

std::size_t cell_of(const std::uint8_t* rgb) {
  return static_cast<std::size_t>(rgb[0] >> 3) << 10 | static_cast<std::size_t>(rgb[1] >> 3) << 5 | rgb[2] >> 3;
}

// Whether the image has few colours; then it is done.
bool take_exact(const Image& image, Indexed& result) {
  std::unordered_map<std::uint32_t, std::uint8_t> known;
  for (std::size_t i = 0; i < result.pixels.size(); ++i) {
    const std::uint8_t* rgb = image.pixels.data() + 3 * i;
    const auto [found, is_new] = known.try_emplace(packed(rgb), static_cast<std::uint8_t>(known.size()));
    if (is_new) {
      if (known.size() > kColours) return false;
      result.palette.push_back({rgb[0], rgb[1], rgb[2]});
    }
    result.pixels[i] = found->second;
  }
  return true;
}

struct Cell {
  std::uint16_t place = 0;
  std::uint64_t count = 0;
  std::array<std::uint64_t, 3> sum{};
  [[nodiscard]] int level(int axis) const { return place >> (5 * (2 - axis)) & 31; }
};

struct Box {
  std::size_t first = 0, last = 0;  // of the cells
  std::uint64_t count = 0;
  int axis = 0, range = 0;  // the longest side
};

Box box_of(const std::vector<Cell>& cells, std::size_t first, std::size_t last) {
  Box box{first, last};
  for (int axis = 0; axis < 3; ++axis) {
    int low = 31, high = 0;
    for (std::size_t i = first; i < last; ++i)
      low = std::min(low, cells[i].level(axis)), high = std::max(high, cells[i].level(axis));
    if (high - low > box.range) box.range = high - low, box.axis = axis;
  }
  for (std::size_t i = first; i < last; ++i) box.count += cells[i].count;
  return box;
}

// Where the box falls into halves of its pixels, at least one cell each.
std::size_t cut_of(std::vector<Cell>& cells, const Box& box) {
  const auto begin = cells.begin();
  std::sort(begin + static_cast<std::ptrdiff_t>(box.first), begin + static_cast<std::ptrdiff_t>(box.last),
            [&](const Cell& a, const Cell& b) {
              const int one = a.level(box.axis), two = b.level(box.axis);
              return one != two ? one < two : a.place < b.place;
            });
  std::uint64_t seen = 0;
  for (std::size_t i = box.first; i + 1 < box.last; ++i)
    if ((seen += cells[i].count) * 2 >= box.count) return i + 1;
  return box.last - 1;
}

std::vector<Rgb> median_cut(std::vector<Cell>& cells) {
  std::vector<Box> boxes{box_of(cells, 0, cells.size())};
  while (boxes.size() < kColours) {
    const auto widest = std::max_element(boxes.begin(), boxes.end(), [](const Box& a, const Box& b) {
      const auto weight = [](const Box& box) { return box.count * static_cast<std::uint64_t>(box.range); };
      return weight(a) < weight(b);
    });
    if (widest->range == 0) break;
    const Box box = *widest;
    const std::size_t cut = cut_of(cells, box);
    *widest = box_of(cells, box.first, cut);
    boxes.push_back(box_of(cells, cut, box.last));
  }
  std::vector<Rgb> palette;
  for (const Box& box : boxes) {
    std::array<std::uint64_t, 3> sum{};
    for (std::size_t i = box.first; i < box.last; ++i)
      for (std::size_t axis = 0; axis < 3; ++axis) sum[axis] += cells[i].sum[axis];
    Rgb colour{};
    for (std::size_t axis = 0; axis < 3; ++axis)
      colour[axis] = static_cast<std::uint8_t>((sum[axis] + box.count / 2) / box.count);
    palette.push_back(colour);
  }
  return palette;
}

std::uint8_t nearest(const std::vector<Rgb>& palette, const Cell& cell) {
  std::uint8_t best = 0;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (std::size_t i = 0; i < palette.size(); ++i) {
    std::int64_t off = 0;
    for (std::size_t axis = 0; axis < 3; ++axis) {
      const auto mean = static_cast<std::int64_t>(cell.sum[axis] / cell.count);
      off += (mean - palette[i][axis]) * (mean - palette[i][axis]);
    }
    if (off < least) least = off, best = static_cast<std::uint8_t>(i);
  }
  return best;
}

}  // namespace

Indexed indexed(const Image& image) {
  Indexed result;
  result.pixels.resize(image.pixels.size() / 3);
  if (take_exact(image, result)) return result;
  std::vector<Cell> all(kCells), cells;
  for (std::size_t i = 0; i < result.pixels.size(); ++i) {
    const std::uint8_t* rgb = image.pixels.data() + 3 * i;
    Cell& cell = all[cell_of(rgb)];
    ++cell.count;
    for (std::size_t axis = 0; axis < 3; ++axis) cell.sum[axis] += rgb[axis];
  }
  for (std::size_t place = 0; place < kCells; ++place) {
    all[place].place = static_cast<std::uint16_t>(place);
    if (all[place].count > 0) cells.push_back(all[place]);
  }
  result.palette = median_cut(cells);
  std::vector<std::uint8_t> index(kCells);
  for (const Cell& cell : cells) index[cell.place] = nearest(result.palette, cell);
  for (std::size_t i = 0; i < result.pixels.size(); ++i) result.pixels[i] = index[cell_of(image.pixels.data() + 3 * i)];
  return result;
}

}  // namespace mhla
