#include "mhla/diffusion/metrics/metrics.h"

#include <string_view>

#include "mhla/core/error.h"
#include "mhla/diffusion/metrics/features.h"
#include "mhla/diffusion/metrics/frechet.h"
#include "mhla/diffusion/metrics/inception_score.h"
#include "mhla/diffusion/metrics/neighbours.h"

namespace mhla {
namespace {

bool is_neighbour_metric(std::string_view name) {
  return name == "precision" || name == "recall" || name == "density" || name == "coverage";
}

void join(FeatureNeeds& all, const FeatureNeeds& more) {
  all.stats |= more.stats;
  all.spatial_stats |= more.spatial_stats;
  all.rows |= more.rows;
  all.logits |= more.logits;
}

bool any(const FeatureNeeds& needs) { return needs.stats || needs.spatial_stats || needs.rows || needs.logits; }

void check_has(const FeatureNeeds& needs, const ImageFeatures& set, const char* metric) {
  if (needs.stats) (void)set.stats(metric);
  if (needs.spatial_stats) (void)set.spatial_stats(metric);
  if (needs.rows) (void)set.rows(metric);
  if (needs.logits) (void)set.logits(metric);
}

std::int64_t least_images(const Metric& metric, const MetricOptions& options) {
  if (is_neighbour_metric(metric.name)) return options.neighbours + 1;
  if (std::string_view(metric.name) == "kid-subsets") return options.kid_subsets.size;
  return metric.least_images;
}

void check_ready(const Metric& metric, const ImageFeatures& samples, const ImageFeatures* maybe_reference) {
  check_has(metric.of_samples, samples, metric.name);
  if (!any(metric.of_reference)) return;
  if (maybe_reference == nullptr) fail(metric.name, ": needs a reference set, and none is given");
  check_has(metric.of_reference, *maybe_reference, metric.name);
  if (samples.network() != maybe_reference->network())
    fail(metric.name, ": ", samples.label(), " has features of ", samples.network(), " and ", maybe_reference->label(),
         " of ", maybe_reference->network(), ", expected the same network");
}

// Computes what several metrics share once.
class Computation {
 public:
  Computation(const ImageFeatures& samples, const ImageFeatures* maybe_reference, const MetricOptions& options)
      : samples_(samples), reference_(maybe_reference), options_(options) {}

  MetricValue value_of(const char* metric) {
    const std::string_view name = metric;
    if (name == "fid") return {frechet_distance(samples_.stats(metric), reference_->stats(metric)), {}};
    if (name == "sfid")
      return {frechet_distance(samples_.spatial_stats(metric), reference_->spatial_stats(metric)), {}};
    if (name == "is" || name == "is-shuffled") {
      const ScoreParts parts = name == "is" ? ScoreParts::adm() : ScoreParts::torch_fidelity();
      const InceptionScore score = inception_score(samples_.logits(metric), parts);
      return {score.mean, score.deviation};
    }
    if (name == "kid") return {kernel_distance(samples_.rows(metric), reference_->rows(metric)), {}};
    if (name == "kid-subsets") {
      const KernelDistance kid =
          subset_kernel_distance(samples_.rows(metric), reference_->rows(metric), options_.kid_subsets);
      return {kid.mean, kid.deviation};
    }
    if (!have_neighbours_) {
      neighbours_ = neighbour_metrics(samples_.rows(metric), reference_->rows(metric), options_.neighbours);
      have_neighbours_ = true;
    }
    if (name == "precision") return {neighbours_.precision, {}};
    if (name == "recall") return {neighbours_.recall, {}};
    if (name == "density") return {neighbours_.density, {}};
    return {neighbours_.coverage, {}};
  }

 private:
  const ImageFeatures& samples_;
  const ImageFeatures* reference_;
  const MetricOptions& options_;
  NeighbourMetrics neighbours_;
  bool have_neighbours_ = false;
};

}  // namespace

const Metric& metric_called(const std::string& name) {
  std::string known;
  for (const Metric& metric : kMetrics) {
    if (name == metric.name) return metric;
    known += str(known.empty() ? "" : ", ", metric.name);
  }
  fail("metrics: '", name, "' is unknown, expected one of ", known);
}

MetricNeeds needs_of(const std::vector<std::string>& names) {
  MetricNeeds needs;
  for (const std::string& name : names) {
    const Metric& metric = metric_called(name);
    join(needs.samples, metric.of_samples);
    join(needs.reference, metric.of_reference);
    needs.any_reference |= any(metric.of_reference);
  }
  return needs;
}

void expect_enough_images(const std::vector<std::string>& names, std::int64_t images, const std::string& label,
                          bool reference, const MetricOptions& options) {
  for (const std::string& name : names)
    if (const Metric& metric = metric_called(name); !reference || any(metric.of_reference))
      check_enough(images, least_images(metric, options), metric.name, label);
}

std::vector<MetricResult> compute_metrics(const std::vector<std::string>& names, const ImageFeatures& samples,
                                          const ImageFeatures* maybe_reference, const MetricOptions& options) {
  if (options.neighbours < 1) fail("metrics: neighbours is ", options.neighbours, ", expected at least 1");
  if (samples.images() == 0)
    fail("metrics: ", samples.label(), " does not say of how many images it is, expected images or --save-stats");
  expect_enough_images(names, samples.images(), samples.label(), /*reference=*/false, options);
  if (maybe_reference != nullptr && maybe_reference->images() != 0)
    expect_enough_images(names, maybe_reference->images(), maybe_reference->label(), /*reference=*/true, options);
  for (const std::string& name : names) check_ready(metric_called(name), samples, maybe_reference);
  Computation computation(samples, maybe_reference, options);
  std::vector<MetricResult> results;
  for (const std::string& name : names) {
    const Metric& metric = metric_called(name);
    MetricResult result;
    result.name = name;
    result.images = samples.images();
    result.features = samples.network();
    if (any(metric.of_reference)) {
      result.reference = maybe_reference->label();
      result.reference_images = maybe_reference->images();
    }
    result.value = computation.value_of(metric.name);
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace mhla
