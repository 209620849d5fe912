// NumPy's .npy: a magic number, a Python dictionary as text (element type, order, shape), then the elements.
// Versions 1 to 3 are read, 1.0 is written, with the header padded to 64 bytes as NumPy does. Nothing is unpickled:
// arrays of objects are refused, as are big-endian, complex and text elements.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "mhla/core/view.h"

namespace mhla {

struct NpyHeader {
  DType dtype = DType::kF32;
  bool column_major = false;
  std::vector<std::int64_t> shape;  // [] is a scalar
  std::size_t size = 0;             // of the header: where the elements begin
  std::uint64_t data_bytes = 0;     // of the elements
};

// Refuses a header that is not exactly followed by its elements; `total` is the size of the whole file.
NpyHeader parse_npy_header(std::span<const std::byte> bytes, std::uint64_t total, const std::string& label);
std::vector<std::byte> npy_header(DType dtype, const std::vector<std::int64_t>& shape);

// An array and the memory it lies in. A scalar is [1]; arrays in Fortran's order have strides to match.
struct NpyArray {
  ConstView view;
  std::shared_ptr<const void> memory;  // null: the caller's
};
// `bytes` must outlive the array, unless they had to be copied for alignment.
NpyArray npy_array(std::span<const std::byte> bytes, const std::string& label);
NpyArray read_npy(const std::filesystem::path& path);                       // mapped
void write_npy(const std::filesystem::path& path, const ConstView& array);  // contiguous; atomic, see write_file

}  // namespace mhla
