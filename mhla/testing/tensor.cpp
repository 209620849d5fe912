#include "mhla/testing/tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "mhla/core/error.h"

namespace mhla {
namespace {

constexpr unsigned char kGuardByte = 0xa5;

void same_shape(const Tensor& got, const Tensor& want) {
  if (got.shape() != want.shape())
    fail("compare: got shape ", shape_text(got.shape()), ", expected ", shape_text(want.shape()));
}

}  // namespace

Tensor::Tensor(DType dtype, std::vector<std::int64_t> shape) : dtype_(dtype), shape_(std::move(shape)) {
  numel_ = View(nullptr, dtype, shape_).numel();
  memory_ = AlignedBuffer(numel_ * size_of(dtype) + 2 * kGuard);
  std::memset(memory_.bytes().data(), kGuardByte, memory_.bytes().size());
  fill(std::numeric_limits<double>::quiet_NaN());
}

void* Tensor::data() const { return memory_.as<std::byte>() + kGuard; }
View Tensor::view() { return {data(), dtype_, shape_}; }
ConstView Tensor::view() const { return {data(), dtype_, shape_}; }

Tensor& Tensor::fill(double value) {
  if (numel_ == 0) return *this;
  set(0, value);
  const std::int64_t bytes = numel_ * size_of(dtype_);
  auto* const first = static_cast<std::byte*>(data());
  for (std::int64_t done = size_of(dtype_); done < bytes; done *= 2)
    std::memcpy(first + done, first, static_cast<std::size_t>(std::min(done, bytes - done)));
  return *this;
}

Tensor& Tensor::normal(Random& random, double deviation) {
  for (std::int64_t index = 0; index < numel_; ++index) set(index, deviation * random.normal());
  return *this;
}

Tensor& Tensor::uniform(Random& random, double low, double high) {
  for (std::int64_t index = 0; index < numel_; ++index) set(index, low + (high - low) * random.uniform());
  return *this;
}

Tensor Tensor::to(DType dtype) const {
  Tensor other(dtype, shape_);
  for (std::int64_t index = 0; index < numel_; ++index) other.set(index, at(index));
  return other;
}

bool Tensor::guards_intact() const {
  const auto bytes = memory_.bytes();
  const auto is_guard = [](std::byte byte) { return byte == std::byte{kGuardByte}; };
  return std::all_of(bytes.begin(), bytes.begin() + kGuard, is_guard) &&
         std::all_of(bytes.end() - kGuard, bytes.end(), is_guard);
}

bool Tensor::same_bits(const Tensor& other) const {
  return dtype_ == other.dtype_ && shape_ == other.shape_ &&
         std::memcmp(data(), other.data(), static_cast<std::size_t>(numel_ * size_of(dtype_))) == 0;
}

Tensor contiguous(const ConstView& view) {
  Tensor copy(view.dtype, std::vector<std::int64_t>(view.shape.begin(), view.shape.begin() + view.rank));
  for (std::int64_t index = 0; index < copy.numel(); ++index) {
    std::int64_t offset = 0;
    for (std::int64_t axis = view.rank - 1, rest = index; axis >= 0; --axis) {
      offset += rest % view.shape[static_cast<std::size_t>(axis)] * view.stride[static_cast<std::size_t>(axis)];
      rest /= view.shape[static_cast<std::size_t>(axis)];
    }
    const auto bytes = static_cast<std::size_t>(size_of(view.dtype));
    std::memcpy(static_cast<std::byte*>(copy.data()) + static_cast<std::size_t>(index) * bytes,
                static_cast<const std::byte*>(view.data) + offset * size_of(view.dtype), bytes);
  }
  return copy;
}

double rms_error(const Tensor& got, const Tensor& want) {
  same_shape(got, want);
  double difference = 0, size = 0;
  for (std::int64_t index = 0; index < want.numel(); ++index) {
    const double d = got.at(index) - want.at(index);
    difference += d * d;
    size += want.at(index) * want.at(index);
  }
  if (difference == 0) return 0;
  return std::sqrt(difference / size);
}

double max_error(const Tensor& got, const Tensor& want) {
  same_shape(got, want);
  double difference = 0, size = 0;
  for (std::int64_t index = 0; index < want.numel(); ++index) {
    const double d = std::abs(got.at(index) - want.at(index));
    if (std::isnan(d)) return d;
    difference = std::max(difference, d);
    size = std::max(size, std::abs(want.at(index)));
  }
  if (difference == 0) return 0;
  return difference / size;
}

std::string worst_element(const Tensor& got, const Tensor& want) {
  same_shape(got, want);
  if (want.numel() == 0) return "no elements";
  std::int64_t worst = 0;
  double largest = -1;
  for (std::int64_t index = 0; index < want.numel(); ++index) {
    const double d = std::abs(got.at(index) - want.at(index));
    if (!(d <= largest)) worst = index, largest = d;
    if (std::isnan(d)) break;
  }
  std::vector<std::int64_t> place(want.shape().size());
  for (std::int64_t axis = static_cast<std::int64_t>(place.size()) - 1, rest = worst; axis >= 0; --axis) {
    place[static_cast<std::size_t>(axis)] = rest % want.shape()[static_cast<std::size_t>(axis)];
    rest /= want.shape()[static_cast<std::size_t>(axis)];
  }
  return str("worst at ", shape_text(place), ": got ", got.at(worst), ", want ", want.at(worst));
}

}  // namespace mhla
