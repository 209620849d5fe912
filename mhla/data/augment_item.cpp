#include "mhla/data/augment_item.h"

#include <algorithm>
#include <cmath>

#include "mhla/core/error.h"
#include "mhla/data/color.h"
#include "mhla/data/rand_augment.h"

namespace mhla {
namespace {

float channel_value(const std::vector<float>& values, int channel) {
  return values[values.size() == 1 ? 0 : static_cast<std::size_t>(channel)];
}

}  // namespace

ItemAugmenter::ItemAugmenter(Augment augment) : augment_(std::move(augment)) {
  for (int c = 0; c < augment_.channels; ++c) {
    auto& table = tables_.emplace_back();
    const double mean = channel_value(augment_.mean, c), deviation = channel_value(augment_.std, c);
    for (int v = 0; v < 256; ++v)
      table[static_cast<std::size_t>(v)] = static_cast<float>((v / 255.0 - mean) / deviation);
  }
}

Box random_crop(const Augment& augment, int height, int width, Philox& random) {
  const double area = static_cast<double>(height) * width;
  const double low = std::log(augment.crop_ratio[0]), high = std::log(augment.crop_ratio[1]);
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double part = area * random.uniform(augment.crop_area[0], augment.crop_area[1]);
    const double ratio = std::exp(random.uniform(low, high));
    const auto w = static_cast<int>(std::lround(std::sqrt(part * ratio)));
    const auto h = static_cast<int>(std::lround(std::sqrt(part / ratio)));
    if (w < 1 || h < 1 || w > width || h > height) continue;
    const auto top = static_cast<int>(random.below(height - h + 1));
    return {top, static_cast<int>(random.below(width - w + 1)), h, w};
  }
  const double ratio = static_cast<double>(width) / height;
  Box box{0, 0, height, width};
  if (ratio < augment.crop_ratio[0])
    box.height = std::clamp(static_cast<int>(std::lround(width / augment.crop_ratio[0])), 1, height);
  if (ratio > augment.crop_ratio[1])
    box.width = std::clamp(static_cast<int>(std::lround(height * augment.crop_ratio[1])), 1, width);
  box.top = (height - box.height) / 2;
  box.left = (width - box.width) / 2;
  return box;
}

void ItemAugmenter::fit(ItemScratch& scratch, Philox& random) const {
  const Image& image = scratch.image;
  const int height = augment_.height, width = augment_.width;
  Interpolation filter = augment_.interpolation;
  if (filter == Interpolation::kRandom)
    filter = random.chance(0.5) ? Interpolation::kBilinear : Interpolation::kBicubic;
  Box box{0, 0, image.height, image.width};
  const bool larger = image.height > height || image.width > width;
  switch (augment_.fit == Fit::kPadOrResize ? (larger ? Fit::kResize : Fit::kPad) : augment_.fit) {
    case Fit::kPad:
      if (larger)
        fail(image.height, " x ", image.width, " pixels do not fit ", height, " x ", width,
             " by padding; resize or crop");
      if (image.height == height && image.width == width) return;
      pad_image(image, height, width, scratch.other);
      std::swap(scratch.image, scratch.other);
      return;
    case Fit::kPadOrResize:
    case Fit::kResize: break;
    case Fit::kRandomCrop: box = random_crop(augment_, image.height, image.width, random); break;
    case Fit::kCenterCrop: {
      // Scaled so that it just covers height x width over crop_fraction, then the middle.
      const double cover = std::max(std::floor(height / augment_.crop_fraction) / image.height,
                                    std::floor(width / augment_.crop_fraction) / image.width);
      const int h = std::max(height, static_cast<int>(std::floor(image.height * cover + 1e-6)));
      const int w = std::max(width, static_cast<int>(std::floor(image.width * cover + 1e-6)));
      resize_image(image, box, h, w, filter, scratch.other, scratch.resample);
      crop_image(scratch.other,
                 {static_cast<int>(std::nearbyint((h - height) / 2.0)),
                  static_cast<int>(std::nearbyint((w - width) / 2.0)), height, width},
                 scratch.image);
      return;
    }
  }
  if (box.height == height && box.width == width && image.height == height && image.width == width) return;
  resize_image(image, box, height, width, filter, scratch.other, scratch.resample);
  std::swap(scratch.image, scratch.other);
}

