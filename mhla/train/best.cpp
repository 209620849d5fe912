#include "mhla/train/best.h"

#include <cmath>

#include "mhla/core/error.h"

namespace mhla::train {
namespace {

constexpr const char *kMetric = "mhla.metric", *kValue = "mhla.value", *kStep = "mhla.step", *kWhich = "mhla.weights";

bool beats(const MainMetric& metric, double a, double b) { return metric.larger_is_better ? a > b : a < b; }

}  // namespace

std::optional<Best> best_of(const MainMetric& metric, std::int64_t step, const Metrics& now, const Metrics& average) {
  std::optional<Best> best;
  const auto consider = [&](const char* which, const Metrics& metrics) {
    for (const auto& [name, value] : metrics) {
      if (name == metric.name && std::isfinite(value) && (!best || beats(metric, value, best->value)))
        best = Best{.metric = name, .value = value, .step = step, .weights = which};
    }
  };
  consider("model", now), consider("ema", average);
  return best;
}

bool is_better(const MainMetric& metric, const Best& found, const Best& kept) {
  return beats(metric, found.value, kept.value) || (found.step == kept.step && found.value == kept.value);
}

Metadata metadata_of(const Best& best) {
  return {{kMetric, best.metric},
          {kValue, write_json(best.value)},
          {kStep, std::to_string(best.step)},
          {kWhich, best.weights}};
}

std::optional<Best> read_best(const std::filesystem::path& file, const std::string& metric) {
  if (!std::filesystem::exists(file)) return {};
  const Metadata metadata = Safetensors::read(file).metadata();
  const auto text = [&](const char* key) {
    const auto found = metadata.find(key);
    if (found == metadata.end()) fail(file.string(), ": has no '", key, "' in its metadata, expected a file of a run");
    return found->second;
  };
  if (text(kMetric) != metric) return {};
  return Best{.metric = metric,
              .value = parse_json(text(kValue), file.string()).as_double(),
              .step = parse_json(text(kStep), file.string()).as_int(),
              .weights = text(kWhich)};
}

}  // namespace mhla::train
