// UTF-8 in messages; what is valid is tested with the parsers that use it.
#include "mhla/io/utf8.h"

#include <gtest/gtest.h>

namespace mhla {
namespace {

TEST(Utf8, StartOfATextHasWholeCharacters) {
  EXPECT_EQ(start_of(""), "");
  EXPECT_EQ(start_of(std::string(40, 'a')), std::string(40, 'a'));
  EXPECT_EQ(start_of(std::string(41, 'a')), std::string(40, 'a') + "...");
  const std::string flower = "\xf0\x9f\x8c\xb8";  // four bytes
  for (std::size_t before = 36; before <= 40; ++before) {
    const std::string letters(before, 'a');
    EXPECT_EQ(start_of(letters + flower + "rest"), (before == 36 ? letters + flower : letters) + "...");
  }
}

}  // namespace
}  // namespace mhla
