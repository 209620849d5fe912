// What is drawn, how often, and that it is the same everywhere.
#include "mhla/language/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "mhla/testing/messages.h"
#include "mhla/testing/random.h"

namespace mhla {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> some_logits(std::size_t count, std::uint64_t seed) {
  Random random(seed);
  std::vector<float> logits(count);
  for (float& logit : logits) logit = static_cast<float>(8.0 * random.uniform() - 4.0);
  return logits;
}

// By definition, with the system's exp and a full sort: what each token's chance is.
std::vector<double> chances(const std::vector<float>& logits, const TokenSamplerOptions& o) {
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return logits[a] > logits[b]; });
  if (o.top_k > 0) order.resize(std::min(order.size(), static_cast<std::size_t>(o.top_k)));
  std::vector<double> p(logits.size(), 0.0);
  const auto normalise = [&] {
    const double sum = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& value : p) value /= sum;
  };
  for (const std::size_t i : order) p[i] = std::exp(logits[i] / o.temperature);
  normalise();
  double before = 0.0;
  for (const std::size_t i : order) {
    const double mine = p[i];
    if (before >= o.top_p) p[i] = 0.0;
    before += mine;
  }
  const double most = *std::max_element(p.begin(), p.end());
  for (double& value : p)
    if (value < o.min_p * most) value = 0.0;
  normalise();
  return p;
}

TEST(TokenSampler, DrawsAsOftenAsTheDefinitionSays) {
  const std::vector<float> logits = some_logits(50, 3);
  std::vector<TokenSamplerOptions> cases(7);
  cases[1].temperature = 0.5;
  cases[2].top_k = 7;
  cases[3].top_p = 0.7;
  cases[4].min_p = 0.2;
  cases[5].top_k = 20, cases[5].top_p = 0.8, cases[5].min_p = 0.1, cases[5].temperature = 1.7;
  cases[6].top_p = 1e-9;  // one token is always left
  for (std::size_t c = 0; c < cases.size(); ++c) {
    const std::vector<double> want = chances(logits, cases[c]);
    TokenSampler sampler(cases[c], 50);
    constexpr int kDraws = 40000;
    std::vector<int> counts(50);
    for (int i = 0; i < kDraws; ++i) ++counts[sampler.pick(logits, i)];
    for (std::size_t id = 0; id < 50; ++id) {
      const double expected = want[id] * kDraws;
      EXPECT_LE(std::abs(counts[id] - expected), 5.0 * std::sqrt(expected) + (expected > 0.0 ? 3.0 : 0.0))
          << "case " << c << ", token " << id;
    }
  }
}

TEST(TokenSampler, TheFirstOfEquals) {
  TokenSamplerOptions options;
  options.temperature = 0.0;
  EXPECT_EQ(TokenSampler(options, 4).pick(std::vector<float>{1, 3, 3, -kInfinity}, 0), 1u);
  options.temperature = 1.0;
  options.top_k = 1;
  EXPECT_EQ(TokenSampler(options, 4).pick(std::vector<float>{1, 3, 3, 2}, 0), 1u);
  options.top_k = 2;
  TokenSampler two(options, 4);
  for (int place = 0; place < 100; ++place) EXPECT_LT(two.pick(std::vector<float>{2, 2, 2, 2}, place), 2u);
}

TEST(TokenSampler, PenaltyOnWhatWasSeen) {
  TokenSamplerOptions options;
  options.temperature = 0.0, options.repetition_penalty = 2.0;
  TokenSampler sampler(options, 3);
  const std::vector<float> positive{3.0f, 2.0f, 1.0f}, negative{-1.0f, -1.5f, -4.0f};
  EXPECT_EQ(sampler.pick(positive, 0), 0u);
  sampler.saw(std::vector<std::uint32_t>{0});
  EXPECT_EQ(sampler.pick(positive, 1), 1u);
  EXPECT_EQ(sampler.pick(negative, 1), 1u);
  EXPECT_EQ(message_of([&] { sampler.saw(std::vector<std::uint32_t>{3}); }), "sampler: token 3, expected 0 to 2");
  EXPECT_EQ(message_of([&] { (void)sampler.pick(some_logits(4, 1), 0); }), "sampler: 4 logits, expected 3");
}

