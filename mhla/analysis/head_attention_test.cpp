// Factors against the matrix written out: rows, singular values, entropy, bounds.
#include "mhla/analysis/head_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "mhla/analysis/attention_matrix.h"
#include "mhla/analysis/spectrum.h"
#include "mhla/core/error.h"

namespace mhla {
namespace {

Matrix random_matrix(std::int64_t rows, std::int64_t columns, unsigned seed, bool positive) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal;
  Matrix m(rows, columns);
  for (double& value : m.values) value = positive ? std::abs(normal(generator)) + 1e-6 : normal(generator);
  return m;
}

// Ragged blocks of 5, 9, 2 and the rest, interleaved.
HeadAttention blocked(std::int64_t N, std::int64_t D) {
  HeadAttention head;
  head.q = random_matrix(N, D, 1, true), head.k = random_matrix(N, D, 2, true);
  head.mix = random_matrix(4, 4, 3, true);
  for (std::int64_t t = 0; t < N; ++t) head.block_of.push_back(t < 5 ? 0 : t < 14 ? 1 : t < 16 ? 2 : 3);
  std::shuffle(head.block_of.begin(), head.block_of.end(), std::mt19937(4));
  for (std::int64_t t = 0; t < N; ++t) {
    double sum = 1e-6;
    for (std::int64_t s = 0; s < N; ++s)
      for (std::int64_t d = 0; d < D; ++d)
        sum += head.mix.at(head.block_of[static_cast<std::size_t>(t)], head.block_of[static_cast<std::size_t>(s)]) *
               head.q.at(t, d) * head.k.at(s, d);
    head.den.push_back(sum);
  }
  return head;
}

HeadAttention softmax_head(std::int64_t N, std::int64_t D) {
  HeadAttention head;
  head.softmax = true, head.scale = 1.0 / std::sqrt(static_cast<double>(D));
  head.q = random_matrix(N, D, 5, false), head.k = random_matrix(N, D, 6, false);
  return head;
}

void expect_near(const Matrix& got, const Matrix& want) {
  ASSERT_EQ(got.values.size(), want.values.size());
  for (std::size_t i = 0; i < got.values.size(); ++i) ASSERT_NEAR(got.values[i], want.values[i], 1e-14) << i;
}

TEST(HeadAttention, RowsAreThoseOfTheWrittenMatrix) {
  const HeadAttention mhla = blocked(40, 6), softmax = softmax_head(20, 6);
  AttentionOptions identity;
  identity.feature = feature::identity;
  expect_near(attention_matrix(mhla), mhla_attention(mhla.q, mhla.k, mhla.block_of, mhla.mix, identity));
  expect_near(attention_matrix(softmax), softmax_attention(softmax.q, softmax.k));
}

TEST(HeadAttention, BlocksHaveTheSingularValuesOfTheWholeMatrix) {
  const HeadAttention head = blocked(60, 6);
  SpectrumMethod method{};
  const std::vector<double> got = attention_spectrum(head, 1024, method);
  EXPECT_EQ(method, SpectrumMethod::kBlocks);
  ASSERT_EQ(got.size(), 5u + 6u + 2u + 6u);  // min(C_b, D)
  const std::vector<double> want = singular_values(attention_matrix(head));
  for (std::size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(i < got.size() ? got[i] : 0.0, want[i], 1e-14 * want[0]) << i;
  const HeadSummary summary = summarize(head);
  EXPECT_EQ(summary.rank, 19);
  EXPECT_EQ(rank_bound(head), 19);
  EXPECT_NEAR(stable_rank_by_rows(head), summary.stable_rank, 1e-9);
  EXPECT_NEAR(summary.entropy.mean_nats, row_entropy(attention_matrix(head)).mean_nats, 1e-12);
}

// A ReLU that never opens leaves equal columns of 1e-6: each reflection leaves a rest smaller by eps than the last one.
TEST(HeadAttention, DeadFeaturesLeaveNoHoles) {
  for (std::int64_t dead = 10; dead <= 28; dead += 3) {
    HeadAttention head = blocked(196, 32);
    for (std::int64_t t = 0; t < 196; ++t) {
      head.block_of[static_cast<std::size_t>(t)] = t / 49;
      for (std::int64_t d = 32 - dead; d < 32; ++d) head.q.at(t, d) = head.k.at(t, d) = 1e-6;
    }
    SpectrumMethod method{};
    const std::vector<double> got = attention_spectrum(head, 1024, method);
    EXPECT_EQ(method, SpectrumMethod::kBlocks);
    const std::vector<double> want = singular_values(attention_matrix(head));
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-13 * want[0]) << dead << " " << i;
  }
}

TEST(HeadAttention, LinearAttentionStopsAtTheHeadSize) {
  HeadAttention head = blocked(60, 6);
  head.mix = Matrix(), head.block_of.clear();
  EXPECT_EQ(rank_bound(head), 6);
  EXPECT_EQ(summarize(head).rank, 6);
}

TEST(HeadAttention, AMixOfRankOneBuysNothing) {
  HeadAttention head = blocked(60, 6);
  for (std::int64_t i = 0; i < 4; ++i)
    for (std::int64_t b = 0; b < 4; ++b) head.mix.at(i, b) = static_cast<double>((i + 1) * (b + 2));
  EXPECT_EQ(rank_bound(head), 6);
  EXPECT_EQ(summarize(head).rank, 6);
}

TEST(HeadAttention, SoftmaxIsDenseWhileItFits) {
  const HeadAttention head = softmax_head(50, 8);
  const HeadSummary dense = summarize(head, 50), rows = summarize(head, 49);
  EXPECT_EQ(dense.method, SpectrumMethod::kDense);
  EXPECT_EQ(rows.method, SpectrumMethod::kNone);
  EXPECT_FALSE(rows.rank.has_value());
  EXPECT_EQ(rank_bound(head), 50);
  EXPECT_NEAR(rows.stable_rank, dense.stable_rank, 1e-9 * dense.stable_rank);
  EXPECT_NEAR(rows.entropy.normalized, row_entropy(attention_matrix(head)).normalized, 1e-12);
}

TEST(HeadAttention, AnIdentityHasFullStableRankAndNoEntropy) {
  HeadAttention head;
  head.q = Matrix(8, 8), head.k = Matrix(8, 8);
  for (std::int64_t t = 0; t < 8; ++t) head.q.at(t, t) = head.k.at(t, t) = 1.0, head.den.push_back(1.0);
  const HeadSummary summary = summarize(head);
  EXPECT_EQ(summary.rank, 8);
  EXPECT_EQ(summary.rank_1pc, 8);
  EXPECT_DOUBLE_EQ(summary.stable_rank, 8.0);
  EXPECT_DOUBLE_EQ(summary.entropy.normalized, 0.0);
}

TEST(HeadAttention, RefusesWhatDoesNotFit) {
  const auto message = [](const HeadAttention& head) -> std::string {
    try {
      check(head);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  HeadAttention head = blocked(20, 3);
  EXPECT_EQ(message(head), "");
  head.den[7] = 0.0;
  EXPECT_NE(message(head).find("den[7] is 0"), std::string::npos) << message(head);
  head = blocked(20, 3), head.block_of[2] = 4;
  EXPECT_NE(message(head).find("block_of has 4, expected 0 to 3"), std::string::npos) << message(head);
  head = blocked(20, 3), head.k = Matrix(19, 3);
  EXPECT_NE(message(head).find("k [19, 3]"), std::string::npos) << message(head);
  head = blocked(20, 3), head.q.at(1, 1) = std::nan("");
  EXPECT_NE(message(head), "");
}

}  // namespace
}  // namespace mhla
