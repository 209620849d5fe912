// How run_case puts a case on a CUDA device: host memory is copied to places of the same alignment between bands of
// NaN, the views are pointed there, and afterwards the results come back, the inputs must be what they were, and the
// bands must be intact.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "mhla/core/cuda.h"
#include "mhla/core/view.h"

namespace mhla {

// Bytes from the first to the last element that a view shows, gaps between rows included. Empty without elements.
std::span<const std::byte> extent_of(const ConstView& view);

// A copy of host memory on a device. An address has the same remainder by 256 on both sides.
class DeviceMirror {
 public:
  DeviceMirror(std::span<const std::byte> host, int device, void* stream);
  [[nodiscard]] std::byte* at(const void* host_address) const;  // where a byte of the host memory lies on the device
  void copy_back(std::span<std::byte> host) const;
  [[nodiscard]] bool unchanged(std::span<const std::byte> host) const;  // the memory and the bands around it
  [[nodiscard]] bool bands_intact() const;

 private:
  [[nodiscard]] std::vector<std::byte> download() const;  // all of it, bands included
  [[nodiscard]] bool bands_intact(std::span<const std::byte> all) const;
  std::uintptr_t host_ = 0;
  std::int64_t size_ = 0, offset_ = 0;  // of the copied memory inside buffer_
  int device_;
  void* stream_;
  DeviceBuffer buffer_;
};

// The tensors of one call on a device.
class DevicePlace {
 public:
  DevicePlace(int device, void* stream) : device_(device), stream_(stream) {}
  void move_input(ConstView& view, const char* name);  // not given: stays so
  // `memory` is the host tensor with its guard bands that `view` looks into.
  void move_output(View& view, std::span<std::byte> memory, const char* name);
  // Waits, brings the outputs back, and throws mhla::Error naming what was written that should not have been.
  void finish(const std::string& case_name);

 private:
  struct Place {
    const char* name;
    std::span<const std::byte> input;  // one of the two
    std::span<std::byte> output;
    DeviceMirror mirror;
  };
  int device_;
  void* stream_;
  std::vector<Place> places_;
};

}  // namespace mhla
