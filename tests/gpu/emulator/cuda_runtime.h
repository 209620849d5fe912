// Stands in for the runtime when kernels run in the emulator: launches run at once.
#pragma once

#include <cstddef>
#include <tuple>
#include <utility>

#include "tests/gpu/emulator/emulator.h"

using cudaError_t = int;
using cudaStream_t = struct CUstream_st*;
inline constexpr cudaError_t cudaSuccess = 0;
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t) { return "error"; }
inline const char* cudaGetErrorName(cudaError_t) { return "error"; }

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize, cudaFuncAttributePreferredSharedMemoryCarveout };
inline constexpr int cudaSharedmemCarveoutMaxShared = 100;
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount };
template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel, cudaFuncAttribute, int) {
  return cudaSuccess;
}
inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = emulator::multiprocessors;
  return cudaSuccess;
}
template <class Kernel>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Kernel, int, std::size_t) {
  *blocks = 1;
  return cudaSuccess;
}

enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization, cudaLaunchAttributeClusterDimension };
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    int programmaticStreamSerializationAllowed;
    struct {
      unsigned x, y, z;
    } clusterDim;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  std::size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

template <class... P>
struct EmulatedCall {
  void (*kernel)(P...);
  std::tuple<P...> arguments;
};
template <class... P, class... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(P...), A&&... arguments) {
  const EmulatedCall<P...> call{kernel, std::tuple<P...>(P(std::forward<A>(arguments))...)};
  dim3 cluster;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const auto& value = config->attrs[i].val.clusterDim;
    if (config->attrs[i].id == cudaLaunchAttributeClusterDimension) cluster = dim3(value.x, value.y, value.z);
  }
  emulator::run(
      config->gridDim, config->blockDim, cluster, config->dynamicSmemBytes,
      [](const void* data) {
        const auto& own = *static_cast<const EmulatedCall<P...>*>(data);
        std::apply(own.kernel, own.arguments);
      },
      &call, emulator::kernel_name(reinterpret_cast<void*>(kernel)));
  return cudaSuccess;
}
