// Losses of two models on the same samples with the same noise.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "mhla/io/json.h"

namespace mhla::apps {

// Mean and standard error of a - b, over samples that both could read: others are NaN.
inline std::pair<double, double> paired_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0, squares = 0, count = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = a[i] - b[i];
    if (std::isfinite(difference)) sum += difference, squares += difference * difference, ++count;
  }
  const double mean = sum / count, variance = count > 1 ? (squares - sum * mean) / (count - 1) : 0.0;
  return {mean, std::sqrt(std::max(variance, 0.0) / count)};
}

inline JsonValue finite_or_null(const std::vector<double>& values) {
  JsonValue list = JsonValue::array();
  for (const double value : values) list.push(std::isfinite(value) ? JsonValue(value) : JsonValue());
  return list;
}

}  // namespace mhla::apps
