// Features made from a seed.
#pragma once

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "mhla/diffusion/metrics/metrics.h"

namespace mhla {

struct MadeFeatures {
  std::int64_t images, dim;
  std::vector<float> values;
  MadeFeatures(std::int64_t images_, std::int64_t dim_, unsigned seed, double shift = 0.0)
      : images(images_), dim(dim_) {
    std::mt19937 generator(seed);
    std::normal_distribution<double> normal;
    for (std::int64_t i = 0; i < images * dim; ++i)
      values.push_back(static_cast<float>(normal(generator) * (1.0 + 0.1 * static_cast<double>(i % dim)) + shift));
  }
  [[nodiscard]] ConstView view() const { return {values.data(), DType::kF32, {images, dim}}; }
};

}  // namespace mhla
