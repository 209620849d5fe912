#include "mhla/kernels/cross_entropy/cross_entropy.h"

#include "mhla/core/cuda.h"
#include "mhla/core/error.h"
#include "mhla/kernels/common/call.h"
#include "mhla/kernels/cross_entropy/cross_entropy_job.h"

namespace mhla {
namespace {

constexpr const char* kCrossEntropy = "cross_entropy";

void expect_rows(const ConstView& view, DType dtype, const CrossEntropyParams& p, const char* name) {
  if (view.rank != 1 || view.shape[0] != p.logits.shape[0] || view.dtype != dtype || view.device != p.logits.device ||
      !view.contiguous())
    fail(kCrossEntropy, ": ", name, " has shape ", shape_text(view), " and dtype ", name_of(view.dtype), ", expected [",
         p.logits.shape[0], "] ", name_of(dtype), ", contiguous, on the device of logits");
}

}  // namespace

std::string cross_entropy_fit(const CrossEntropyParams& p) {
  constexpr std::int64_t kMostRows = (std::int64_t{1} << 31) - 1;  // a block of threads each
  if (p.logits.device != kCpu && !cuda_built()) return "built without CUDA";
  if (p.logits.dtype != DType::kF32 && p.logits.dtype != DType::kBF16 && p.logits.dtype != DType::kF16)
    return "expected f32, bf16 or f16";
  if (p.logits.rank == 2 && p.logits.shape[0] > kMostRows) return "too many rows";
  return "";
}

void cross_entropy(const CrossEntropyParams& p, const View& losses, const RunOptions& run) {
  if (const std::string why = cross_entropy_fit(p); !why.empty()) fail(kCrossEntropy, ": ", why);
  if (p.logits.rank != 2 || p.logits.shape[1] < 1 || !ConstView(p.logits).contiguous())
    fail(kCrossEntropy, ": logits has shape ", shape_text(p.logits), ", expected [N, V], contiguous");
  expect_rows(p.targets, DType::kI64, p, "targets");
  expect_rows(losses, DType::kF32, p, "losses");
  CrossEntropyJob job;
  job.logits = p.logits.data, job.targets = static_cast<const std::int64_t*>(p.targets.data);
  job.losses = static_cast<float*>(losses.data), job.dtype = p.logits.dtype;
  job.rows = p.logits.shape[0], job.vocab = p.logits.shape[1], job.ignored = p.ignored;
  job.gradient = p.gradient, job.stream = run.stream;
  job.aligned = reinterpret_cast<std::uintptr_t>(job.logits) % 16 == 0 && job.vocab * size_of(job.dtype) % 16 == 0;
  if (job.rows == 0) return;
  if (p.logits.device == kCpu) return cross_entropy_simd(job, CallExecutor(run, kCpu).executor);
  const DeviceGuard guard(p.logits.device);
  cross_entropy_cuda(job);
}

}  // namespace mhla
