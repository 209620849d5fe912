// The records of a zip file, and its checksum and packing through zlib. Private to this room.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "mhla/core/error.h"

namespace mhla {

inline constexpr std::uint32_t kZipLocal = 0x04034b50, kZipEntry = 0x02014b50, kZipEnd = 0x06054b50,
                               kZip64End = 0x06064b50, kZip64Locator = 0x07064b50, kZipDescriptor = 0x08074b50;
inline constexpr std::size_t kZipEndSize = 22, kZip64LocatorSize = 20;

// Little-endian numbers in order; reading past the end is refused.
class ZipReader {
 public:
  ZipReader(std::span<const std::byte> bytes, const std::string& label) : bytes_(bytes), label_(&label) {}

  [[noreturn]] void refuse(const char* what) const { fail(*label_, ": damaged zip: ", what); }
  [[nodiscard]] std::uint64_t at() const { return at_; }
  void seek(std::uint64_t place) {
    if (place > bytes_.size()) refuse("a place outside of the file");
    at_ = place;
  }
  void skip(std::uint64_t count) {
    if (count > bytes_.size() - at_) refuse("it ends too early");
    at_ += count;
  }
  std::uint16_t u16() { return static_cast<std::uint16_t>(number(2)); }
  std::uint32_t u32() { return static_cast<std::uint32_t>(number(4)); }
  std::uint64_t u64() { return number(8); }
  std::string text(std::size_t count) {
    const std::uint64_t begin = at_;
    skip(count);
    return {reinterpret_cast<const char*>(bytes_.data()) + begin, count};
  }

 private:
  std::uint64_t number(std::size_t count) {
    const std::uint64_t begin = at_;
    skip(count);
    std::uint64_t value = 0;
    for (std::size_t i = count; i-- > 0;)
      value = value << 8 | std::to_integer<std::uint64_t>(bytes_[static_cast<std::size_t>(begin) + i]);
    return value;
  }

  std::span<const std::byte> bytes_;
  const std::string* label_;
  std::uint64_t at_ = 0;
};

std::uint32_t zip_checksum(std::uint32_t so_far, std::span<const std::byte> bytes);  // CRC-32; begins with 0
// Fills `out` exactly, or refuses.
void inflate_member(std::span<const std::byte> packed, std::span<std::byte> out, const std::string& label);

}  // namespace mhla
