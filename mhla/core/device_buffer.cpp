#include <utility>

#include "mhla/core/cuda.h"

namespace mhla {

DeviceBuffer::DeviceBuffer(std::int64_t bytes, int device, void* stream)
    : data_(static_cast<std::byte*>(device_allocate(bytes, device, stream))),
      size_(bytes),
      device_(device),
      stream_(stream) {}

DeviceBuffer::~DeviceBuffer() { device_free(data_, device_, stream_); }

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(device_, other.device_);
  std::swap(stream_, other.stream_);
  return *this;
}

}  // namespace mhla
