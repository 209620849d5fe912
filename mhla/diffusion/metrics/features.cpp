#include "mhla/diffusion/metrics/features.h"

#include <cmath>

#include "mhla/core/error.h"

namespace mhla {

void check_features(const ConstView& features, const char* entry, const std::string& name) {
  if (features.rank != 2) fail(entry, ": ", name, " has shape ", shape_text(features), ", expected [images, features]");
  if (!is_float(features.dtype))
    fail(entry, ": ", name, " has dtype ", name_of(features.dtype), ", expected a float type");
  if (features.device != kCpu) fail(entry, ": ", name, " is on cuda:", features.device, ", expected host memory");
  if (features.shape[1] < 1 || features.shape[1] > kMaxFeatureSize)
    fail(entry, ": ", name, " has ", features.shape[1], " features, expected 1 to ", kMaxFeatureSize);
  if (features.numel() > 0 && features.data == nullptr)
    fail(entry, ": ", name, " of shape ", shape_text(features), " has null data, expected memory");
}

void check_enough(std::int64_t images, std::int64_t least, const char* entry, const std::string& name) {
  if (images < least)
    fail(entry, ": ", name, images == 1 ? " has 1 image" : str(" has ", images, " images"), ", expected at least ",
         least);
}

void check_same_size(std::int64_t samples, std::int64_t reference, const char* entry) {
  if (samples != reference)
    fail(entry, ": the samples have ", samples, " features and the reference ", reference,
         ", expected features of the same network and layer");
}

void check_sets(const ConstView& samples, const ConstView& reference, std::int64_t least, const char* entry) {
  check_features(samples, entry, "samples");
  check_features(reference, entry, "reference");
  check_same_size(samples.shape[1], reference.shape[1], entry);
  check_enough(samples.shape[0], least, entry, "samples");
  check_enough(reference.shape[0], least, entry, "reference");
}

void widen_rows(const ConstView& features, std::int64_t first, std::int64_t count, double* out, const char* entry,
                const std::string& name) {
  const std::int64_t d = features.shape[1];
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t start = (first + i) * features.stride[0];
    double* row = out + i * d;
    if (features.dtype == DType::kF32 && features.stride[1] == 1) {
      const float* from = data_as<float>(features) + start;
      for (std::int64_t j = 0; j < d; ++j) row[j] = from[j];
    } else {
      for (std::int64_t j = 0; j < d; ++j)
        row[j] = load_f64(features.data, features.dtype, start + j * features.stride[1]);
    }
    for (std::int64_t j = 0; j < d; ++j) {
      if (!std::isfinite(row[j]))
        fail(entry, ": ", name, "[", first + i, ", ", j, "] is ", row[j], ", expected finite features");
    }
  }
}

}  // namespace mhla
