#include "mhla/diffusion/schedule.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "mhla/core/error.h"

namespace mhla {
namespace {

constexpr double kPi = 3.14159265358979323846;
constexpr std::int64_t kMostSteps = 1 << 20;

void expect_steps(std::int64_t steps) {
  if (steps < 1 || steps > kMostSteps) fail("diffusion: steps is ", steps, ", expected 1 to ", kMostSteps);
}

std::int64_t count_in(std::string_view text, std::string_view sections) {
  std::int64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || end != text.data() + text.size() || count < 1)
    fail("diffusion: sections is '", sections,
         "', expected a number of steps, numbers between commas, or ddim and one");
  return count;
}

std::vector<std::int64_t> counts_in(std::string_view sections) {
  std::vector<std::int64_t> counts;
  for (std::size_t start = 0;;) {
    const std::size_t comma = std::min(sections.find(',', start), sections.size());
    counts.push_back(count_in(sections.substr(start, comma - start), sections));
    if (comma == sections.size()) return counts;
    start = comma + 1;
  }
}

std::vector<std::int64_t> strided_steps(std::int64_t steps, std::int64_t count) {
  for (std::int64_t stride = 1; stride < std::max<std::int64_t>(steps, 2); ++stride) {
    if ((steps + stride - 1) / stride != count) continue;
    std::vector<std::int64_t> kept;
    for (std::int64_t step = 0; step < steps; step += stride) kept.push_back(step);
    return kept;
  }
  fail("diffusion: no whole stride takes exactly ", count, " of ", steps, " steps, expected another number after ddim");
}

double squared_cosine(double t) {
  const double cosine = std::cos((t + 0.008) / 1.008 * kPi / 2);
  return cosine * cosine;
}

}  // namespace

std::vector<std::string> schedule_names() { return {"linear", "squaredcos_cap_v2"}; }

std::vector<double> linspace(double start, double stop, std::int64_t count) {
  std::vector<double> values(static_cast<std::size_t>(count));
  const double step = count > 1 ? (stop - start) / static_cast<double>(count - 1) : 0.0;
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i) * step + start;
  if (count > 1) values.back() = stop;
  return values;
}

std::vector<double> schedule_betas(std::string_view schedule, std::int64_t steps) {
  expect_steps(steps);
  if (schedule == "linear") {
    const double scale = 1000.0 / static_cast<double>(steps);
    return linspace(scale * 0.0001, scale * 0.02, steps);
  }
  if (schedule != "squaredcos_cap_v2")
    fail("diffusion: schedule is '", schedule, "', expected linear or squaredcos_cap_v2");
  std::vector<double> betas;
  const auto T = static_cast<double>(steps);
  for (std::int64_t i = 0; i < steps; ++i) {
    const double from = static_cast<double>(i) / T, to = static_cast<double>(i + 1) / T;
    betas.push_back(std::min(1 - squared_cosine(to) / squared_cosine(from), 0.999));
  }
  return betas;
}

std::vector<std::int64_t> respaced_steps(std::int64_t steps, std::string_view sections) {
  expect_steps(steps);
  if (sections.substr(0, 4) == "ddim") return strided_steps(steps, count_in(sections.substr(4), sections));
  const std::vector<std::int64_t> counts = sections.empty() ? std::vector{steps} : counts_in(sections);
  const auto parts = static_cast<std::int64_t>(counts.size());
  std::vector<std::int64_t> kept;
  std::int64_t start = 0;
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::int64_t size = steps / parts + (part < steps % parts ? 1 : 0);
    const std::int64_t count = counts[static_cast<std::size_t>(part)];
    if (count > size) fail("diffusion: sections is '", sections, "': ", count, " of ", size, " steps, expected fewer");
    const double stride = count > 1 ? static_cast<double>(size - 1) / static_cast<double>(count - 1) : 1.0;
    double at = 0.0;
    for (std::int64_t i = 0; i < count; ++i, at += stride)
      kept.push_back(start + static_cast<std::int64_t>(std::nearbyint(at)));  // half to even
    start += size;
  }
  return kept;
}

std::vector<double> respaced_betas(const std::vector<double>& betas, const std::vector<std::int64_t>& kept) {
  if (kept.size() == betas.size()) return betas;  // all of them: the division below would round
  std::vector<double> fewer;
  double acp = 1.0, last = 1.0;
  std::size_t next = 0;
  for (std::size_t t = 0; t < betas.size() && next < kept.size(); ++t) {
    acp *= 1.0 - betas[t];
    if (static_cast<std::int64_t>(t) != kept[next]) continue;
    fewer.push_back(1 - acp / last);
    last = acp, ++next;
  }
  return fewer;
}

DiffusionTables::DiffusionTables(std::vector<double> given) : betas(std::move(given)) {
  const std::size_t T = betas.size();
  if (T == 0) fail("diffusion: no betas, expected at least one step");
  double acp = 1.0;
  for (const double beta : betas) {
    if (!(beta > 0.0 && beta <= 1.0)) fail("diffusion: a beta is ", beta, ", expected more than 0 and at most 1");
    alphas_cumprod_prev.push_back(acp);
    acp *= 1.0 - beta;
    alphas_cumprod.push_back(acp);
  }
  for (std::size_t t = 0; t < T; ++t) {
    const double beta = betas[t], own = alphas_cumprod[t], prev = alphas_cumprod_prev[t];
    alphas_cumprod_next.push_back(t + 1 < T ? alphas_cumprod[t + 1] : 0.0);
    log_betas.push_back(std::log(beta));
    sqrt_alphas_cumprod.push_back(std::sqrt(own));
    sqrt_one_minus_alphas_cumprod.push_back(std::sqrt(1.0 - own));
    log_one_minus_alphas_cumprod.push_back(std::log(1.0 - own));
    sqrt_recip_alphas_cumprod.push_back(std::sqrt(1.0 / own));
    sqrt_recipm1_alphas_cumprod.push_back(std::sqrt(1.0 / own - 1));
    posterior_variance.push_back(beta * (1.0 - prev) / (1.0 - own));
    posterior_mean_coef1.push_back(beta * std::sqrt(prev) / (1.0 - own));
    posterior_mean_coef2.push_back((1.0 - prev) * std::sqrt(1.0 - beta) / (1.0 - own));
  }
  // A process of one step has no step 1 to take a variance from: its own is 0, and the beta stands in for it.
  const double first = T > 1 ? posterior_variance[1] : betas[0];
  for (std::size_t t = 0; t < T; ++t) {
    posterior_log_variance_clipped.push_back(std::log(t == 0 ? first : posterior_variance[t]));
    fixed_large_log_variance.push_back(std::log(t == 0 ? first : betas[t]));
  }
}

}  // namespace mhla
