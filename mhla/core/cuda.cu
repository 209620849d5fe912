// cuda.h over the CUDA runtime. Nothing here launches a kernel.
#include <mutex>
#include <vector>

#include "mhla/core/cuda_check.h"
#include "mhla/core/device_graph.h"
#include "mhla/core/error.h"

namespace mhla {

void cuda_failed(cudaError_t status, const char* what) {
  (void)cudaGetLastError();  // an error that is reported here is not reported again by the next call
  fail(what, ": ", cudaGetErrorString(status), " (", cudaGetErrorName(status), ")");
}

namespace {

int attribute(cudaDeviceAttr name, int device) {
  int value = 0;
  cuda_check(cudaDeviceGetAttribute(&value, name, device), "cudaDeviceGetAttribute");
  return value;
}

DeviceFacts read_facts(int device) {
  cudaDeviceProp properties{};
  cuda_check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  DeviceFacts facts;
  facts.name = properties.name;
  facts.major = properties.major;
  facts.minor = properties.minor;
  facts.multiprocessors = properties.multiProcessorCount;
  facts.memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem);
  facts.l2_bytes = properties.l2CacheSize;
  facts.shared_bytes_per_block = static_cast<std::int64_t>(properties.sharedMemPerBlockOptin);
  const double kilohertz = attribute(cudaDevAttrMemoryClockRate, device);
  const double bits = attribute(cudaDevAttrGlobalMemoryBusWidth, device);
  facts.memory_gbytes_per_s = 2.0 * kilohertz * bits / 8.0 * 1e-6;  // two transfers a clock
  cuda_check(cudaDriverGetVersion(&facts.driver_version), "cudaDriverGetVersion");
  cuda_check(cudaRuntimeGetVersion(&facts.runtime_version), "cudaRuntimeGetVersion");
  return facts;
}

// The number of devices, or the runtime's reason why there is none.
struct Found {
  int devices = 0;
  std::string missing;
};

Found find_devices() {
  Found found;
  const cudaError_t status = cudaGetDeviceCount(&found.devices);
  if (status == cudaSuccess && found.devices > 0) return found;
  (void)cudaGetLastError();
  found.devices = 0;
  if (status == cudaSuccess || status == cudaErrorNoDevice) {
    found.missing = "no CUDA device";
  } else if (status == cudaErrorInsufficientDriver) {
    int driver = 0;  // 0: none is installed
    (void)cudaDriverGetVersion(&driver);
    found.missing = driver == 0
                        ? "no CUDA driver"
                        : str("the CUDA driver is for ", driver / 1000, ".", driver % 1000 / 10,
                              ", older than this build's ", CUDART_VERSION / 1000, ".", CUDART_VERSION % 1000 / 10);
  } else {
    found.missing = str("no CUDA device: ", cudaGetErrorString(status));
  }
  return found;
}

const Found& devices() {
  static const Found found = find_devices();
  return found;
}

cudaEvent_t event_of(void* event) { return static_cast<cudaEvent_t>(event); }

}  // namespace

bool cuda_built() { return true; }
int cuda_device_count() { return devices().devices; }
std::string cuda_missing() { return devices().missing; }

DeviceFacts device_facts(int device) {
  static std::mutex mutex;
  static std::vector<DeviceFacts> known;
  if (!devices().missing.empty()) fail("device_facts: ", devices().missing);
  if (device < 0 || device >= cuda_device_count())
    fail("device_facts: device is ", device, ", expected 0 to ", cuda_device_count() - 1);
  const std::lock_guard lock(mutex);
  if (known.empty()) {
    for (int i = 0; i < cuda_device_count(); ++i) known.push_back(read_facts(i));
  }
  return known[static_cast<std::size_t>(device)];
}

std::int64_t device_free_bytes(int device) {
  const DeviceGuard guard(device);
  std::size_t free = 0, total = 0;
  cuda_check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return static_cast<std::int64_t>(free);
}

DeviceGuard::DeviceGuard(int device) {
  if (device == kCpu) return;
  int current = 0;
  cuda_check(cudaGetDevice(&current), "cudaGetDevice");
  if (current == device) return;
  cuda_check(cudaSetDevice(device), "cudaSetDevice");
  before_ = current;
}

DeviceGuard::~DeviceGuard() {
  if (before_ != kCpu) (void)cudaSetDevice(before_);
}

void* device_allocate(std::int64_t bytes, int device, void* stream) {
  if (bytes < 0) fail("device_allocate: size is ", bytes);
  if (bytes == 0) return nullptr;
  const DeviceGuard guard(device);
  void* memory = nullptr;
  const cudaError_t status = cudaMallocAsync(&memory, static_cast<std::size_t>(bytes), stream_of(stream));
  cuda_check(status, str("cudaMallocAsync of ", bytes, " bytes on cuda:", device).c_str());
  return memory;
}

