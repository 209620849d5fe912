// Work on a GPU as a CUDA graph: recorded once, replayed without the host launching its kernels one by one.
#pragma once

#ifdef MHLA_TORCH_CUDA

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>

namespace mhla::ops {

// A stream to record on: the default one cannot be recorded.
inline c10::cuda::CUDAStream recording_stream(const c10::Device& device) {
  return c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index());
}

// Runs `work` on the stream without computing anything: the graph has its kernels. `pool` {0, 0}: memory of its own;
// graphs that take turns can share a pool.
template <class Work>
void record_graph(at::cuda::CUDAGraph& graph, const c10::cuda::CUDAStream& stream, at::cuda::MempoolId_t pool,
                  const Work& work) {
  const c10::cuda::CUDAStreamGuard on_its_stream(stream);
  graph.capture_begin(pool, cudaStreamCaptureModeThreadLocal);
  try {
    work();
  } catch (...) {
    try {
      graph.capture_end();  // or the stream would go on recording
    } catch (const std::exception&) {
    }
    throw;
  }
  graph.capture_end();
}

}  // namespace mhla::ops

#endif
