// The metrics by name (metric_table.h), computed.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "mhla/diffusion/metrics/image_features.h"
#include "mhla/diffusion/metrics/kernel_distance.h"
#include "mhla/diffusion/metrics/metric_table.h"

namespace mhla {

struct MetricOptions {
  std::int64_t neighbours = 3;  // k of precision, recall, density, coverage
  KernelSubsets kid_subsets;    // of kid-subsets
};

struct MetricValue {
  double value = 0.0;
  std::optional<double> deviation;  // of parts or subsets
};

const Metric& metric_called(const std::string& name);  // refuses an unknown name, listing the known ones

// What the sets must keep for these metrics.
struct MetricNeeds {
  FeatureNeeds samples, reference;
  bool any_reference = false;
};
MetricNeeds needs_of(const std::vector<std::string>& names);

// FID depends on N, so a value never stands without its counts.
struct MetricResult {
  std::string name;
  MetricValue value;
  std::int64_t images = 0;            // samples
  std::int64_t reference_images = 0;  // 0: the reference does not say, or there is none
  std::string reference;              // empty: none needed
  std::string features;               // the network
};

// Refuses a set that has fewer images than one of these metrics needs: also before its features are made. `reference`:
// it is what samples are compared with, which some metrics do without.
void expect_enough_images(const std::vector<std::string>& names, std::int64_t images, const std::string& label,
                          bool reference, const MetricOptions& options = {});

// In the order of `names`. Refuses sets of different networks, sets that lack what a metric needs, and fewer images
// than it needs, before anything is computed.
std::vector<MetricResult> compute_metrics(const std::vector<std::string>& names, const ImageFeatures& samples,
                                          const ImageFeatures* maybe_reference, const MetricOptions& options = {});

}  // namespace mhla
