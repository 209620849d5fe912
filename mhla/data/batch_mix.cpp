// What a batch draws for all its images: a shift, and mixup or cutmix with one weight, as timm's batch mode does.
//   mixup:  x_i = w x_i + (1 - w) x_j,  j = B - 1 - i,  w from Beta(alpha, alpha)
//   cutmix: a box of share 1 - w of x_i becomes that of x_j; w is corrected to the box as cut at the border
#include <algorithm>
#include <cmath>

#include "mhla/data/augment_item.h"

namespace mhla {
namespace {

Box draw_cut(double weight, int height, int width, Philox& random) {
  const double side = std::sqrt(1.0 - weight);
  const int half_h = static_cast<int>(height * side) / 2, half_w = static_cast<int>(width * side) / 2;
  const auto y = static_cast<int>(random.below(height));
  const auto x = static_cast<int>(random.below(width));
  Box box;
  box.top = std::max(0, y - half_h);
  box.left = std::max(0, x - half_w);
  box.height = std::min(height, y + half_h) - box.top;
  box.width = std::min(width, x + half_w) - box.left;
  return box;
}

}  // namespace

BatchDraw draw_batch(const Augment& augment, std::uint64_t seed, std::int64_t epoch, std::int64_t position) {
  Philox random(seed, Philox::kBatch, epoch, position);
  BatchDraw draw;
  if (augment.shift > 0) {
    draw.down = static_cast<int>(random.below(2 * augment.shift + 1)) - augment.shift;
    draw.right = static_cast<int>(random.below(2 * augment.shift + 1)) - augment.shift;
  }
  const bool mixup = augment.mixup > 0.0, cutmix = augment.cutmix > 0.0;
  if ((!mixup && !cutmix) || !random.chance(augment.mix_probability)) return draw;
  const bool cut = cutmix && (!mixup || random.chance(augment.switch_to_cutmix));
  draw.weight = random.beta(cut ? augment.cutmix : augment.mixup);
  draw.mix = cut ? BatchDraw::Mix::kCutmix : BatchDraw::Mix::kMixup;
  if (!cut) return draw;
  draw.cut = draw_cut(draw.weight, augment.height, augment.width, random);
  draw.weight = 1.0 - static_cast<double>(draw.cut.height) * draw.cut.width /
                          (static_cast<double>(augment.height) * augment.width);
  return draw;
}

void mix_images(const BatchDraw& draw, std::int64_t count, int channels, int height, int width, float* images) {
  if (draw.mix == BatchDraw::Mix::kNone) return;
  const std::int64_t size = std::int64_t{channels} * height * width;
  const auto own = static_cast<float>(draw.weight), other = static_cast<float>(1.0 - draw.weight);
  for (std::int64_t i = 0; i < count - 1 - i; ++i) {
    float* a = images + i * size;
    float* b = images + (count - 1 - i) * size;
    if (draw.mix == BatchDraw::Mix::kMixup) {
      for (std::int64_t p = 0; p < size; ++p) {
        const float x = a[p], y = b[p];
        a[p] = own * x + other * y;
        b[p] = own * y + other * x;
      }
      continue;
    }
    for (int c = 0; c < channels; ++c)
      for (int y = draw.cut.top; y < draw.cut.top + draw.cut.height; ++y) {
        const std::ptrdiff_t row = (static_cast<std::ptrdiff_t>(c) * height + y) * width + draw.cut.left;
        std::swap_ranges(a + row, a + row + draw.cut.width, b + row);
      }
  }
}

}  // namespace mhla
