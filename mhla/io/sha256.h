// SHA-256 (FIPS 180-4): the checksum of cached latents, the same as `sha256sum` prints.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace mhla {

class Sha256 {
 public:
  void add(std::span<const std::byte> bytes);
  [[nodiscard]] std::string digest() const;  // 64 hexadecimal digits of all that was added

 private:
  void compress(const std::byte* block);
  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> open_{};  // the last bytes, not a whole block yet
  std::uint64_t length_ = 0;          // bytes
};

std::string sha256(std::span<const std::byte> bytes);
std::string file_sha256(const std::filesystem::path& path);

}  // namespace mhla
