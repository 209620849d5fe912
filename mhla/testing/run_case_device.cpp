#include "mhla/testing/run_case_device.h"

#include <algorithm>

#include "mhla/core/error.h"

namespace mhla {
namespace {

constexpr std::int64_t kBand = 1024, kAddress = 256;  // bytes; the runtime aligns memory to kAddress
constexpr std::byte kNan{0xff};                       // all ones are NaN in every float type

bool all_nan(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == kNan; });
}

}  // namespace

std::span<const std::byte> extent_of(const ConstView& view) {
  std::int64_t first = 0, last = 0;
  for (int axis = 0; axis < view.rank; ++axis) {
    if (view.shape[axis] == 0) return {};
    const std::int64_t reach = (view.shape[axis] - 1) * view.stride[axis];
    (reach < 0 ? first : last) += reach;
  }
  const std::int64_t size = size_of(view.dtype);
  return {static_cast<const std::byte*>(view.data) + first * size, static_cast<std::size_t>((last - first + 1) * size)};
}

DeviceMirror::DeviceMirror(std::span<const std::byte> host, int device, void* stream)
    : host_(reinterpret_cast<std::uintptr_t>(host.data())),
      size_(static_cast<std::int64_t>(host.size())),
      offset_(kBand + static_cast<std::int64_t>(host_ % kAddress)),
      device_(device),
      stream_(stream),
      buffer_(offset_ + size_ + kBand, device, stream) {
  device_fill(buffer_.data(), static_cast<unsigned char>(kNan), buffer_.size(), device_, stream_);
  device_copy(buffer_.data() + offset_, host.data(), size_, device_, stream_);
}

std::byte* DeviceMirror::at(const void* host_address) const {
  return buffer_.data() + offset_ + (reinterpret_cast<std::uintptr_t>(host_address) - host_);
}

void DeviceMirror::copy_back(std::span<std::byte> host) const {
  device_copy(host.data(), buffer_.data() + offset_, size_, device_, stream_);
}

std::vector<std::byte> DeviceMirror::download() const {
  std::vector<std::byte> all(static_cast<std::size_t>(buffer_.size()));
  device_copy(all.data(), buffer_.data(), buffer_.size(), device_, stream_);
  return all;
}

bool DeviceMirror::unchanged(std::span<const std::byte> host) const {
  const std::vector<std::byte> all = download();
  return std::equal(host.begin(), host.end(), all.begin() + offset_) && bands_intact(all);
}

bool DeviceMirror::bands_intact() const { return bands_intact(download()); }

bool DeviceMirror::bands_intact(std::span<const std::byte> all) const {
  return all_nan(all.first(static_cast<std::size_t>(offset_))) &&
         all_nan(all.subspan(static_cast<std::size_t>(offset_ + size_)));
}

void DevicePlace::move_input(ConstView& view, const char* name) {
  if (!view.given()) return;
  const auto host = extent_of(view);
  places_.push_back({name, host, {}, DeviceMirror(host, device_, stream_)});
  if (!host.empty()) view.data = places_.back().mirror.at(view.data);
  view.device = device_;
}

void DevicePlace::move_output(View& view, std::span<std::byte> memory, const char* name) {
  if (!view.given()) return;
  places_.push_back({name, {}, memory, DeviceMirror(memory, device_, stream_)});
  view.data = places_.back().mirror.at(view.data);
  view.device = device_;
}

void DevicePlace::finish(const std::string& case_name) {
  device_synchronize(device_, stream_);
  for (const Place& place : places_) {
    if (place.output.empty()) {
      if (!place.mirror.unchanged(place.input)) fail("run_case: input ", place.name, " was written in ", case_name);
    } else {
      place.mirror.copy_back(place.output);
      if (!place.mirror.bands_intact()) fail("run_case: written far outside ", place.name, " in ", case_name);
    }
  }
}

}  // namespace mhla
