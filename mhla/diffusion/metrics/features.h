// Features of images: a matrix with a row for each image, in any float type. Everything in this room reads them through
// these functions, in blocks of f64, so that memory stays bounded and a NaN never reaches a result.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mhla/core/view.h"

namespace mhla {

inline constexpr std::int64_t kMaxFeatureSize = 1 << 14;  // a covariance of 2 GiB

// Refuses what is not [N, d] of floats in host memory, d from 1 to kMaxFeatureSize.
void check_features(const ConstView& features, const char* entry, const std::string& name);
// Refuses fewer than `least` rows: "kid: samples has 1 image, expected at least 2".
void check_enough(std::int64_t images, std::int64_t least, const char* entry, const std::string& name);
// Refuses features of different sizes.
void check_same_size(std::int64_t samples, std::int64_t reference, const char* entry);

// All of these for the features of two sets.
void check_sets(const ConstView& samples, const ConstView& reference, std::int64_t least, const char* entry);

// Rows [first, first + count) as f64, [count, d], contiguous. A NaN or an infinity is refused, named by its row.
void widen_rows(const ConstView& features, std::int64_t first, std::int64_t count, double* out, const char* entry,
                const std::string& name);

}  // namespace mhla
