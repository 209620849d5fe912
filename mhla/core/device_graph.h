// CUDA graphs. Apart from cuda.h, which every kernel includes: <functional> costs nvcc 0.4 s a file.
#pragma once

#include <functional>

#include "mhla/core/cuda.h"

namespace mhla {

// What `work` puts on `stream`, recorded instead of run; launch() runs it.
class DeviceGraph {
 public:
  DeviceGraph(int device, void* stream, const std::function<void()>& work);
  ~DeviceGraph();
  DeviceGraph(const DeviceGraph&) = delete;
  DeviceGraph& operator=(const DeviceGraph&) = delete;
  void launch(void* stream) const;

 private:
  int device_;
  void* graph_ = nullptr;
};

}  // namespace mhla
