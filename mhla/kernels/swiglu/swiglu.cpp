#include "mhla/kernels/swiglu/swiglu.h"

#include <initializer_list>

#include "mhla/core/cuda.h"
#include "mhla/core/error.h"
#include "mhla/kernels/common/call.h"
#include "mhla/kernels/swiglu/swiglu_job.h"

namespace mhla {
namespace {

void expect_like(const ConstView& view, const ConstView& gate, const char* entry, const char* name) {
  if (view.rank != gate.rank || view.shape != gate.shape || view.dtype != gate.dtype || view.device != gate.device)
    fail(entry, ": ", name, " has shape ", shape_text(view), " and dtype ", name_of(view.dtype), ", expected ",
         shape_text(gate), " ", name_of(gate.dtype), " like gate, on its device");
  if (!view.contiguous()) fail(entry, ": ", name, " has gaps, expected contiguous memory");
}

bool aligned(std::initializer_list<const void*> all) {
  for (const void* data : all) {
    if (reinterpret_cast<std::uintptr_t>(data) % 16 != 0) return false;
  }
  return true;
}

SwigluJob job_of(const SwigluParams& p, const char* entry, void* stream) {
  if (const std::string why = swiglu_fit(p); !why.empty()) fail(entry, ": ", why);
  expect_like(p.gate, p.gate, entry, "gate");
  expect_like(p.up, p.gate, entry, "up");
  SwigluJob job;
  job.gate = p.gate.data, job.up = p.up.data, job.dtype = p.gate.dtype;
  job.count = p.gate.numel(), job.stream = stream;
  return job;
}

}  // namespace

std::string swiglu_fit(const SwigluParams& p) {
  constexpr std::int64_t kMost = std::int64_t{1} << 38;  // elements: the blocks of threads fit a grid
  if (p.gate.device != kCpu && !cuda_built()) return "built without CUDA";
  if (p.gate.dtype != DType::kF32 && p.gate.dtype != DType::kBF16 && p.gate.dtype != DType::kF16)
    return "expected f32, bf16 or f16";
  return p.gate.numel() > kMost ? "too many elements" : "";
}

void swiglu(const SwigluParams& params, const View& out, const RunOptions& run) {
  constexpr const char* kEntry = "swiglu";
  SwigluJob job = job_of(params, kEntry, run.stream);
  expect_like(out, params.gate, kEntry, "out");
  job.out = out.data, job.aligned = aligned({job.gate, job.up, job.out});
  if (job.count == 0) return;
  if (params.gate.device == kCpu) return swiglu_simd(job, CallExecutor(run, kCpu).executor);
  const DeviceGuard guard(params.gate.device);
  swiglu_cuda(job);
}

void swiglu_backward(const SwigluParams& params, const SwigluGrads& grads, const RunOptions& run) {
  constexpr const char* kEntry = "swiglu_backward";
  SwigluJob job = job_of(params, kEntry, run.stream);
  expect_like(grads.dout, params.gate, kEntry, "dout");
  expect_like(grads.dgate, params.gate, kEntry, "dgate");
  expect_like(grads.dup, params.gate, kEntry, "dup");
  job.dout = grads.dout.data, job.dgate = grads.dgate.data, job.dup = grads.dup.data;
  job.aligned = aligned({job.gate, job.up, job.dout, job.dgate, job.dup});
  if (job.count == 0) return;
  if (params.gate.device == kCpu) return swiglu_backward_simd(job, CallExecutor(run, kCpu).executor);
  const DeviceGuard guard(params.gate.device);
  swiglu_backward_cuda(job);
}

}  // namespace mhla
