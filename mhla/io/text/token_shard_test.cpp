#include "mhla/io/text/token_shard.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>

#include "mhla/core/error.h"
#include "mhla/io/crc32c.h"
#include "mhla/testing/messages.h"

namespace mhla {
namespace {

using Ids = std::vector<std::uint32_t>;

class TokenShardTest : public testing::Test {
 protected:
  TokenShardTest() : path_(std::filesystem::path(testing::TempDir()) / str("mhla_shard_", ::getpid())) {}
  ~TokenShardTest() override { std::filesystem::remove(path_); }

  std::vector<std::byte> written(std::int64_t vocab_size) const {
    TokenShardWriter writer(77, vocab_size);
    writer.add(Ids{1, 2, 3});
    writer.add(Ids{static_cast<std::uint32_t>(vocab_size - 1)});
    writer.add(Ids{5, 0});
    writer.write(path_);
    return read_file(path_);
  }

  // What is said of the file with `size` bytes at `at` replaced, its head made to fit.
  static std::string refused(std::vector<std::byte> bytes, std::size_t at, std::uint64_t value, std::size_t size) {
    std::memcpy(bytes.data() + at, &value, size);
    const std::uint32_t crc = crc32c(std::span(bytes).first(60));
    std::memcpy(bytes.data() + 60, &crc, 4);
    return message_of([&] { TokenShard::from_memory(bytes, "s").verify(); });
  }

  std::filesystem::path path_;
};

TEST_F(TokenShardTest, ThereAndBack) {
  for (const std::int64_t vocab_size : {300, 65536, 65537, 1 << 24}) {
    const std::vector<std::byte> bytes = written(vocab_size);
    const TokenShard shard = TokenShard::read(path_);
    shard.verify();
    EXPECT_EQ(shard.fingerprint(), 77u);
    EXPECT_EQ(shard.vocab_size(), vocab_size);
    EXPECT_EQ(shard.token_bytes(), vocab_size <= 65536 ? 2 : 4);
    EXPECT_EQ(shard.documents(), 3);
    EXPECT_EQ(bytes.size(), 64u + 4 * 8 + 6 * static_cast<std::size_t>(shard.token_bytes()));
    EXPECT_EQ(std::vector<std::uint64_t>(shard.offsets().begin(), shard.offsets().end()),
              (std::vector<std::uint64_t>{0, 3, 4, 6}));
    std::vector<std::int64_t> tokens(4);
    shard.copy(2, 4, tokens.data());
    EXPECT_EQ(tokens, (std::vector<std::int64_t>{3, vocab_size - 1, 5, 0}));
  }
}

TEST_F(TokenShardTest, WithoutDocuments) {
  TokenShardWriter(1, 300).write(path_);
  const TokenShard shard = TokenShard::read(path_);
  shard.verify();
  EXPECT_EQ(shard.documents(), 0);
  EXPECT_EQ(shard.tokens(), 0);
}

TEST_F(TokenShardTest, DamageIsNamed) {
  const std::vector<std::byte> good = written(300);
  for (std::size_t size = 0; size < good.size(); ++size)  // cut short anywhere
    EXPECT_NE(message_of([&] { TokenShard::from_memory(std::span(good).first(size), "s"); }), "nothing was thrown");
  for (std::size_t at = 0; at < good.size(); ++at) {  // one bit anywhere
    std::vector<std::byte> bytes = good;
    bytes[at] ^= std::byte{4};
    EXPECT_NE(message_of([&] { TokenShard::from_memory(bytes, "s").verify(); }), "nothing was thrown") << at;
    EXPECT_NE(message_of([&] { TokenShard::from_memory(bytes, "s").verify_checksum(); }), "nothing was thrown") << at;
  }
  EXPECT_EQ(refused(good, 0, 0, 8), "s: is no token shard");
  EXPECT_EQ(refused(good, 8, 2, 4), "s: is a token shard of version 2, expected 1");
  EXPECT_EQ(refused(good, 12, 4, 4), "s: 4 bytes a token, which a vocabulary of 300 does not have");
  EXPECT_EQ(refused(good, 24, 0, 8), "s: a vocabulary of 0, expected 1 to 16777216");
  EXPECT_EQ(refused(good, 24, 299, 8), "s: token 3 is 299, expected 0 to 298");
  EXPECT_EQ(refused(good, 32, ~std::uint64_t{0}, 8),
            "s: 108 bytes do not hold 18446744073709551615 documents of 6 tokens");
  EXPECT_EQ(refused(good, 40, 7, 8), "s: 108 bytes do not hold 3 documents of 7 tokens");
  EXPECT_EQ(refused(good, 72, 4, 8), "s: document 1 has no tokens");
  EXPECT_EQ(refused(good, 88, 7, 8), "s: documents from token 0 to 7, expected 0 to 6");
  EXPECT_EQ(refused(good, 104, 9, 2), "s: the checksum is wrong, the token shard is damaged");
}

TEST_F(TokenShardTest, CallersMistakes) {
  TokenShardWriter writer(1, 300);
  EXPECT_EQ(message_of([&] { writer.add(Ids{}); }), "token shard: document 0 has no tokens");
  EXPECT_EQ(message_of([&] { writer.add(Ids{1, 300}); }), "token shard: document 0 has token 300, expected 0 to 299");
  EXPECT_EQ(writer.tokens(), 0);
  written(300);
  std::int64_t token = 0;
  EXPECT_EQ(message_of([&] { TokenShard::read(path_).copy(6, 1, &token); }),
            path_.string() + ": 1 tokens from 6 on, expected some of 6");
}

}  // namespace
}  // namespace mhla
