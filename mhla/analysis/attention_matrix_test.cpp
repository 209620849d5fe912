// Attention matrices by hand and by identities, their rank and the entropy of their rows.
#include "mhla/analysis/attention_matrix.h"

#include <gtest/gtest.h>

#include <cmath>

#include "mhla/analysis/analysis_fixture.h"
#include "mhla/analysis/attention_stats.h"
#include "mhla/core/error.h"
#include "mhla/testing/tensor.h"

namespace mhla {
namespace {

Matrix of(std::int64_t rows, std::int64_t columns, const std::vector<double>& values) {
  Matrix matrix(rows, columns);
  matrix.values = values;
  return matrix;
}

Matrix ones(std::int64_t M) { return of(M, M, std::vector<double>(static_cast<std::size_t>(M * M), 1.0)); }

std::vector<std::int64_t> line(std::int64_t N, std::int64_t C) {
  std::vector<std::int64_t> block_of;
  for (std::int64_t t = 0; t < N; ++t) block_of.push_back(t / C);
  return block_of;
}

void expect_same(const Matrix& got, const Matrix& want, double tolerance) {
  ASSERT_EQ(got.rows, want.rows);
  ASSERT_EQ(got.columns, want.columns);
  for (std::size_t i = 0; i < got.values.size(); ++i) {
    EXPECT_TRUE(std::abs(got.values[i] - want.values[i]) <= tolerance)
        << i << ": got " << got.values[i] << ", want " << want.values[i];
  }
}

// Two blocks of two tokens, worked out on paper: A times v must give these outputs.
struct WorkedExample {
  Matrix q = of(4, 2, {1, 0, 0, 1, 1, 1, 2, 0});
  Matrix k = of(4, 2, {1, 0, 1, 1, 0, 1, 1, 0});
  Matrix v = of(4, 2, {1, 2, 3, 4, 5, 6, 7, 8});
  std::vector<std::int64_t> block_of = {0, 0, 1, 1};
};

Matrix times(const Matrix& a, const Matrix& v) {
  Matrix out(a.rows, v.columns);
  for (std::int64_t t = 0; t < a.rows; ++t) {
    for (std::int64_t s = 0; s < a.columns; ++s) {
      for (std::int64_t j = 0; j < v.columns; ++j) out.at(t, j) += a.at(t, s) * v.at(s, j);
    }
  }
  return out;
}

TEST(AttentionMatrix, WorkedExample) {
  const WorkedExample x;
  const Matrix mix = of(2, 2, {0.75, 0.25, 0.4, 0.6});
  const Matrix a = mhla_attention(x.q, x.k, x.block_of, mix, {.feature = feature::identity, .eps = 0});
  expect_same(times(a, x.v), of(4, 2, {2.714286, 3.714286, 3.5, 4.5, 4.166667, 5.166667, 4.142857, 5.142857}), 5.1e-7);
}

TEST(AttentionMatrix, WorkedExampleCausal) {
  const WorkedExample x;
  const Matrix mix = of(2, 2, {1, NAN, 0.5, 0.5});  // what stands above the diagonal is never read
  const Matrix a =
      mhla_attention(x.q, x.k, x.block_of, mix, {.feature = feature::identity, .causal = true, .normalize = false});
  expect_same(times(a, x.v), of(4, 2, {1, 2, 3, 4, 6, 8, 11, 14}), 1e-15);
}

TEST(AttentionMatrix, RowsSumToOne) {
  Random random(1);
  const Matrix q = normal(random, 24, 8);
  const Matrix k = normal(random, 24, 8);
  Matrix mix(4, 4);
  for (double& value : mix.values) value = random.uniform();
  for (const bool causal : {false, true}) {
    const AttentionOptions options{.causal = causal, .eps = 0};
    for (const Matrix& a : {softmax_attention(q, k, options), linear_attention(q, k, options),
                            mhla_attention(q, k, line(24, 6), mix, options)}) {
      for (std::int64_t t = 0; t < 24; ++t) {
        double sum = 0;
        for (std::int64_t s = 0; s < 24; ++s) {
          sum += a.at(t, s);
          EXPECT_TRUE(!causal || s <= t || a.at(t, s) == 0.0) << t << " sees " << s;
        }
        EXPECT_NEAR(sum, 1.0, 1e-14);
      }
    }
  }
}

TEST(AttentionMatrix, SoftmaxByHandAndShifted) {
  const Matrix q = of(2, 1, {1, 2});
  const Matrix k = of(2, 1, {std::log(2.0), std::log(6.0)});
  expect_same(softmax_attention(q, k), of(2, 2, {0.25, 0.75, 0.1, 0.9}), 1e-15);
  expect_same(softmax_attention(q, k, {.scale = 0.0}), of(2, 2, {0.5, 0.5, 0.5, 0.5}), 1e-15);
  const Matrix large = softmax_attention(of(1, 1, {1e3}), of(1, 1, {1e3}));  // exp(1e6) without the shift
  EXPECT_EQ(large.at(0, 0), 1.0);
}

TEST(AttentionMatrix, MixOfOnesIsLinearAttentionAndIdentityIsBlockDiagonal) {
  Random random(2);
  const Matrix q = normal(random, 20, 6);
  const Matrix k = normal(random, 20, 6);
  expect_same(mhla_attention(q, k, line(20, 5), ones(4)), linear_attention(q, k), 1e-15);

  Matrix identity(4, 4);
  for (std::int64_t i = 0; i < 4; ++i) identity.at(i, i) = 1;
  const Matrix a = mhla_attention(q, k, line(20, 5), identity);
  for (std::int64_t t = 0; t < 20; ++t) {
    for (std::int64_t s = 0; s < 20; ++s) EXPECT_EQ(a.at(t, s) != 0.0, t / 5 == s / 5);
  }
}

// A = blockdiag(Q_i) (mix x I_D) blockdiag(K_b)^T: linear attention is stuck at D, MHLA reaches rank(mix) * D.
TEST(AttentionMatrix, RankGrowsWithTheBlocks) {
  Random random(3);
  constexpr std::int64_t N = 128, D = 8;
  const Matrix q = normal(random, N, D);
  const Matrix k = normal(random, N, D);
  EXPECT_EQ(summarize_attention(linear_attention(q, k)).rank, D);
  for (const std::int64_t M : {2, 4, 8, 16}) {
    Matrix mix(M, M);
    for (double& value : mix.values) value = random.uniform();
    EXPECT_EQ(summarize_attention(mhla_attention(q, k, line(N, N / M), mix)).rank, M * D);
  }
  Matrix rank_two(8, 8);
  for (std::int64_t i = 0; i < 8; ++i) {
    for (std::int64_t b = 0; b < 8; ++b) rank_two.at(i, b) = 1.0 + 0.1 * static_cast<double>(i * b);
  }
  EXPECT_EQ(summarize_attention(mhla_attention(q, k, line(N, 16), rank_two)).rank, 2 * D);
}

TEST(RowEntropy, ByHand) {
  const RowEntropy uniform = row_entropy(ones(8));
  EXPECT_NEAR(uniform.mean_nats, std::log(8.0), 1e-14);
  EXPECT_NEAR(uniform.normalized, 1.0, 1e-14);

  Matrix identity(5, 5);
  for (std::int64_t i = 0; i < 5; ++i) identity.at(i, i) = 0.25;  // rows need not sum to 1
  EXPECT_EQ(row_entropy(identity).mean_nats, 0.0);

  const RowEntropy mixed = row_entropy(of(3, 4, {1, 0, 0, 0, 0.5, -0.5, 0, 0, 0, 0, 0, 0}));
  EXPECT_NEAR(mixed.mean_nats, std::log(2.0) / 2, 1e-15);
  EXPECT_NEAR(mixed.normalized, 0.25, 1e-15);
  EXPECT_EQ(mixed.rows, 2) << "the row of zeros has no distribution";

  EXPECT_EQ(row_entropy(of(1, 1, {1})).normalized, 0.0);
  EXPECT_EQ(row_entropy(Matrix(3, 3)).rows, 0);
  EXPECT_THROW(row_entropy(of(1, 2, {1, NAN})), Error);
}

TEST(RowEntropy, LocalMixFocuses) {
  Random random(4);
  const Matrix q = normal(random, 64, 16);
  const Matrix k = normal(random, 64, 16);
  Matrix local(8, 8);
  for (std::int64_t i = 0; i < 8; ++i) {
    for (std::int64_t b = 0; b < 8; ++b) local.at(i, b) = std::exp(-std::abs(static_cast<double>(i - b)));
  }
  const double linear = row_entropy(linear_attention(q, k)).mean_nats;
  const double mhla = row_entropy(mhla_attention(q, k, line(64, 8), local)).mean_nats;
  EXPECT_LT(mhla, linear - 0.5);
}

TEST(AttentionMatrix, FeaturesAndViews) {
  EXPECT_EQ(feature::relu(-2.0), 0.0);
  EXPECT_TRUE(std::isnan(feature::relu(NAN)));
  EXPECT_EQ(feature::relu_eps(3.0), 3.0 + 1e-6);
  EXPECT_EQ(feature::elu1(2.0), 3.0);
  EXPECT_EQ(feature::elu1(-1.0), std::exp(-1.0));

  Random random(5);
  Tensor q(DType::kBF16, {6, 3, 4});  // [N, H, D]: one head is a strided view
  q.normal(random);
  const ConstView all = q.view();
  ConstView head(data_as<bf16>(all) + 4, DType::kBF16, {6, 4});
  head.stride[0] = 12;
  const Matrix matrix(head);
  for (std::int64_t t = 0; t < 6; ++t) {
    for (std::int64_t d = 0; d < 4; ++d) EXPECT_EQ(matrix.at(t, d), q.at(t * 12 + 4 + d));
  }
}

TEST(AttentionMatrix, RefusesBadInput) {
  const Matrix q(4, 2);
  EXPECT_THROW(softmax_attention(q, Matrix(4, 3)), Error);
  EXPECT_THROW(linear_attention(q, Matrix(5, 2)), Error);
  EXPECT_THROW(linear_attention(q, q, {.feature = nullptr}), Error);
  EXPECT_THROW(linear_attention(q, q, {.eps = NAN}), Error);
  EXPECT_THROW(softmax_attention(q, q, {.scale = INFINITY}), Error);
  EXPECT_THROW(mhla_attention(q, q, line(3, 2), ones(2)), Error);
  EXPECT_THROW(mhla_attention(q, q, line(4, 1), ones(2)), Error) << "block 2 of 2";
  EXPECT_THROW(mhla_attention(q, q, line(4, 2), Matrix(2, 3)), Error);
  EXPECT_THROW(Matrix(ConstView(nullptr, DType::kF32, {2, 2})), Error);
  EXPECT_THROW(Matrix(Tensor(DType::kF32, {4}).view()), Error);
}

}  // namespace
}  // namespace mhla
