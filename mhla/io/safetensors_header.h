// The checked header of a safetensors file as a compact table. Private to this room.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "mhla/core/dtype.h"
#include "mhla/io/name_index.h"
#include "mhla/io/safetensors.h"

namespace mhla {

inline constexpr std::uint64_t kMaxHeader = 100'000'000;  // the limit of the published reader

// The shortest entry a header can hold takes 53 bytes of text. Here it takes 24, up to 16 in the index and one byte
// per digit of its shape at most, so the table never outgrows the text. Deques, because a vector holds its old
// and new memory at once when it grows.
struct SafetensorsHeader {
  struct Row {
    std::uint64_t begin;      // in the data part
    std::uint32_t name;       // position in `text`
    std::uint32_t name_size;  //
    std::uint32_t shape;      // position in `sizes`
    DType dtype;
    std::uint8_t rank;
  };

  std::string label;               // stands at the head of errors
  std::string text;                // the header; names are decoded in place
  std::deque<Row> rows;            // in the order of the text
  std::deque<std::uint8_t> sizes;  // shapes, 7 bits a byte, low bits first, the top bit on all but the last
  NameIndex index;
  Metadata metadata;

  [[nodiscard]] std::string_view name_at(std::uint32_t row) const {
    return std::string_view(text).substr(rows[row].name, rows[row].name_size);
  }
  [[nodiscard]] std::int64_t bytes_at(std::uint32_t row) const;
  [[nodiscard]] Safetensors::Entry entry(std::uint32_t row) const;

 private:
  template <class Use>
  void each_size(std::uint32_t row, const Use& use) const {
    std::size_t at = rows[row].shape;
    for (int axis = 0; axis < rows[row].rank; ++axis) {
      std::int64_t size = 0;
      int shift = 0;
      for (; sizes[at] >= 0x80; shift += 7) size |= static_cast<std::int64_t>(sizes[at++] & 0x7f) << shift;
      use(size | static_cast<std::int64_t>(sizes[at++]) << shift);
    }
  }
};

// Reads and checks the header of `file`: the length, the JSON, every entry, and that the tensors cover the data part
// exactly. Tensor data is not touched.
SafetensorsHeader read_safetensors_header(std::span<const std::byte> file, const std::string& label);

}  // namespace mhla
