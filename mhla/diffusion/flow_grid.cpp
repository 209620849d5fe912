#include "mhla/diffusion/flow_grid.h"

#include <cmath>

#include "mhla/core/error.h"
#include "mhla/diffusion/schedule.h"

namespace mhla {
namespace {

struct GridRule {
  const char* name;
  bool whole;                                                           // the network is fed whole times
  std::vector<double> (*places)(const FlowOptions& o, std::int64_t n);  // a, the last one left out
};

std::vector<double> without_last(std::vector<double> places) {
  places.pop_back();
  return places;
}

double least(const FlowOptions& o) { return 1.0 / static_cast<double>(o.steps); }

// 1 - linspace and not linspace from 1 - 1/T: the whole part of T s depends on the last bit.
std::vector<double> from_below_one(const FlowOptions& o, std::int64_t n) {
  const std::vector<double> kept = linspace(1.0, least(o), n + 1);
  std::vector<double> places;
  for (std::size_t i = kept.size() - 1; i > 0; --i) places.push_back(1.0 - kept[i]);
  return places;
}

const GridRule kGridRules[] = {
    {"wan-unipc", true, from_below_one},
    {"wan-dpm", true, [](const FlowOptions&, std::int64_t n) { return without_last(linspace(1.0, 0.0, n + 1)); }},
    {"diffusers-unipc", true,
     [](const FlowOptions& o, std::int64_t n) { return without_last(linspace(1.0, least(o), n + 1)); }},
    {"mhla-dpm", false, from_below_one},
    {"diffusers-euler", false,
     [](const FlowOptions& o, std::int64_t n) {
       return linspace(shifted(1.0, o.shift), shifted(least(o), o.shift), n);
     }},
    {"linear", false,
     [](const FlowOptions&, std::int64_t n) {
       std::vector<double> places;
       for (std::int64_t i = 0; i < n; ++i) places.push_back(1.0 - static_cast<double>(i) / static_cast<double>(n));
       return places;
     }},
};

}  // namespace

std::vector<std::string> flow_grid_names() {
  std::vector<std::string> names;
  for (const GridRule& rule : kGridRules) names.emplace_back(rule.name);
  return names;
}

FlowGrid flow_grid(const FlowOptions& process, std::int64_t steps, const std::string& name) {
  check(process);
  if (steps < 1 || steps > process.steps)
    fail("sampler: steps is ", steps, ", expected 1 to ", process.steps, ", those of the process");
  for (const GridRule& rule : kGridRules) {
    if (rule.name != name) continue;
    const auto T = static_cast<double>(process.steps);
    FlowGrid grid;
    for (const double place : rule.places(process, steps)) {
      double s = shifted(place, process.shift);
      if (name == "diffusers-unipc" && grid.sigmas.empty()) s -= 1e-6;  // 1 would be infinitely far in lambda
      grid.times.push_back(rule.whole ? std::floor(s * T) : s * T);
      grid.sigmas.push_back(static_cast<double>(static_cast<float>(s)));
    }
    grid.sigmas.push_back(0.0);
    return grid;
  }
  std::string all;
  for (const std::string& known : flow_grid_names()) all += (all.empty() ? "" : ", ") + known;
  fail("sampler: time_grid is '", name, "', expected one of ", all);
}

}  // namespace mhla
