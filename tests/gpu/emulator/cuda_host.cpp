// core/cuda.h for the emulator: one device whose memory is the host's.
#include <cstdlib>
#include <cstring>

#include "mhla/core/cuda_check.h"
#include "mhla/core/error.h"
#include "tests/gpu/emulator/emulator.h"
#include "tests/gpu/emulator/shared.h"

namespace mhla {

void cuda_failed(cudaError_t /*status*/, const char* what) { fail(what); }

bool cuda_built() { return true; }
int cuda_device_count() { return 1; }
std::string cuda_missing() { return {}; }
DeviceFacts device_facts(int /*device*/) {
  DeviceFacts facts;
  facts.name = "emulator";
  facts.major = 9;  // Hopper
  facts.multiprocessors = emulator::multiprocessors;
  facts.shared_bytes_per_block = emulator::kMostShared;
  return facts;
}
std::int64_t device_free_bytes(int /*device*/) { return std::int64_t{1} << 30; }
DeviceGuard::DeviceGuard(int /*device*/) {}
DeviceGuard::~DeviceGuard() = default;

void* device_allocate(std::int64_t bytes, int /*device*/, void* /*stream*/) {
  return bytes == 0 ? nullptr : std::aligned_alloc(256, static_cast<std::size_t>((bytes + 255) / 256 * 256));
}
void device_free(void* memory, int /*device*/, void* /*stream*/) noexcept { std::free(memory); }
void device_copy(void* to, const void* from, std::int64_t bytes, int /*device*/, void* /*stream*/) {
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}
void device_fill(void* memory, unsigned char byte, std::int64_t bytes, int /*device*/, void* /*stream*/) {
  std::memset(memory, byte, static_cast<std::size_t>(bytes));
}
void device_synchronize(int /*device*/, void* /*stream*/) {}
void device_wait(int /*device*/) {}

DeviceTimer::DeviceTimer(int device) : device_(device) {}
DeviceTimer::~DeviceTimer() = default;
void DeviceTimer::start(void* /*stream*/) {}
void DeviceTimer::stop(void* /*stream*/) {}
double DeviceTimer::milliseconds() const { return device_; }

}  // namespace mhla
