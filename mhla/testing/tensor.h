// A tensor that owns its memory, for tests and benchmarks. It starts as NaN and stands between guard
// bands, so that a kernel that forgets an element or writes past the end is caught: check_guards().
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "mhla/core/view.h"
#include "mhla/core/workspace.h"
#include "mhla/testing/random.h"

namespace mhla {

class Tensor {
 public:
  Tensor() = default;
  Tensor(DType dtype, std::vector<std::int64_t> shape);  // filled with NaN

  [[nodiscard]] View view();
  [[nodiscard]] ConstView view() const;
  [[nodiscard]] bool given() const { return !shape_.empty(); }
  [[nodiscard]] std::int64_t numel() const { return numel_; }
  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] const std::vector<std::int64_t>& shape() const { return shape_; }
  [[nodiscard]] double at(std::int64_t index) const { return load_f64(data(), dtype_, index); }
  void set(std::int64_t index, double value) { store_f64(data(), dtype_, index, value); }
  [[nodiscard]] void* data() const;

  Tensor& fill(double value);
  Tensor& normal(Random& random, double deviation = 1.0);
  Tensor& uniform(Random& random, double low, double high);
  [[nodiscard]] Tensor to(DType dtype) const;  // rounded once
  [[nodiscard]] Tensor clone() const { return to(dtype_); }
  [[nodiscard]] bool guards_intact() const;
  [[nodiscard]] std::span<std::byte> guarded_bytes() const { return memory_.bytes(); }  // guard, elements, guard
  [[nodiscard]] bool same_bits(const Tensor& other) const;

 private:
  static constexpr std::int64_t kGuard = 256;  // bytes at both ends
  DType dtype_ = DType::kF32;
  std::vector<std::int64_t> shape_;
  std::int64_t numel_ = 0;
  AlignedBuffer memory_;
};

Tensor contiguous(const ConstView& view);  // a copy of what a strided view shows

// RMS of the difference over RMS of `want` (the accuracy rule of docs/numerics.md). NaN anywhere gives NaN.
double rms_error(const Tensor& got, const Tensor& want);
// max |got - want| / max |want|; NaN anywhere gives NaN, which no comparison `error <= bound` lets pass.
double max_error(const Tensor& got, const Tensor& want);
// The worst element, for a failure message: "worst at [0, 3, 1, 2]: got 1.5, want 1.0".
std::string worst_element(const Tensor& got, const Tensor& want);

}  // namespace mhla
