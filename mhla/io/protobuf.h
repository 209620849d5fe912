// protobuf's wire format, written by hand: a message is a row of fields, each a key and a value.
//   key = field * 8 + type;  type 0 varint, 1 eight bytes, 2 length and bytes, 5 four bytes
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

namespace mhla::protobuf {

template <class Word>
void put_little_endian(std::string& out, Word word) {
  for (std::size_t i = 0; i < sizeof word; ++i) out += static_cast<char>(word >> (8 * i) & 0xff);
}

inline void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

inline void put_key(std::string& out, int field, int type) {
  put_varint(out, static_cast<std::uint64_t>(field) * 8 + static_cast<std::uint64_t>(type));
}

inline void put_int(std::string& out, int field, std::int64_t value) {
  put_key(out, field, 0);
  put_varint(out, static_cast<std::uint64_t>(value));
}

inline void put_double(std::string& out, int field, double value) {
  put_key(out, field, 1);
  put_little_endian(out, std::bit_cast<std::uint64_t>(value));
}

inline void put_float(std::string& out, int field, float value) {
  put_key(out, field, 5);
  put_little_endian(out, std::bit_cast<std::uint32_t>(value));
}

// The head of a field of so many bytes, for those that are written elsewhere.
inline void put_length(std::string& out, int field, std::uint64_t bytes) {
  put_key(out, field, 2);
  put_varint(out, bytes);
}

inline void put_bytes(std::string& out, int field, std::string_view bytes) {
  put_length(out, field, bytes.size());
  out += bytes;
}

}  // namespace mhla::protobuf
