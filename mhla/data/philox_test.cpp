// Philox against the known answers of its authors, and the laws drawn from it against their moments.
#include "mhla/data/philox.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace mhla {
namespace {

TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, 0, 0), (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({~0u, ~0u, ~0u, ~0u}, ~0u, ~0u), (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, EveryNameIsAStreamOfItsOwn) {
  std::set<std::uint32_t> firsts;
  int streams = 0;
  for (const std::uint64_t seed : {0ull, 1ull, 1ull << 32})
    for (const auto purpose : {Philox::kOrder, Philox::kItem, Philox::kBatch, Philox::kErase, Philox::kSubset})
      for (const std::int64_t epoch : {0ll, 1ll, 1ll << 33})
        for (const std::int64_t item : {0ll, 1ll, 1ll << 40}) {
          firsts.insert(Philox(seed, purpose, epoch, item).bits());
          EXPECT_EQ(Philox(seed, purpose, epoch, item).bits(), Philox(seed, purpose, epoch, item).bits());
          ++streams;
        }
  EXPECT_EQ(firsts.size(), static_cast<std::size_t>(streams));
}

struct Moments {
  double mean = 0.0, variance = 0.0;
};

template <class Draw>
Moments moments(const Draw& draw) {
  constexpr int kCount = 200000;
  double sum = 0.0, squares = 0.0;
  for (int i = 0; i < kCount; ++i) {
    const double value = draw();
    sum += value;
    squares += value * value;
  }
  const double mean = sum / kCount;
  return {mean, squares / kCount - mean * mean};
}

TEST(Philox, LawsHaveTheirMoments) {
  Philox random(5, Philox::kItem, 0, 0);
  const Moments uniform = moments([&] { return random.uniform(); });
  EXPECT_NEAR(uniform.mean, 0.5, 0.003);
  EXPECT_NEAR(uniform.variance, 1.0 / 12.0, 0.001);
  const Moments normal = moments([&] { return random.normal(); });
  EXPECT_NEAR(normal.mean, 0.0, 0.01);
  EXPECT_NEAR(normal.variance, 1.0, 0.02);
  for (const double alpha : {0.2, 0.8, 1.0, 3.0}) {
    const Moments beta = moments([&] { return random.beta(alpha); });
    EXPECT_NEAR(beta.mean, 0.5, 0.005) << alpha;
    EXPECT_NEAR(beta.variance, 0.25 / (2.0 * alpha + 1.0), 0.003) << alpha;
  }
  const double tiny = Philox(1, Philox::kItem, 0, 0).beta(1e-4);
  EXPECT_TRUE(tiny >= 0.0 && tiny <= 1.0) << tiny;
}

TEST(Philox, NormalsInARow) {
  for (const std::int64_t count : {0, 1, 2, 7, 100000}) {
    std::vector<float> values(static_cast<std::size_t>(count) + 1, 77.0f);
    Philox random(3, Philox::kErase, 0, count);
    random.normals(values.data(), count);
    EXPECT_EQ(values.back(), 77.0f);
    if (count < 1000) continue;
    double sum = 0.0, squares = 0.0, fourth = 0.0;
    for (std::int64_t i = 0; i < count; ++i) {
      const double value = values[static_cast<std::size_t>(i)];
      sum += value, squares += value * value, fourth += value * value * value * value;
    }
    EXPECT_NEAR(sum / static_cast<double>(count), 0.0, 0.015);
    EXPECT_NEAR(squares / static_cast<double>(count), 1.0, 0.02);
    EXPECT_NEAR(fourth / static_cast<double>(count), 3.0, 0.15);
  }
}

TEST(Philox, BelowIsEven) {
  Philox random(9, Philox::kOrder, 0, 0);
  std::vector<int> counts(7);
  for (int i = 0; i < 70000; ++i) ++counts[static_cast<std::size_t>(random.below(7))];
  for (const int count : counts) EXPECT_NEAR(count, 10000, 400);
  EXPECT_EQ(random.below(1), 0);
}

}  // namespace
}  // namespace mhla
