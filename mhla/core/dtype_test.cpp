// Exactness of the 16-bit conversions: all 2^16 patterns survive a round trip, ties go to even.
#include "mhla/core/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace mhla {
namespace {

template <class Half>
void round_trip(int exponent_mask, int mantissa_mask) {
  for (std::uint32_t pattern = 0; pattern < 65536; ++pattern) {
    const Half half{static_cast<std::uint16_t>(pattern)};
    const float wide = to_f32(half);
    const Half back = std::is_same_v<Half, bf16> ? Half{to_bf16(wide).bits} : Half{to_f16(wide).bits};
    const bool is_nan =
        (pattern & exponent_mask) == static_cast<std::uint32_t>(exponent_mask) && (pattern & mantissa_mask) != 0;
    if (is_nan) {
      ASSERT_TRUE(std::isnan(wide)) << pattern;
      ASSERT_TRUE(std::isnan(to_f32(back))) << pattern;
    } else {
      ASSERT_EQ(back.bits, pattern);
    }
  }
}

// Between two neighbours a < b: the middle goes to the even pattern, anything beside it to the nearer one.
template <class Half>
void ties(Half (*narrow)(float), std::uint32_t largest) {
  for (std::uint32_t pattern = 0; pattern < largest; ++pattern) {
    const double a = to_f32(Half{static_cast<std::uint16_t>(pattern)});
    const double b = to_f32(Half{static_cast<std::uint16_t>(pattern + 1)});
    const float middle = static_cast<float>((a + b) / 2);
    ASSERT_EQ(narrow(middle).bits, pattern + (pattern & 1)) << pattern;
    ASSERT_EQ(narrow(std::nextafter(middle, 0.0f)).bits, pattern) << pattern;
    ASSERT_EQ(narrow(std::nextafter(middle, INFINITY)).bits, pattern + 1) << pattern;
    ASSERT_EQ(narrow(-middle).bits, (pattern + (pattern & 1)) | 0x8000) << pattern;
  }
}

TEST(DType, EveryPatternSurvives) {
  round_trip<bf16>(0x7f80, 0x7f);
  round_trip<f16>(0x7c00, 0x3ff);
}

TEST(DType, TiesGoToEven) {
  ties<bf16>(to_bf16, 0x7f7f);
  ties<f16>(to_f16, 0x7bff);
}

TEST(DType, OverflowAndNaN) {
  EXPECT_EQ(to_f16(65519.996f).bits, 0x7bff);
  EXPECT_EQ(to_f16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_TRUE(std::isnan(to_f32(to_bf16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(to_f32(to_f16(std::bit_cast<float>(0x7f800001u)))));
}

TEST(DType, OneRoundingFromDouble) {
  // 1 + 2^-8 + 2^-40: f32 first would lose the last bit and then round the tie down to 1.
  bf16 b{};
  store_f64(&b, DType::kBF16, 0, 1.0 + 0x1p-8 + 0x1p-40);
  EXPECT_EQ(b.bits, 0x3f81);
  f16 h{};
  store_f64(&h, DType::kF16, 0, 1.0 + 0x1p-11 + 0x1p-40);
  EXPECT_EQ(h.bits, 0x3c01);
}

}  // namespace
}  // namespace mhla