void device_free(void* memory, int device, void* stream) noexcept {
  if (memory == nullptr) return;
  int before = device;
  (void)cudaGetDevice(&before);
  if (before != device) (void)cudaSetDevice(device);
  (void)cudaFreeAsync(memory, stream_of(stream));
  if (before != device) (void)cudaSetDevice(before);
}

void device_copy(void* to, const void* from, std::int64_t bytes, int device, void* stream) {
  if (bytes == 0) return;
  const DeviceGuard guard(device);
  cudaPointerAttributes source{}, target{};
  cuda_check(cudaPointerGetAttributes(&source, from), "cudaPointerGetAttributes");
  cuda_check(cudaPointerGetAttributes(&target, to), "cudaPointerGetAttributes");
  const bool on_device = source.type == cudaMemoryTypeDevice && target.type == cudaMemoryTypeDevice;
  cuda_check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, stream_of(stream)),
             "cudaMemcpyAsync");
  if (!on_device) device_synchronize(device, stream);
}

void device_fill(void* memory, unsigned char byte, std::int64_t bytes, int device, void* stream) {
  if (bytes == 0) return;
  const DeviceGuard guard(device);
  cuda_check(cudaMemsetAsync(memory, byte, static_cast<std::size_t>(bytes), stream_of(stream)), "cudaMemsetAsync");
}

void device_synchronize(int device, void* stream) {
  const DeviceGuard guard(device);
  cuda_check(cudaStreamSynchronize(stream_of(stream)), "cudaStreamSynchronize");
}

void device_wait(int device) {
  const DeviceGuard guard(device);
  cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

DeviceStream::DeviceStream(int device) {
  const DeviceGuard guard(device);
  cudaStream_t stream = nullptr;
  cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  stream_ = stream;
}

DeviceStream::~DeviceStream() { (void)cudaStreamDestroy(stream_of(stream_)); }

DeviceTimer::DeviceTimer(int device) : device_(device) {
  const DeviceGuard guard(device);
  cudaEvent_t start = nullptr, stop = nullptr;
  cuda_check(cudaEventCreate(&start), "cudaEventCreate");
  start_ = start;
  const cudaError_t status = cudaEventCreate(&stop);
  if (status != cudaSuccess) (void)cudaEventDestroy(start);
  cuda_check(status, "cudaEventCreate");
  stop_ = stop;
}

DeviceTimer::~DeviceTimer() {
  (void)cudaEventDestroy(event_of(start_));
  (void)cudaEventDestroy(event_of(stop_));
}

void DeviceTimer::start(void* stream) {
  const DeviceGuard guard(device_);
  cuda_check(cudaEventRecord(event_of(start_), stream_of(stream)), "cudaEventRecord");
}

void DeviceTimer::stop(void* stream) {
  const DeviceGuard guard(device_);
  cuda_check(cudaEventRecord(event_of(stop_), stream_of(stream)), "cudaEventRecord");
}

double DeviceTimer::milliseconds() const {
  const DeviceGuard guard(device_);
  cuda_check(cudaEventSynchronize(event_of(stop_)), "cudaEventSynchronize");
  float value = 0.0f;
  cuda_check(cudaEventElapsedTime(&value, event_of(start_), event_of(stop_)), "cudaEventElapsedTime");
  return value;
}

DeviceGraph::DeviceGraph(int device, void* stream, const std::function<void()>& work) : device_(device) {
  const DeviceGuard guard(device);
  // Relaxed mode would let a forbidden call pass; this one makes it an error of the capture.
  cuda_check(cudaStreamBeginCapture(stream_of(stream), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  cudaGraph_t graph = nullptr;
  try {
    work();
  } catch (...) {
    if (cudaStreamEndCapture(stream_of(stream), &graph) == cudaSuccess) (void)cudaGraphDestroy(graph);
    (void)cudaGetLastError();
    throw;
  }
  cuda_check(cudaStreamEndCapture(stream_of(stream), &graph), "cudaStreamEndCapture");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
  (void)cudaGraphDestroy(graph);
  cuda_check(status, "cudaGraphInstantiate");
  graph_ = executable;
}

DeviceGraph::~DeviceGraph() { (void)cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph_)); }

void DeviceGraph::launch(void* stream) const {
  const DeviceGuard guard(device_);
  cuda_check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph_), stream_of(stream)), "cudaGraphLaunch");
}

}  // namespace mhla
