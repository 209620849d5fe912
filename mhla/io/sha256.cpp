#include "mhla/io/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "mhla/core/hex.h"
#include "mhla/io/file.h"

namespace mhla {
namespace {

constexpr std::size_t kBlock = 64;

// First 32 bits of the fractions of the cube roots of the first 64 primes.
constexpr std::uint32_t kRounds[] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

std::uint32_t big_endian(const std::byte* at) {
  std::uint32_t word = 0;
  for (int i = 0; i < 4; ++i) word = word << 8 | std::to_integer<std::uint32_t>(at[i]);
  return word;
}

}  // namespace

void Sha256::compress(const std::byte* block) {
  std::uint32_t w[64];
  for (int i = 0; i < 16; ++i) w[i] = big_endian(block + 4 * i);
  for (int i = 16; i < 64; ++i) {
    const std::uint32_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3)) + w[i - 7] +
           (std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10));
  }
  std::array<std::uint32_t, 8> s = state_;
  for (int i = 0; i < 64; ++i) {
    const std::uint32_t sum1 = std::rotr(s[4], 6) ^ std::rotr(s[4], 11) ^ std::rotr(s[4], 25);
    const std::uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]);
    const std::uint32_t first = s[7] + sum1 + choice + kRounds[i] + w[i];
    const std::uint32_t sum0 = std::rotr(s[0], 2) ^ std::rotr(s[0], 13) ^ std::rotr(s[0], 22);
    const std::uint32_t majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
    s = {first + sum0 + majority, s[0], s[1], s[2], s[3] + first, s[4], s[5], s[6]};
  }
  for (std::size_t i = 0; i < 8; ++i) state_[i] += s[i];
}

void Sha256::add(std::span<const std::byte> bytes) {
  std::size_t open = length_ % kBlock;
  length_ += bytes.size();
  if (open > 0) {
    const std::size_t taken = std::min(bytes.size(), kBlock - open);
    std::copy_n(bytes.begin(), taken, open_.begin() + static_cast<std::ptrdiff_t>(open));
    bytes = bytes.subspan(taken);
    if (open + taken < kBlock) return;
    compress(open_.data());
  }
  for (; bytes.size() >= kBlock; bytes = bytes.subspan(kBlock)) compress(bytes.data());
  std::copy(bytes.begin(), bytes.end(), open_.begin());
}

std::string Sha256::digest() const {
  Sha256 last = *this;
  std::array<std::byte, 2 * kBlock> end{std::byte{0x80}};
  const std::size_t open = length_ % kBlock, padding = open < 56 ? 56 - open : 120 - open;
  for (std::size_t i = 0; i < 8; ++i) end[padding + i] = static_cast<std::byte>(length_ * 8 >> (56 - 8 * i));
  last.add(std::span(end).first(padding + 8));
  std::string text;
  for (const std::uint32_t word : last.state_) text += hex(word);
  return text;
}

std::string sha256(std::span<const std::byte> bytes) {
  Sha256 sum;
  sum.add(bytes);
  return sum.digest();
}

std::string file_sha256(const std::filesystem::path& path) { return sha256(MappedFile(path).bytes()); }

}  // namespace mhla
