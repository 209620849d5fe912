// What names a tokenizer in shards and states. Private to this room.
#pragma once

#include <cstdint>
#include <string_view>

namespace mhla {

// FNV-1a, 64 bits, of lengths and bytes: stable across machines and versions, part of shard files.
class Fingerprint {
 public:
  void add(std::uint64_t number) {
    for (int shift = 0; shift < 64; shift += 8) add_byte(static_cast<std::uint8_t>(number >> shift));
  }
  void add(std::string_view text) {
    add(text.size());
    for (const char c : text) add_byte(static_cast<std::uint8_t>(c));
  }
  [[nodiscard]] std::uint64_t value() const { return value_; }

 private:
  void add_byte(std::uint8_t byte) { value_ = (value_ ^ byte) * 0x100000001b3u; }
  std::uint64_t value_ = 0xcbf29ce484222325u;
};

}  // namespace mhla
