// Every metric against recorded values of the published code, and against what must hold for any features.
#include <gtest/gtest.h>

#include <algorithm>

#include "mhla/core/error.h"
#include "mhla/diffusion/metrics/frechet.h"
#include "mhla/diffusion/metrics/inception_score.h"
#include "mhla/diffusion/metrics/metrics_fixture.h"
#include "mhla/diffusion/metrics/metrics_recorded.h"
#include "mhla/diffusion/metrics/neighbours.h"
#include "mhla/diffusion/metrics/numpy_shuffle.h"
#include "mhla/io/recorded_arrays_fixture.h"
#include "mhla/testing/messages.h"

namespace mhla {
namespace {

void expect_close(double got, double want, double relative = 1e-9) {
  EXPECT_LE(std::abs(got - want), relative * std::max(1e-3, std::abs(want))) << got << " " << want;
}

FeatureStats stats_of(const ConstView& rows) {
  FeatureStats stats(rows.shape[1]);
  stats.add(rows);
  return stats;
}

double frechet_of(const ConstView& samples, const ConstView& reference) {
  return frechet_distance(stats_of(samples), stats_of(reference));
}

TEST(Metrics, RecordedCases) {
  for (const char* name : {"fid_24", "fid_2048", "sfid", "inception_score", "kid", "precision_recall"})
    expect_recorded_arrays("metrics", name, metrics_recorded(), 1e-8);
}

TEST(Frechet, OfGaussiansInOneDimension) {
  // (m - m')^2 + (s - s')^2
  const std::vector<double> a = {1, 2, 3, 4, 5}, b = {10, 14, 18};
  const double sa = std::sqrt(2.5), sb = 4.0;
  expect_close(frechet_of({a.data(), DType::kF64, {5, 1}}, {b.data(), DType::kF64, {3, 1}}),
               11.0 * 11.0 + (sa - sb) * (sa - sb), 1e-13);
}

TEST(Frechet, ASetFromItselfIsZero) {
  for (const std::int64_t images : {5, 40, 1300}) {
    const MadeFeatures made(images, 16, 3);
    EXPECT_LE(frechet_of(made.view(), made.view()), 1e-11) << images;
  }
}

// While N <= d rows are kept, then a covariance: both sides of the border are the same function.
TEST(Frechet, RowsAndCovariancesAgree) {
  const MadeFeatures few(30, 40, 1), many(600, 40, 2, 0.5);
  const FeatureStats rows = stats_of(few.view()), whole = stats_of(many.view());
  const FeatureStats moments = FeatureStats::from_moments(rows.mean(), rows.covariance(), 30);
  const FeatureStats factor = FeatureStats::from_factor(rows.mean(), rows.factor(), 30);
  const double want = frechet_distance(rows, whole);
  EXPECT_GT(want, 1.0);
  expect_close(frechet_distance(factor, whole), want, 1e-13);
  expect_close(frechet_distance(moments, whole), want, 1e-6);  // a singular covariance: the root of rounding errors
}

TEST(FeatureStats, TheSameBitsForAnyBatches) {
  const MadeFeatures made(1500, 24, 5, 100.0);  // a mean far from 0
  const FeatureStats once = stats_of(made.view());
  FeatureStats pieces(24);
  for (std::int64_t first = 0, size = 1; first < 1500; first += size, size = size * 2 + 1) {
    const std::int64_t count = std::min(size, 1500 - first);
    pieces.add({made.values.data() + first * 24, DType::kF32, {count, 24}});
  }
  EXPECT_EQ(once.images(), pieces.images());
  EXPECT_EQ(once.mean(), pieces.mean());
  EXPECT_EQ(once.covariance().values, pieces.covariance().values);
  // Two passes in long double.
  const std::vector<double> mean = once.mean();
  const Matrix covariance = once.covariance();
  for (const auto& [a, b] : {std::pair{0, 0}, {3, 17}, {23, 1}}) {
    long double ma = 0, mb = 0, sum = 0;
    for (int i = 0; i < 1500; ++i) ma += made.values[i * 24 + a], mb += made.values[i * 24 + b];
    ma /= 1500, mb /= 1500;
    for (int i = 0; i < 1500; ++i) sum += (made.values[i * 24 + a] - ma) * (made.values[i * 24 + b] - mb);
    expect_close(mean[static_cast<std::size_t>(a)], static_cast<double>(ma), 1e-14);
    expect_close(covariance.at(a, b), static_cast<double>(sum / 1499), 1e-11);
  }
}

TEST(FeatureStats, WhatIsRefused) {
  MadeFeatures made(4, 3, 1);
  FeatureStats stats(3);
  EXPECT_THROW(stats.covariance(), Error);
  EXPECT_EQ(message_of([&] { frechet_distance(stats, stats); }),
            "frechet_distance: samples has 0 images, expected at least 2");
  made.values[5] = std::nanf("");
  EXPECT_EQ(message_of([&] { stats.add(made.view(), "samples"); }),
            "FeatureStats: samples[1, 2] is nan, expected finite features");
  EXPECT_EQ(message_of([&] { stats.add(MadeFeatures(2, 5, 1).view(), "samples"); }),
            "FeatureStats: samples has 5 features, expected 3");
  Matrix lopsided(2, 2);
  lopsided.at(0, 0) = lopsided.at(1, 1) = 1.0, lopsided.at(0, 1) = 0.5;
  EXPECT_NE(message_of([&] { FeatureStats::from_moments({0, 0}, lopsided, 10); }).find("symmetric"), std::string::npos);
  lopsided.at(0, 0) = -1.0;
  EXPECT_NE(message_of([&] {
              FeatureStats::from_moments({0, 0}, lopsided, 10);
            }).find("at least 0"),
            std::string::npos);
}

TEST(InceptionScore, Bounds) {
  // Sure of one of 4 classes each: 4. The same answer for all: 1.
  std::vector<float> sure(16, 0.0f), same(16, 0.0f);
  for (std::size_t i = 0; i < 4; ++i) sure[5 * i] = 200.0f, same[4 * i] = 3.0f;
  expect_close(inception_score({sure.data(), DType::kF32, {4, 4}}).mean, 4.0, 1e-12);
  expect_close(inception_score({same.data(), DType::kF32, {4, 4}}).mean, 1.0, 1e-12);
  EXPECT_EQ(inception_score({same.data(), DType::kF32, {4, 4}}, {.part = 3}).parts, 2);
  EXPECT_EQ(message_of([&] {
              inception_score({same.data(), DType::kF32, {4, 4}}, ScoreParts::torch_fidelity());
            }),
            "inception_score: logits has 4 images, expected at least 10");
}

TEST(NumpyShuffle, IsNumpysOrder) {  // numpy.random.RandomState(2020).permutation(10), twice
  NumpyShuffle shuffle(2020);
  EXPECT_EQ(shuffle.permutation(10), (std::vector<std::int64_t>{2, 4, 9, 1, 5, 7, 6, 3, 8, 0}));
  EXPECT_EQ(shuffle.permutation(10), (std::vector<std::int64_t>{5, 7, 6, 4, 3, 1, 2, 8, 9, 0}));
}

double plain_kernel_distance(const MadeFeatures& x, const MadeFeatures& y) {
  const auto mean_kernel = [](const MadeFeatures& a, const MadeFeatures& b, bool same) {
    double sum = 0.0;
    for (std::int64_t i = 0; i < a.images; ++i)
      for (std::int64_t j = 0; j < b.images; ++j) {
        double dot = 0.0;
        for (std::int64_t k = 0; k < a.dim; ++k) dot += double{a.values[i * a.dim + k]} * b.values[j * a.dim + k];
        if (!same || i != j) sum += std::pow(dot / static_cast<double>(a.dim) + 1.0, 3);
      }
    return sum / static_cast<double>(a.images * (same ? a.images - 1 : b.images));
  };
  return mean_kernel(x, x, true) + mean_kernel(y, y, true) - 2 * mean_kernel(x, y, false);
}

TEST(KernelDistance, BlocksAndUnequalCounts) {  // 1100 rows are two blocks
  const MadeFeatures x(1100, 6, 1), y(900, 6, 2, 0.3);
  expect_close(kernel_distance(x.view(), y.view()), plain_kernel_distance(x, y), 1e-10);
  // One subset of all images is the whole.
  const MadeFeatures z(900, 6, 3);
  const KernelDistance subset = subset_kernel_distance(z.view(), y.view(), {.subsets = 1, .size = 900, .seed = 1});
  expect_close(subset.mean, kernel_distance(z.view(), y.view()), 1e-10);
  EXPECT_EQ(subset.deviation, 0.0);
  EXPECT_EQ(message_of([&] { subset_kernel_distance(x.view(), y.view()); }),
            "kid: reference has 900 images, expected at least 1000");
}

TEST(Neighbours, BlocksAgainstPlainDistances) {
  const MadeFeatures x(1100, 5, 1), y(1200, 5, 2, 0.4);
  const auto squared = [](const MadeFeatures& a, std::int64_t i, const MadeFeatures& b, std::int64_t j) {
    double sum = 0.0;
    for (std::int64_t k = 0; k < a.dim; ++k)
      sum += std::pow(double{a.values[i * a.dim + k]} - b.values[j * a.dim + k], 2);
    return sum;
  };
  const std::vector<double> radii = squared_radii(x.view(), 4);
  for (const std::int64_t i : {std::int64_t{0}, std::int64_t{1023}, std::int64_t{1099}}) {
    std::vector<double> all;
    for (std::int64_t j = 0; j < x.images; ++j) {
      if (j != i) all.push_back(squared(x, i, x, j));
    }
    std::nth_element(all.begin(), all.begin() + 3, all.end());
    expect_close(radii[static_cast<std::size_t>(i)], all[3], 1e-10);
  }
  const std::vector<Nearest> nearest = nearest_rows(x.view(), y.view());
  for (const std::int64_t i : {std::int64_t{7}, std::int64_t{1050}}) {
    const Nearest& got = nearest[static_cast<std::size_t>(i)];
    expect_close(got.squared_distance, squared(x, i, y, got.index), 1e-10);
    for (std::int64_t j = 0; j < y.images; ++j) ASSERT_GE(squared(x, i, y, j), got.squared_distance * (1 - 1e-9));
  }
}

TEST(Neighbours, CopiesAreAtDistanceZero) {
  // Far from the origin, where |a|^2 + |b|^2 - 2 a.b cancels, and in f64, where its products are rounded.
  const MadeFeatures made(300, 64, 9, 50.0);
  std::vector<double> thirds;
  for (const float value : made.values) thirds.push_back(value / 3.0);
  const ConstView rows(thirds.data(), DType::kF64, {300, 64});
  const std::vector<Nearest> nearest = nearest_rows(rows, rows);
  for (std::size_t i = 0; i < nearest.size(); ++i) {
    EXPECT_EQ(nearest[i].index, static_cast<std::int64_t>(i));
    EXPECT_EQ(nearest[i].squared_distance, 0.0);
  }
  const NeighbourMetrics same = neighbour_metrics(rows, rows);
  EXPECT_EQ(same.precision, 1.0);
  EXPECT_EQ(same.recall, 1.0);
  EXPECT_EQ(same.coverage, 1.0);
  EXPECT_EQ(message_of([&] { neighbour_metrics(MadeFeatures(3, 64, 1).view(), rows); }),
            "neighbours: samples has 3 images, expected at least 4");
}

}  // namespace
}  // namespace mhla
