// The recorded metrics of tests/golden/image, and features made from a seed.
#pragma once

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "mhla/diffusion/metrics/metrics.h"
#include "mhla/io/safetensors.h"

namespace mhla {

inline const Safetensors& golden_metrics() {
  static const Safetensors file = Safetensors::read(MHLA_SOURCE_DIR "/tests/golden/image/metrics.safetensors");
  return file;
}

// The tensor of a case; more than two axes are flattened after the first.
inline ConstView golden_rows(const std::string& name) {
  const ConstView view = golden_metrics().view(name);
  return {view.data, view.dtype, {view.shape[0], view.numel() / view.shape[0]}};
}

inline double golden_value(const std::string& name) { return *data_as<double>(golden_metrics().view(name)); }

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
