// The vectors of FIPS 180-4, and text that comes in pieces.
#include "mhla/io/sha256.h"

#include <gtest/gtest.h>

#include <vector>

namespace mhla {
namespace {

std::span<const std::byte> text_bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

TEST(Sha256, PublishedVectors) {
  EXPECT_EQ(sha256(text_bytes("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256(text_bytes("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256(text_bytes("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256(text_bytes(std::string(1000000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, PiecesOfAnySize) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>(i * 7);
  for (std::size_t size = 0; size <= text.size(); size += 11) {  // lengths on both sides of 55, 56, 64
    const std::string part = text.substr(0, size), want = sha256(text_bytes(part));
    for (const std::size_t step : {1u, 3u, 63u, 64u, 65u}) {
      Sha256 sum;
      for (std::size_t at = 0; at < size; at += step) {
        sum.add(text_bytes(part).subspan(at, std::min(step, size - at)));
        (void)sum.digest();  // changes nothing
      }
      EXPECT_EQ(sum.digest(), want) << size << " by " << step;
    }
  }
}

}  // namespace
}  // namespace mhla
