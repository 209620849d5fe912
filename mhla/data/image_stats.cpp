#include "mhla/data/image_stats.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>

#include "mhla/core/error.h"

namespace mhla {
namespace {

constexpr std::int64_t kRun = 64;  // images a task decodes

// Squares of 8 bits in 64: enough for 2.8e14 pixels, a thousand times the largest sets.
struct Sums {
  std::array<std::uint64_t, 3> sum{}, squares{};
  std::int64_t pixels = 0;
  int min_height = 0, max_height = 0, min_width = 0, max_width = 0;
  std::vector<std::pair<std::int64_t, std::string>> damage;
};

void add_image(Sums& sums, const Image& image) {
  const auto step = static_cast<std::size_t>(image.channels);
  for (std::size_t c = 0; c < step; ++c) {
    std::uint64_t sum = 0, squares = 0;
    for (std::size_t i = c; i < image.pixels.size(); i += step) {
      const std::uint64_t value = image.pixels[i];
      sum += value;
      squares += value * value;
    }
    sums.sum[c] += sum;
    sums.squares[c] += squares;
  }
  const bool first = sums.pixels == 0;
  sums.pixels += std::int64_t{image.height} * image.width;
  sums.min_height = first ? image.height : std::min(sums.min_height, image.height);
  sums.max_height = first ? image.height : std::max(sums.max_height, image.height);
  sums.min_width = first ? image.width : std::min(sums.min_width, image.width);
  sums.max_width = first ? image.width : std::max(sums.max_width, image.width);
}

void merge(Sums& into, Sums&& from) {
  for (std::size_t c = 0; c < 3; ++c) {
    into.sum[c] += from.sum[c];
    into.squares[c] += from.squares[c];
  }
  into.damage.insert(into.damage.end(), from.damage.begin(), from.damage.end());
  if (from.pixels == 0) return;
  const bool first = into.pixels == 0;
  into.pixels += from.pixels;
  into.min_height = first ? from.min_height : std::min(into.min_height, from.min_height);
  into.max_height = first ? from.max_height : std::max(into.max_height, from.max_height);
  into.min_width = first ? from.min_width : std::min(into.min_width, from.min_width);
  into.max_width = first ? from.max_width : std::max(into.max_width, from.max_width);
}

}  // namespace

ImageStats image_stats(const ImageSet& set, std::int64_t count, Executor& executor,
                       const std::function<void(std::int64_t)>& progress, std::size_t max_named) {
  if (count < 0) fail("image_stats: count is ", count, ", expected 0 for all, or more");
  const std::int64_t size = set.size();
  const std::int64_t looked_at = count == 0 ? size : std::min(count, size);
  Sums total;
  std::int64_t done = 0;
  std::mutex mutex;
  executor.run((looked_at + kRun - 1) / kRun, [&](std::int64_t task, int /*worker*/) {
    Sums sums;
    Image image;
    const std::int64_t end = std::min(looked_at, (task + 1) * kRun);
    for (std::int64_t i = task * kRun; i < end; ++i) {
      const std::int64_t item = looked_at == size ? i : i * size / looked_at;
      try {
        set.decode(item, image);
        add_image(sums, image);
      } catch (const Error& error) {
        sums.damage.emplace_back(item, error.what());
      }
    }
    const std::lock_guard lock(mutex);
    merge(total, std::move(sums));
    done += end - task * kRun;
    if (progress) progress(done);
  });
  ImageStats stats;
  stats.looked_at = looked_at;
  stats.pixels = total.pixels;
  stats.per_class.assign(static_cast<std::size_t>(set.classes()), 0);
  for (std::int64_t item = 0; item < size; ++item) ++stats.per_class[static_cast<std::size_t>(set.label(item))];
  stats.min_height = total.min_height, stats.max_height = total.max_height;
  stats.min_width = total.min_width, stats.max_width = total.max_width;
  for (std::size_t c = 0; c < static_cast<std::size_t>(set.channels()) && total.pixels > 0; ++c) {
    const auto pixels = static_cast<double>(total.pixels);
    const double mean = static_cast<double>(total.sum[c]) / pixels;
    const double square = static_cast<double>(total.squares[c]) / pixels;
    stats.mean.push_back(mean / 255.0);
    stats.std.push_back(std::sqrt(std::max(0.0, square - mean * mean)) / 255.0);
  }
  std::sort(total.damage.begin(), total.damage.end());  // tasks end in any order
  stats.damaged = static_cast<std::int64_t>(total.damage.size());
  for (std::size_t i = 0; i < total.damage.size() && i < max_named; ++i) stats.damage.push_back(total.damage[i].second);
  return stats;
}

}  // namespace mhla
