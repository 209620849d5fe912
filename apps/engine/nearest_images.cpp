#include "apps/engine/nearest_images.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "mhla/core/error.h"
#include "mhla/data/adm_crop.h"
#include "mhla/data/image_output.h"
#include "mhla/diffusion/metrics/neighbours.h"
#include "mhla/io/file.h"

namespace mhla::apps {
namespace {

constexpr std::size_t kClosestRows = 10, kSheetPairs = 32;
constexpr int kPairsInARow = 4;
constexpr double kNearShare = 0.01;

std::vector<double> distances_of(const std::vector<Nearest>& nearest) {
  std::vector<double> distances;
  for (const Nearest& one : nearest) distances.push_back(std::sqrt(one.squared_distance));
  return distances;
}

// The value below which `share` of them lie.
double quantile(std::vector<double> values, double share) {
  const auto at = static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[static_cast<std::size_t>(at)];
}

// Sample and training image side by side, the closest pair first.
void write_sheet(const NearestSets& sets, const std::vector<Nearest>& nearest, const std::vector<std::size_t>& order) {
  std::vector<Image> images;
  for (std::size_t i = 0; i < std::min(order.size(), kSheetPairs); ++i) {
    images.push_back(sets.samples.image(static_cast<std::int64_t>(order[i])));
    images.push_back(sets.training.image(nearest[order[i]].index));
  }
  const auto same = [&](const Image& image) {
    return image.height == images[0].height && image.width == images[0].width;
  };
  if (!std::all_of(images.begin(), images.end(), same)) {  // of one size for the sheet only
    const int side = std::min(images[0].height, images[0].width);
    for (Image& image : images) image = adm_crop(image, side);
  }
  write_file(sets.sheet, encode_png(image_grid(images, 2 * kPairsInARow)));
}

}  // namespace

void tell_nearest(const NearestSets& sets, train::Observer& observer) {
  const ConstView training = sets.of_training.rows("nearest");
  const std::vector<Nearest> nearest = nearest_rows(sets.of_samples.rows("nearest"), training),
                             held_out = nearest_rows(sets.of_held_out.rows("nearest"), training);
  const std::vector<double> distances = distances_of(nearest), others = distances_of(held_out);
  const double usual = quantile(others, 0.5), near = quantile(others, kNearShare);
  if (!(usual > 0.0))
    fail(kEvalImagesCommand, ": half of ", sets.of_held_out.label(), " is in ", sets.of_training.label(),
         " too, expected images that were not trained on");
  const auto copies = std::count_if(distances.begin(), distances.end(), [&](double d) { return d < near; });
  observer.row(JsonValue()
                   .set("kind", "metric")
                   .set("metric", "nearest")
                   .set("value", quantile(distances, 0.5) / usual)
                   .set("copies", static_cast<double>(copies) / static_cast<double>(distances.size()))
                   .set("images", sets.of_samples.images())
                   .set("features", sets.of_samples.network())
                   .set("reference", sets.of_training.label())
                   .set("reference_images", sets.of_training.images())
                   .set("held_out", sets.of_held_out.label())
                   .set("held_out_images", sets.of_held_out.images()));
  std::vector<std::size_t> order(distances.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return distances[a] < distances[b]; });
  for (std::size_t i = 0; i < std::min(order.size(), kClosestRows); ++i) {
    const std::size_t at = order[i];
    observer.row(JsonValue()
                     .set("kind", "nearest")
                     .set("sample", sets.samples.name(static_cast<std::int64_t>(at)))
                     .set("training", sets.training.name(nearest[at].index))
                     .set("distance", distances[at])
                     .set("ratio", distances[at] / usual));
  }
  if (sets.sheet.empty()) return;
  write_sheet(sets, nearest, order);
  observer.row(JsonValue().set("kind", "sheet").set("path", sets.sheet));
}

}  // namespace mhla::apps
