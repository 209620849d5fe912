#include "mhla/language/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "mhla/core/error.h"
#include "mhla/data/philox.h"

namespace mhla {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

constexpr std::array<double, 14> kOneOverFactorial = [] {
  std::array<double, 14> values{};
  double factorial = 1.0;
  for (std::size_t k = 0; k < values.size(); ++k) {
    factorial *= k > 1 ? static_cast<double>(k) : 1.0;
    values[k] = 1.0 / factorial;
  }
  return values;
}();

}  // namespace

double exp_of_negative(double x) {
  if (!(x > -708.0)) return std::isnan(x) ? x : 0.0;  // below the smallest normal number
  constexpr double kLog2E = 1.4426950408889634, kLn2High = 0x1.62e42fefa0000p-1, kLn2Low = 0x1.cf79abc9e3b3ap-40;
  const double n = std::floor(x * kLog2E + 0.5);
  const double r = (x - n * kLn2High) - n * kLn2Low;  // |r| <= ln(2) / 2: 13 terms leave 4e-18
  double sum = kOneOverFactorial[13];
  for (int term = 12; term >= 0; --term) sum = sum * r + kOneOverFactorial[static_cast<std::size_t>(term)];
  return sum * std::bit_cast<double>(static_cast<std::uint64_t>(static_cast<std::int64_t>(n) + 1023) << 52);
}

void check(const TokenSamplerOptions& o) {
  const auto refuse = [](const char* name, auto value, const char* expected) {
    fail("sampler: ", name, " is ", value, ", expected ", expected);
  };
  if (!(o.temperature >= 0.0 && o.temperature < kInfinity)) refuse("temperature", o.temperature, "0 or more");
  if (o.top_k < 0) refuse("top_k", o.top_k, "0 (all) or more");
  if (!(o.top_p > 0.0 && o.top_p <= 1.0)) refuse("top_p", o.top_p, "more than 0, at most 1");
  if (!(o.min_p >= 0.0 && o.min_p <= 1.0)) refuse("min_p", o.min_p, "0 to 1");
  if (!(o.repetition_penalty > 0.0 && o.repetition_penalty < kInfinity))
    refuse("repetition_penalty", o.repetition_penalty, "more than 0");
}

TokenSampler::TokenSampler(const TokenSamplerOptions& options, std::int64_t vocab_size, std::int64_t stream)
    : options_(options), stream_(stream) {
  check(options);
  if (vocab_size < 1) fail("sampler: vocab_size is ", vocab_size, ", expected at least 1");
  candidates_.reserve(static_cast<std::size_t>(vocab_size));
  if (options.repetition_penalty != 1.0) seen_.resize(static_cast<std::size_t>(vocab_size));
}

void TokenSampler::saw(std::span<const std::uint32_t> tokens) {
  if (seen_.empty()) return;
  for (const std::uint32_t token : tokens) {
    if (token >= seen_.size()) fail("sampler: token ", token, ", expected 0 to ", seen_.size() - 1);
    seen_[token] = 1;
  }
}

// Candidates, most likely first, as top-k, top-p and min-p leave them, with their weights.
void TokenSampler::keep_likely(double largest) {
  const auto likelier = [](const Candidate& a, const Candidate& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
  };
  const auto weight = [&](const Candidate& c) { return exp_of_negative((c.logit - largest) / options_.temperature); };
  if (options_.top_k > 0 && options_.top_k < static_cast<std::int64_t>(candidates_.size())) {
    std::nth_element(candidates_.begin(), candidates_.begin() + (options_.top_k - 1), candidates_.end(), likelier);
    candidates_.resize(static_cast<std::size_t>(options_.top_k));
  }
  // The mass is summed in the order of ids, so that it does not depend on how the library selects.
  std::sort(candidates_.begin(), candidates_.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  double mass = 0.0;
  for (const Candidate& c : candidates_) mass += weight(c);
  // A heap: of a large vocabulary only the few that are kept get sorted.
  const auto less = [&](const Candidate& a, const Candidate& b) { return likelier(b, a); };
  std::make_heap(candidates_.begin(), candidates_.end(), less);
  auto end = candidates_.end();
  double kept = 0.0;
  weights_.clear();
  while (end != candidates_.begin() && !(kept >= options_.top_p * mass && !weights_.empty())) {
    std::pop_heap(candidates_.begin(), end, less);
    const double w = weight(*--end);
    if (w < options_.min_p) break;  // the most likely one weighs 1
    weights_.push_back(w);
    kept += w;
  }
  std::reverse(candidates_.begin(), candidates_.end());
  candidates_.resize(weights_.size());
}

std::uint32_t TokenSampler::pick(std::span<const float> logits, std::int64_t place) {
  if (!seen_.empty() && logits.size() != seen_.size())
    fail("sampler: ", logits.size(), " logits, expected ", seen_.size());
  candidates_.clear();
  double largest = -kInfinity;
  std::uint32_t first = 0;
  for (std::uint32_t id = 0; id < logits.size(); ++id) {
    double logit = logits[id];
    if (std::isnan(logit) || logit == kInfinity) fail("sampler: logit ", id, " is ", logit, ", expected a number");
    if (logit == -kInfinity) continue;
    if (!seen_.empty() && seen_[id] != 0)
      logit = logit > 0.0 ? logit / options_.repetition_penalty : logit * options_.repetition_penalty;
    if (logit > largest) largest = logit, first = id;
    candidates_.push_back({logit, id});
  }
  if (candidates_.empty()) fail("sampler: none of ", logits.size(), " logits is a number");
  if (options_.temperature == 0.0 || options_.top_k == 1) return first;
  if (options_.top_k > 0 || options_.top_p < 1.0 || options_.min_p > 0.0) {
    keep_likely(largest);
  } else {
    weights_.clear();
    for (const Candidate& c : candidates_)
      weights_.push_back(exp_of_negative((c.logit - largest) / options_.temperature));
  }
  double total = 0.0;
  for (const double w : weights_) total += w;
  const double drawn = Philox(options_.seed, Philox::kSample, stream_, place).uniform() * total;
  double sum = 0.0;
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    sum += weights_[i];
    if (drawn < sum) return candidates_[i].id;
  }
  return first;  // rounding at the very end
}

}  // namespace mhla
