// cuda.h in a build without CUDA: there is no device, and what would need one says so.
#include "mhla/core/cuda.h"
#include "mhla/core/device_graph.h"
#include "mhla/core/error.h"

namespace mhla {
namespace {

constexpr const char* kOff = "built without CUDA";
[[noreturn]] void refuse(const char* what) { fail(what, ": ", kOff); }

}  // namespace

bool cuda_built() { return false; }
int cuda_device_count() { return 0; }
std::string cuda_missing() { return kOff; }
DeviceFacts device_facts(int /*device*/) { refuse("device_facts"); }
std::int64_t device_free_bytes(int /*device*/) { refuse("device_free_bytes"); }

DeviceGuard::DeviceGuard(int device) {
  if (device != kCpu) refuse("DeviceGuard");
}
DeviceGuard::~DeviceGuard() {}  // NOLINT: releases something where there is CUDA, as the other three do

void* device_allocate(std::int64_t /*bytes*/, int /*device*/, void* /*stream*/) { refuse("device_allocate"); }
void device_free(void* /*memory*/, int /*device*/, void* /*stream*/) noexcept {}
void device_copy(void* /*to*/, const void* /*from*/, std::int64_t /*bytes*/, int /*device*/, void* /*stream*/) {
  refuse("device_copy");
}
void device_fill(void* /*memory*/, unsigned char /*byte*/, std::int64_t /*bytes*/, int /*device*/, void* /*stream*/) {
  refuse("device_fill");
}
void device_synchronize(int /*device*/, void* /*stream*/) { refuse("device_synchronize"); }
void device_wait(int /*device*/) { refuse("device_wait"); }

DeviceStream::DeviceStream(int /*device*/) { refuse("DeviceStream"); }
DeviceStream::~DeviceStream() {}  // NOLINT

DeviceTimer::DeviceTimer(int device) : device_(device) { refuse("DeviceTimer"); }
DeviceTimer::~DeviceTimer() {}  // NOLINT
void DeviceTimer::start(void* /*stream*/) { refuse("DeviceTimer"); }
void DeviceTimer::stop(void* /*stream*/) { refuse("DeviceTimer"); }
double DeviceTimer::milliseconds() const { refuse("DeviceTimer"); }

DeviceGraph::DeviceGraph(int device, void* /*stream*/, const std::function<void()>& /*work*/) : device_(device) {
  refuse("DeviceGraph");
}
DeviceGraph::~DeviceGraph() {}  // NOLINT
void DeviceGraph::launch(void* /*stream*/) const { refuse("DeviceGraph"); }

}  // namespace mhla