TEST(TokenSampler, TheSameOnEveryMachine) {
  const std::vector<float> logits = some_logits(1000, 9);
  TokenSamplerOptions options;
  options.seed = 12345678901234u;
  std::vector<std::uint32_t> plain, filtered, other;
  TokenSampler a(options, 1000), c(options, 1000, 1);
  options.top_k = 100, options.top_p = 0.9, options.min_p = 0.01;
  TokenSampler b(options, 1000);
  for (int place = 0; place < 6; ++place) {
    plain.push_back(a.pick(logits, place));
    filtered.push_back(b.pick(logits, place));
    other.push_back(c.pick(logits, place));
  }
  EXPECT_EQ(plain, (std::vector<std::uint32_t>{93, 178, 238, 438, 635, 67}));
  EXPECT_EQ(filtered, (std::vector<std::uint32_t>{963, 460, 193, 345, 930, 980}));
  EXPECT_NE(other, plain);                 // every prompt of a batch has its own stream
  EXPECT_EQ(a.pick(logits, 3), plain[3]);  // by place, not by what was drawn before
}

TEST(TokenSampler, MaskedTokensAreNeverDrawn) {
  TokenSampler sampler({}, 3);
  for (int i = 0; i < 200; ++i) EXPECT_EQ(sampler.pick(std::vector<float>{-kInfinity, 0.0f, -kInfinity}, i), 1u);
}

TEST(TokenSampler, MistakesAreNamed) {
  const auto refused = [](auto change) {
    TokenSamplerOptions options;
    change(options);
    return message_of([&] { check(options); });
  };
  const double nan = std::nan("");
  EXPECT_EQ(refused([](auto& o) { o.temperature = -1; }), "sampler: temperature is -1, expected 0 or more");
  EXPECT_EQ(refused([&](auto& o) { o.temperature = nan; }), "sampler: temperature is nan, expected 0 or more");
  EXPECT_EQ(refused([](auto& o) { o.top_k = -2; }), "sampler: top_k is -2, expected 0 (all) or more");
  EXPECT_EQ(refused([](auto& o) { o.top_p = 0; }), "sampler: top_p is 0, expected more than 0, at most 1");
  EXPECT_EQ(refused([](auto& o) { o.min_p = 1.5; }), "sampler: min_p is 1.5, expected 0 to 1");
  EXPECT_EQ(refused([](auto& o) { o.repetition_penalty = 0; }),
            "sampler: repetition_penalty is 0, expected more than 0");
  TokenSampler sampler({}, 2);
  EXPECT_EQ(message_of([&] {
              (void)sampler.pick(std::vector<float>{0, std::nanf("")}, 0);
            }),
            "sampler: logit 1 is nan, expected a number");
  EXPECT_EQ(message_of([&] {
              (void)sampler.pick(std::vector<float>{kInfinity, 0}, 0);
            }),
            "sampler: logit 0 is inf, expected a number");
  EXPECT_EQ(message_of([&] {
              (void)sampler.pick(std::vector<float>{-kInfinity, -kInfinity}, 0);
            }),
            "sampler: none of 2 logits is a number");
}

TEST(TokenSampler, ExponentialWithinFourUnits) {
  EXPECT_EQ(exp_of_negative(0.0), 1.0);
  EXPECT_EQ(exp_of_negative(-1e9), 0.0);
  for (double x = -700.0; x < 0.0; x += 0.0371) EXPECT_NEAR(exp_of_negative(x) / std::exp(x), 1.0, 4 * 0x1p-52) << x;
}

}  // namespace
}  // namespace mhla
