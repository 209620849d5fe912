// What is packed comes back; cut short, bent, or followed by something else it is an Error.
#include "mhla/io/codecs/gzip.h"

#include <gtest/gtest.h>

#include "mhla/testing/messages.h"
#include "mhla/testing/random.h"

namespace mhla {
namespace {

using Bytes = std::vector<std::byte>;

Bytes some_bytes(std::size_t size, int values) {
  Random random(size);
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.below(values));
  return bytes;
}

std::string gunzip_refused(const Bytes& bytes) {
  return message_of([&] { gunzip(bytes, "some.gz"); });
}

TEST(Gzip, WhatIsPackedComesBack) {
  for (const std::size_t size : {0, 1, 1000, 65536, 300000})
    for (const int values : {1, 7, 256}) {
      const Bytes bytes = some_bytes(size, values);
      EXPECT_EQ(gunzip(gzip(bytes), "test"), bytes) << size << " bytes of " << values << " values";
    }
}

TEST(Gzip, MembersOneAfterTheOther) {
  const Bytes first = some_bytes(1000, 5), second = some_bytes(70000, 256);
  Bytes packed = gzip(first);
  const Bytes more = gzip(second);
  packed.insert(packed.end(), more.begin(), more.end());
  Bytes both = first;
  both.insert(both.end(), second.begin(), second.end());
  EXPECT_EQ(gunzip(packed, "test"), both);
}

TEST(Gzip, CutShortIsAnErrorEverywhere) {
  const Bytes whole = gzip(some_bytes(3000, 9));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const std::string message = gunzip_refused(Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)));
    ASSERT_EQ(message.rfind("some.gz: ", 0), 0u) << size << ": " << message;
  }
}

TEST(Gzip, ABentByteIsAnError) {
  const Bytes whole = gzip(some_bytes(500, 256));
  for (std::size_t at = 10; at < whole.size(); ++at) {  // the checksum covers what follows the head
    Bytes bent = whole;
    bent[at] ^= std::byte{1};
    EXPECT_EQ(gunzip_refused(bent).rfind("some.gz: ", 0), 0u) << at;
  }
}

TEST(Gzip, WhatFollowsIsAnError) {
  Bytes bytes = gzip(some_bytes(10, 9));
  bytes.resize(bytes.size() + 3);
  EXPECT_EQ(gunzip_refused(bytes), "some.gz: 3 bytes after the end of gzip data");
}

// A thousand times the input: the limit holds before memory is taken.
TEST(Gzip, TheLimitHolds) {
  const Bytes packed = gzip(Bytes(1 << 20));
  EXPECT_LT(packed.size(), 2000u);
  EXPECT_EQ(message_of([&] { gunzip(packed, "bomb", 1000); }),
            "bomb: more than 1000 bytes unpacked, the most that is read here");
  EXPECT_EQ(gunzip(packed, "test", 1 << 20).size(), 1u << 20);
}

}  // namespace
}  // namespace mhla
