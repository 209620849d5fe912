// protobuf messages, read back.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string_view>

namespace mhla {

// Reads what protobuf calls a message; calls `field(number, varint or bits, bytes)` for each.
template <class Field>
void walk_message(std::string_view text, const Field& field) {
  std::size_t at = 0;
  const auto varint = [&] {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<std::uint8_t>(text.at(at++));
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
  };
  while (at < text.size()) {
    const std::uint64_t key = varint();
    std::uint64_t number = 0;
    std::string_view bytes;
    switch (key % 8) {
      case 0: number = varint(); break;
      case 1: std::memcpy(&number, text.substr(at, 8).data(), 8), at += 8; break;
      case 2: number = varint(), bytes = text.substr(at, number), at += number; break;
      case 5: std::memcpy(&number, text.substr(at, 4).data(), 4), at += 4; break;
      default: FAIL() << "wire type " << key % 8;
    }
    ASSERT_LE(at, text.size());
    field(key / 8, number, bytes);
  }
}

}  // namespace mhla
