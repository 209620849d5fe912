#include "mhla/core/hex.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace mhla {
namespace {

TEST(Hex, HasAllDigitsOfItsType) {
  EXPECT_EQ(hex(std::uint8_t{0xa}), "0a");
  EXPECT_EQ(hex(std::uint32_t{0x803}), "00000803");
  EXPECT_EQ(hex(std::uint64_t{0}), "0000000000000000");
  EXPECT_EQ(hex(~std::uint64_t{0}), "ffffffffffffffff");
  EXPECT_EQ(hex(std::uint64_t{0x0123456789abcdef}), "0123456789abcdef");
}

}  // namespace
}  // namespace mhla
