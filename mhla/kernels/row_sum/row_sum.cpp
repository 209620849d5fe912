#include "mhla/kernels/row_sum/row_sum.h"

#include "mhla/core/cuda.h"
#include "mhla/core/error.h"
#include "mhla/kernels/row_sum/row_sum_job.h"

namespace mhla {
namespace {

constexpr const char* kRowSum = "row_sum";

}  // namespace

std::string row_sum_fit(const ConstView& x) {
  constexpr std::int64_t kMostColumns = 1 << 20;
  if (x.device == kCpu) return "the kernels are of GPUs";
  if (!cuda_built()) return "built without CUDA";
  if (x.dtype != DType::kF32 && x.dtype != DType::kBF16 && x.dtype != DType::kF16) return "expected f32, bf16 or f16";
  if (x.rank != 2 || !x.contiguous()) return "expected two axes without gaps";
  return x.shape[1] < 1 || x.shape[1] > kMostColumns ? "expected 1 to 1048576 columns" : "";
}

std::int64_t row_sum_workspace(const ConstView& x) {
  return row_sum_parts(x.shape[0]) * x.shape[1] * static_cast<std::int64_t>(sizeof(float));
}

void row_sum(const ConstView& x, const View& sum, const RunOptions& run) {
  if (const std::string why = row_sum_fit(x); !why.empty()) fail(kRowSum, ": x of shape ", shape_text(x), ": ", why);
  if (sum.rank != 1 || sum.shape[0] != x.shape[1] || sum.dtype != DType::kF32 || sum.device != x.device ||
      !ConstView(sum).contiguous())
    fail(kRowSum, ": sum has shape ", shape_text(sum), " and dtype ", name_of(sum.dtype), ", expected [", x.shape[1],
         "] f32, contiguous, on the device of x");
  const std::int64_t bytes = row_sum_workspace(x);
  if (static_cast<std::int64_t>(run.workspace.size()) < bytes)
    fail(kRowSum, ": workspace has ", run.workspace.size(), " bytes, expected ", bytes);
  RowSumJob job;
  job.x = x.data, job.sum = static_cast<float*>(sum.data), job.dtype = x.dtype;
  job.parts = reinterpret_cast<float*>(run.workspace.data());
  job.rows = x.shape[0], job.columns = x.shape[1], job.stream = run.stream;
  job.aligned = reinterpret_cast<std::uintptr_t>(job.x) % 16 == 0 && job.columns * size_of(job.dtype) % 16 == 0;
  const DeviceGuard guard(x.device);
  row_sum_cuda(job);
}

}  // namespace mhla
