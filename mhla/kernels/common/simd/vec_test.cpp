// The vector helpers on every instruction set of this machine: conversions of all 2^16 patterns, feature maps, the
// register tile, panels and their transpose, each against a few plain lines.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mhla/kernels/common/simd/vec_test.cpp"
#include "hwy/foreach_target.h"
// foreach_target.h first: it includes this file once per instruction set
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "mhla/kernels/common/simd/mix-inl.h"
#include "mhla/kernels/common/simd/targets.h"
#include "mhla/testing/random.h"

HWY_BEFORE_NAMESPACE();
namespace mhla {
namespace HWY_NAMESPACE {
namespace {

bool same(float a, float b) {
  return std::isnan(a) ? std::isnan(b) : std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

template <class T>
void widen_all() {
  std::vector<T> from(65536);
  for (std::uint32_t i = 0; i < 65536; ++i) from[i].bits = static_cast<std::uint16_t>(i);
  std::vector<float> to(65536);
  for (std::size_t i = 0; i < 65536; i += kLanes) store(load(Full(), from.data() + i), Full(), to.data() + i);
  for (std::size_t i = 0; i < 65536; ++i) ASSERT_TRUE(same(to[i], to_f32(from[i]))) << i;
}

// Around every 16-bit value: itself, the middle to its neighbour, and the f32 values beside the middle.
template <class T>
void narrow_all(T (*narrow)(float)) {
  std::vector<float> from;
  for (std::uint32_t i = 0; i < 65535; ++i) {
    const float a = to_f32(T{static_cast<std::uint16_t>(i)}), b = to_f32(T{static_cast<std::uint16_t>(i + 1)});
    const float middle = static_cast<float>((static_cast<double>(a) + b) / 2);
    for (const float x : {a, middle, std::nextafter(middle, a), std::nextafter(middle, b)}) from.push_back(x);
  }
  for (const float x : {65519.0f, 65520.0f, 3.4e38f, -3.4e38f, 1e-45f, INFINITY, -INFINITY}) from.push_back(x);
  while (from.size() % kLanes != 0) from.push_back(0.0f);
  std::vector<T> to(from.size());
  for (std::size_t i = 0; i < from.size(); i += kLanes) store(load(Full(), from.data() + i), Full(), to.data() + i);
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (std::isnan(from[i]))
      ASSERT_TRUE(std::isnan(to_f32(to[i]))) << from[i];
    else
      ASSERT_EQ(to[i].bits, narrow(from[i]).bits) << from[i];
  }
}

void conversions() {
  widen_all<bf16>();
  widen_all<f16>();
  narrow_all<bf16>(to_bf16);
  narrow_all<f16>(to_f16);
}

void feature_maps() {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float x : {-100.0f, -2.5f, -1e-30f, 0.0f, 1e-30f, 0.7f, 50.0f, nan}) {
    const auto value = [&](auto map)
                           HWY_ATTR { return hn::GetLane(feature<decltype(map)::value>(Full(), hn::Set(Full(), x))); };
    const auto slope = [&](auto map) HWY_ATTR {
      return hn::GetLane(feature_gradient<decltype(map)::value>(Full(), hn::Set(Full(), x), hn::Set(Full(), 3.0f)));
    };
    using Relu = std::integral_constant<FeatureMap, FeatureMap::kRelu>;
    using ReluEps = std::integral_constant<FeatureMap, FeatureMap::kReluEps>;
    using Elu1 = std::integral_constant<FeatureMap, FeatureMap::kElu1>;
    using Identity = std::integral_constant<FeatureMap, FeatureMap::kIdentity>;
    if (std::isnan(x)) {
      EXPECT_TRUE(std::isnan(value(Relu())) && std::isnan(value(ReluEps())) && std::isnan(value(Elu1())));
      continue;
    }
    EXPECT_EQ(value(Identity()), x);
    EXPECT_EQ(value(Relu()), x > 0 ? x : 0.0f);
    EXPECT_EQ(value(ReluEps()), (x > 0 ? x : 0.0f) + 1e-6f);
    EXPECT_NEAR(value(Elu1()), x > 0 ? x + 1 : std::exp(x), 2e-7 * std::abs(x > 0 ? x + 1 : std::exp(x)));
    EXPECT_EQ(slope(Identity()), 3.0f);
    EXPECT_EQ(slope(Relu()), x > 0 ? 3.0f : 0.0f);
    EXPECT_NEAR(slope(Elu1()), x > 0 ? 3.0f : 3.0f * std::exp(x), 1e-6f);
  }
}

// Row r, column c of a matrix in panels.
float at(const std::vector<float>& panels, std::int64_t rows, std::int64_t columns, std::int64_t r, std::int64_t c) {
  const PanelPlace place = panel_of(columns, c);
  return panels[static_cast<std::size_t>(place.first * rows + r * place.width + c - place.first)];
}

void products() {
  Random random(7);
  for (const std::int64_t rows : {1, 2, 3, 5, 8, 17, 40, 64}) {
    for (const std::int64_t columns : {1, 3, 4, 7, 8, 9, 16, 20, 24, 31, 33, 40, 72, 100}) {
      const std::int64_t tokens = 1 + random.below(20);
      std::vector<float> a(static_cast<std::size_t>(tokens * kRow), 0.0f), b = a;
      for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t r = 0; r < rows; ++r)
          a[static_cast<std::size_t>(t * kRow + r)] = static_cast<float>(random.normal());
        for (std::int64_t c = 0; c < columns; ++c)
          b[static_cast<std::size_t>(t * kRow + c)] = static_cast<float>(random.normal());
      }
      std::vector<float> S(static_cast<std::size_t>(rows * padded_columns(columns)), std::nanf(""));
      std::vector<float> turned(static_cast<std::size_t>(columns * padded_columns(rows)), std::nanf(""));
      summary_product(a.data(), b.data(), tokens, rows, columns, Sum::kStart, S.data(), NoPrefetch());
      transpose_panels(S.data(), rows, columns, turned.data());
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t c = 0; c < columns; ++c) {
          float want = 0;  // the promised order: one chain of fused multiply-adds over the tokens
          for (std::int64_t t = 0; t < tokens; ++t) {
            const float x = a[static_cast<std::size_t>(t * kRow + r)], y = b[static_cast<std::size_t>(t * kRow + c)];
            want = hn::GetLane(hn::MulAdd(hn::Set(Full(), x), hn::Set(Full(), y), hn::Set(Full(), want)));
          }
          ASSERT_EQ(at(S, rows, columns, r, c), want) << rows << "x" << columns << " at " << r << ", " << c;
          ASSERT_EQ(at(turned, columns, rows, c, r), want) << "transposed";
        }
      }
      for (const float x : S) ASSERT_FALSE(std::isnan(x));  // the padding is written too
      for (const float x : turned) ASSERT_FALSE(std::isnan(x));
      std::vector<float> y(static_cast<std::size_t>(tokens * columns));
      readout_product(a.data(), S.data(), tokens, rows, columns, NoPrefetch(),
                      [&](auto d, std::int64_t t, std::int64_t c, std::int64_t used, auto value) HWY_ATTR {
                        store_some(value, d, y.data() + t * columns + c,
                                   HWY_MIN(used, static_cast<std::int64_t>(hn::Lanes(d))));
                      });
      for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t c = 0; c < columns; ++c) {
          double want = 0, size = 0;
          for (std::int64_t r = 0; r < rows; ++r) {
            const double term =
                static_cast<double>(a[static_cast<std::size_t>(t * kRow + r)]) * at(S, rows, columns, r, c);
            want += term, size += std::abs(term);
          }
          ASSERT_LE(std::abs(y[static_cast<std::size_t>(t * columns + c)] - want), 1e-6 * size + 1e-30);
        }
      }
    }
  }
}

