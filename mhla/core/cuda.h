// CUDA as plain C++ sees it: what devices there are, device memory, copies, streams and times. No CUDA header is
// included, a stream is a void* (cudaStream_t, null for the default stream). Without CUDA in the build the same
// functions exist: they find no device, and those that would need one throw. Code that launches kernels includes
// cuda_check.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "mhla/core/view.h"

namespace mhla {

bool cuda_built();           // whether this library has CUDA code
int cuda_device_count();     // 0 without CUDA in the build, a driver or a device
std::string cuda_missing();  // empty, or why no device can be used: "built without CUDA", "no CUDA driver", ...

struct DeviceFacts {
  std::string name;          // "NVIDIA H200"
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  std::int64_t memory_bytes = 0;
  std::int64_t l2_bytes = 0;
  std::int64_t shared_bytes_per_block = 0;  // the most a block may ask for (opt-in)
  double memory_gbytes_per_s = 0.0;         // by clock and bus width; 0 where the driver does not tell
  int driver_version = 0;                   // 13000: CUDA 13.0
  int runtime_version = 0;
};
DeviceFacts device_facts(int device);        // asked for once per device
std::int64_t device_free_bytes(int device);  // now

// Makes `device` the current one and restores the one before. kCpu: does nothing.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = kCpu;  // kCpu: nothing to restore
};

// Memory of a device, in the order of a stream. 0 bytes are null.
void* device_allocate(std::int64_t bytes, int device, void* stream);
void device_free(void* memory, int device, void* stream) noexcept;

class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(std::int64_t bytes, int device, void* stream = nullptr);  // not initialised
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::int64_t size() const { return size_; }
  [[nodiscard]] std::span<std::byte> bytes() const { return {data_, static_cast<std::size_t>(size_)}; }

 private:
  std::byte* data_ = nullptr;
  std::int64_t size_ = 0;
  int device_ = kCpu;
  void* stream_ = nullptr;
};

// Ordered on the stream. Copies go either way, or from device to device; with host memory they have happened when
// the call returns.
void device_copy(void* to, const void* from, std::int64_t bytes, int device, void* stream = nullptr);
void device_fill(void* memory, unsigned char byte, std::int64_t bytes, int device, void* stream = nullptr);
void device_synchronize(int device, void* stream = nullptr);  // throws what went wrong on the stream before
void device_wait(int device);                                 // likewise, for all streams of the device

// A stream that does not wait for the default one.
class DeviceStream {
 public:
  explicit DeviceStream(int device);
  ~DeviceStream();
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;
  [[nodiscard]] void* get() const { return stream_; }

 private:
  void* stream_ = nullptr;
};

// Two events around what is put on a stream: start(), the work, stop(); milliseconds() waits for the second.
class DeviceTimer {
 public:
  explicit DeviceTimer(int device);
  ~DeviceTimer();
  DeviceTimer(const DeviceTimer&) = delete;
  DeviceTimer& operator=(const DeviceTimer&) = delete;
  void start(void* stream);
  void stop(void* stream);
  [[nodiscard]] double milliseconds() const;

 private:
  int device_;
  void *start_ = nullptr, *stop_ = nullptr;
};

}  // namespace mhla
