// A view is memory with a shape: pointer, element type, sizes and strides in elements.
// Rank 0 means "not given"; a given view with elements must have data. Views own nothing.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "mhla/core/dtype.h"

namespace mhla {

inline constexpr int kMaxRank = 8;
inline constexpr int kCpu = -1;  // View::device: kCpu, or the ordinal of a CUDA device

template <class Pointer>
struct BasicView {
  Pointer data = nullptr;
  DType dtype = DType::kF32;
  int rank = 0;
  int device = kCpu;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> stride{};  // in elements

  BasicView() = default;
  BasicView(Pointer data, DType dtype, std::initializer_list<std::int64_t> sizes);  // row-major, contiguous
  BasicView(Pointer data, DType dtype, const std::vector<std::int64_t>& sizes);
  template <class Other>
  requires std::is_convertible_v<Other, Pointer> BasicView(
      const BasicView<Other>& other)  // NOLINT(google-explicit-constructor): View to ConstView
      : data(other.data),
        dtype(other.dtype),
        rank(other.rank),
        device(other.device),
        shape(other.shape),
        stride(other.stride) {}

  [[nodiscard]] bool given() const { return rank != 0; }
  [[nodiscard]] std::int64_t numel() const;  // throws on a negative size or overflow
  [[nodiscard]] bool contiguous() const;
};

using ConstView = BasicView<const void*>;
using View = BasicView<void*>;

template <class T>
const T* data_as(const ConstView& view) {
  return static_cast<const T*>(view.data);
}
template <class T>
T* data_as(const View& view) {
  return static_cast<T*>(view.data);
}

std::string shape_text(const ConstView& view);  // "[2, 64, 8]"
std::string shape_text(const std::vector<std::int64_t>& shape);

// A tensor with a name, for writers and loaders (io/safetensors writes what a streaming state exposes).
struct NamedView {
  std::string name;
  ConstView view;
};

// Product of sizes; throws mhla::Error naming `what` when a size is negative or the product does not fit 63 bits.
std::int64_t checked_product(std::initializer_list<std::int64_t> sizes, const char* what);

}  // namespace mhla
