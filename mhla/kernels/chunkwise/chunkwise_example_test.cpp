// The reference of the causal form against numbers worked out by hand: two chunks of two tokens.
#include <gtest/gtest.h>

#include <cmath>

#include "mhla/kernels/chunkwise/chunkwise.h"

namespace mhla {
namespace {

std::vector<double> run_example(const std::vector<double>& mix, Normalizer normalizer, std::optional<double> scale) {
  const std::vector<double> q = {1, 0, 0, 1, 1, 1, 2, 0}, k = {1, 0, 1, 1, 0, 1, 1, 0}, v = {1, 2, 3, 4, 5, 6, 7, 8};
  std::vector<double> out(8, -1);
  ChunkwiseParams params;
  params.q = ConstView(q.data(), DType::kF64, {1, 4, 1, 2});
  params.k = ConstView(k.data(), DType::kF64, {1, 4, 1, 2});
  params.v = ConstView(v.data(), DType::kF64, {1, 4, 1, 2});
  params.mix = ConstView(mix.data(), DType::kF64, {2, 2});
  params.chunk = 2;
  params.feature_map = FeatureMap::kIdentity;
  params.normalizer = normalizer;
  params.eps = 0;
  params.scale = scale;
  chunkwise_forward(params, View(out.data(), DType::kF64, {1, 4, 1, 2}));
  return out;
}

void expect_close(const std::vector<double>& got, const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t index = 0; index < want.size(); ++index) EXPECT_NEAR(got[index], want[index], 1e-14) << index;
}

const std::vector<double> kMix = {1, 0, 0.5, 0.5};
const std::vector<double> kNumerator = {1, 2, 3, 4, 6, 8, 11, 14};

TEST(ChunkwiseExample, WithoutNormalizer) { expect_close(run_example(kMix, Normalizer::kNone, 1.0), kNumerator); }

TEST(ChunkwiseExample, DefaultScaleIsOneOverRootD) {
  std::vector<double> want = kNumerator;
  for (double& x : want) x /= std::sqrt(2.0);
  expect_close(run_example(kMix, Normalizer::kNone, {}), want);
}

// den: q0.k0 = 1; q1.(k0 + k1) = 1; 0.5 (q2.z0) + 0.5 (q2.k2) = 2; 0.5 (q3.z0) + 0.5 (q3.(k2 + k3)) = 3
TEST(ChunkwiseExample, Paper) {
  expect_close(run_example(kMix, Normalizer::kPaper, {}), {1, 2, 3, 4, 3, 4, 11.0 / 3, 14.0 / 3});
}

TEST(ChunkwiseExample, AboveTheDiagonalIsNeverRead) {
  const std::vector<double> mix = {1, std::nan(""), 0.5, 0.5};
  expect_close(run_example(mix, Normalizer::kNone, 1.0), kNumerator);
}

}  // namespace
}  // namespace mhla