void ItemAugmenter::jitter(Image& image, Philox& random) const {
  double factors[3];
  for (double& factor : factors)
    factor = random.uniform(std::max(0.0, 1.0 - augment_.color_jitter), 1.0 + augment_.color_jitter);
  int order[3] = {0, 1, 2};
  for (int left = 3; left > 1; --left) std::swap(order[left - 1], order[random.below(left)]);
  for (const int one : order) {
    if (one == 0) adjust_brightness(image, factors[0]);
    if (one == 1) adjust_contrast(image, factors[1]);
    if (one == 2) adjust_color(image, factors[2]);
  }
}

void ItemAugmenter::normalize(const Image& image, float* out) const {
  const auto count = static_cast<std::size_t>(image.height) * static_cast<std::size_t>(image.width);
  const auto step = static_cast<std::size_t>(image.channels);
  for (std::size_t c = 0; c < step; ++c) {
    const std::array<float, 256>& table = tables_[c];
    const std::uint8_t* from = image.pixels.data() + c;
    for (std::size_t i = 0; i < count; ++i) out[c * count + i] = table[from[i * step]];
  }
}

// One rectangle of 2 to 33 % of the image, sides at a ratio from 0.3 to 1 / 0.3, ten tries to fit it.
void ItemAugmenter::erase(Philox& random, float* out) const {
  if (!random.chance(augment_.erase)) return;
  const int height = augment_.height, width = augment_.width;
  const double limit = std::log(0.3);
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double area = random.uniform(0.02, 1.0 / 3.0) * height * width;
    const double ratio = std::exp(random.uniform(limit, -limit));
    const auto h = static_cast<int>(std::lround(std::sqrt(area * ratio)));
    const auto w = static_cast<int>(std::lround(std::sqrt(area / ratio)));
    if (h < 1 || w < 1 || h >= height || w >= width) continue;
    const auto top = static_cast<int>(random.below(height - h + 1));
    const auto left = static_cast<int>(random.below(width - w + 1));
    for (int c = 0; c < augment_.channels; ++c)
      for (int y = top; y < top + h; ++y) {
        float* row = out + (static_cast<std::ptrdiff_t>(c) * height + y) * width;
        random.normals(row + left, w);
      }
    return;
  }
}

void ItemAugmenter::augment_item(ItemScratch& scratch, const BatchDraw& batch, std::uint64_t seed, std::int64_t epoch,
                                 std::int64_t item, int copy, float* out) const {
  const std::int64_t key = item + (std::int64_t{copy} << 40);
  Philox random(seed, Philox::kItem, epoch, key);
  fit(scratch, random);
  Image& image = scratch.image;
  if (augment_.flip > 0.0 && random.chance(augment_.flip)) flip_image(image);
  if (augment_.rand_augment.layers > 0) {
    std::uint8_t fill[3] = {};
    for (int c = 0; c < image.channels; ++c)
      fill[c] = static_cast<std::uint8_t>(std::clamp(std::lround(255.0 * channel_value(augment_.mean, c)), 0L, 255L));
    rand_augment(augment_.rand_augment, augment_.interpolation, fill, random, scratch);
  }
  if (augment_.color_jitter > 0.0) jitter(image, random);
  if (batch.down != 0 || batch.right != 0) {
    shift_image(image, batch.down, batch.right, scratch.other);
    std::swap(scratch.image, scratch.other);
  }
  convert_channels(scratch.image, augment_.channels);
  normalize(scratch.image, out);
  if (augment_.erase > 0.0) {
    Philox noise(seed, Philox::kErase, epoch, key);
    erase(noise, out);
  }
}

}  // namespace mhla
