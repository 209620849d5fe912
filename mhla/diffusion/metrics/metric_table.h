// The metrics, one line each: what flags, help texts and results have in common. Plain values, so that a program can
// list them without linking LAPACK.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace mhla {

// What a set has to keep; from the names of metrics, see needs_of() in metrics.h.
struct FeatureNeeds {
  bool stats = false;          // mean and covariance of the features
  bool spatial_stats = false;  // of the spatial features (sFID)
  bool rows = false;           // the features themselves, f32: 4 bytes * N * d
  bool logits = false;         // f32
};

struct Metric {
  const char* name;
  const char* what;  // for help texts
  bool lower_is_better;
  FeatureNeeds of_samples, of_reference;  // of_reference: nothing for metrics without one
  std::int64_t least_images;              // of each set that it needs; neighbours: k + 1
};

inline constexpr FeatureNeeds kNoFeatures{}, kStats{.stats = true}, kSpatialStats{.spatial_stats = true},
    kFeatureRows{.rows = true}, kLogits{.logits = true};

inline constexpr Metric kMetrics[] = {
    {"fid", "Fréchet distance of pool features; depends on N", true, kStats, kStats, 2},
    {"sfid", "Fréchet distance of spatial features; depends on N", true, kSpatialStats, kSpatialStats, 2},
    {"is", "Inception score over consecutive parts of 5000 images, as ADM", false, kLogits, kNoFeatures, 1},
    {"is-shuffled", "Inception score over 10 shuffled parts, as torch-fidelity", false, kLogits, kNoFeatures, 10},
    {"kid", "kernel distance over all images", true, kFeatureRows, kFeatureRows, 2},
    {"kid-subsets", "kernel distance, mean of 100 random subsets of 1000, as torch-fidelity", true, kFeatureRows,
     kFeatureRows, 2},
    {"precision", "share of samples near the reference", false, kFeatureRows, kFeatureRows, 2},
    {"recall", "share of the reference near samples", false, kFeatureRows, kFeatureRows, 2},
    {"density", "reference neighbourhoods a sample lies in, over k", false, kFeatureRows, kFeatureRows, 2},
    {"coverage", "share of reference neighbourhoods with a sample", false, kFeatureRows, kFeatureRows, 2},
};

inline std::span<const Metric> all_metrics() { return kMetrics; }

inline std::vector<std::string> metric_names() {
  std::vector<std::string> names;
  for (const Metric& metric : kMetrics) names.emplace_back(metric.name);
  return names;
}

}  // namespace mhla
