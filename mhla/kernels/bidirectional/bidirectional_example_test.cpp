// The reference of the bidirectional form against numbers worked out by hand: M = 2, C = 2, D = E = 2.
#include <gtest/gtest.h>

#include "mhla/kernels/bidirectional/bidirectional.h"

namespace mhla {
namespace {

const std::vector<double> kQ = {1, 0, 0, 1, 1, 1, 2, 0};
const std::vector<double> kK = {1, 0, 1, 1, 0, 1, 1, 0};
const std::vector<double> kV = {1, 2, 3, 4, 5, 6, 7, 8};
const std::vector<double> kMix = {0.75, 0.25, 0.4, 0.6};

std::vector<double> run_example(Normalizer normalizer) {
  std::vector<double> out(8, -1);
  BidirectionalParams params;
  params.q = ConstView(kQ.data(), DType::kF64, {1, 4, 1, 2});
  params.k = ConstView(kK.data(), DType::kF64, {1, 4, 1, 2});
  params.v = ConstView(kV.data(), DType::kF64, {1, 4, 1, 2});
  params.mix = ConstView(kMix.data(), DType::kF64, {2, 2});
  params.layout = Layout::line(2);
  params.feature_map = FeatureMap::kIdentity;
  params.normalizer = normalizer;
  params.eps = 0;
  bidirectional_forward(params, View(out.data(), DType::kF64, {1, 4, 1, 2}));
  return out;
}

void expect_close(const std::vector<double>& got, const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t index = 0; index < want.size(); ++index) EXPECT_NEAR(got[index], want[index], 1e-14) << index;
}

TEST(BidirectionalExample, Numerator) {
  expect_close(run_example(Normalizer::kNone), {4.75, 6.5, 3.5, 4.5, 10.0, 12.4, 11.6, 14.4});
}

TEST(BidirectionalExample, Paper) {
  expect_close(run_example(Normalizer::kPaper),
               {4.75 / 1.75, 6.5 / 1.75, 3.5, 4.5, 10.0 / 2.4, 12.4 / 2.4, 11.6 / 2.8, 14.4 / 2.8});
}

TEST(BidirectionalExample, Official) {
  expect_close(run_example(Normalizer::kOfficial), {2.375, 3.25, 2.8, 3.6, 5.0, 6.2, 7.25, 9.0});
}

}  // namespace
}  // namespace mhla