void mixing() {
  Random random(8);
  for (const std::int64_t M : {1, 3, 4, 8, 13, 32, 130}) {
    const std::int64_t Z = 5 * kLanes, stride = Z + 16;
    std::vector<float> S(static_cast<std::size_t>(M * stride)), packed(static_cast<std::size_t>(packed_mix_size(M)));
    std::vector<float> mix(static_cast<std::size_t>(M * M)), strip(static_cast<std::size_t>(M * mix_strip_width(M)));
    for (float& x : S) x = static_cast<float>(random.normal());
    for (float& x : mix) x = static_cast<float>(random.normal());
    pack_mix(
        M, M, [&](std::int64_t i, std::int64_t b) HWY_ATTR { return mix[static_cast<std::size_t>(i * M + b)]; },
        packed.data());
    std::vector<float> in_place = S, dm(static_cast<std::size_t>(M * M), 1.0f);
    mix_columns(in_place.data(), in_place.data(), stride, M, M, {packed.data(), M}, false, 0, Z, strip.data());
    mix_gradient(in_place.data(), S.data(), stride, Z, 0, M, 0, M, dm.data(), M);
    for (std::int64_t i = 0; i < M; ++i) {
      for (std::int64_t x = 0; x < Z; ++x) {
        double want = 0, size = 0;
        for (std::int64_t b = 0; b < M; ++b) {
          const double term = static_cast<double>(mix[static_cast<std::size_t>(i * M + b)]) *
                              S[static_cast<std::size_t>(b * stride + x)];
          want += term, size += std::abs(term);
        }
        ASSERT_LE(std::abs(in_place[static_cast<std::size_t>(i * stride + x)] - want), 2e-6 * size)
            << M << " " << i << " " << x;
      }
      for (std::int64_t b = 0; b < M; ++b) {
        double want = 1, size = 1;
        for (std::int64_t x = 0; x < Z; ++x) {
          const double term = static_cast<double>(in_place[static_cast<std::size_t>(i * stride + x)]) *
                              S[static_cast<std::size_t>(b * stride + x)];
          want += term, size += std::abs(term);
        }
        ASSERT_LE(std::abs(dm[static_cast<std::size_t>(i * M + b)] - want), 2e-6 * size);
      }
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace mhla
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mhla {
namespace {

HWY_EXPORT(conversions);
HWY_EXPORT(feature_maps);
HWY_EXPORT(products);
HWY_EXPORT(mixing);

template <class Run>
void on_every_target(Run&& run) {
  for (const std::string& target : simd_targets()) {
    SCOPED_TRACE(target);
    use_simd_target(target);
    run();
  }
  use_simd_target("");
}

TEST(Simd, Conversions) {
  on_every_target([] { HWY_DYNAMIC_DISPATCH(conversions)(); });
}
TEST(Simd, FeatureMaps) {
  on_every_target([] { HWY_DYNAMIC_DISPATCH(feature_maps)(); });
}
TEST(Simd, Products) {
  on_every_target([] { HWY_DYNAMIC_DISPATCH(products)(); });
}
TEST(Simd, Mixing) {
  on_every_target([] { HWY_DYNAMIC_DISPATCH(mixing)(); });
}

TEST(Simd, TargetsByName) {
  const std::vector<std::string> all = simd_targets();
  ASSERT_FALSE(all.empty());
  for (const std::string& target : all) {
    use_simd_target(target);
    EXPECT_EQ(simd_target(), target);
  }
  use_simd_target("");
  EXPECT_EQ(simd_targets(), all);
  EXPECT_THROW(use_simd_target("AVX9000"), std::runtime_error);
}

}  // namespace
}  // namespace mhla
#endif
