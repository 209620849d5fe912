#include "mhla/kernels/row_sum/row_sum.h"

#include <vector>

#include "mhla/core/cuda.h"
#include "mhla/core/error.h"
#include "mhla/kernels/common/call.h"
#include "mhla/kernels/row_sum/row_sum_job.h"

namespace mhla {
namespace {

constexpr const char* kRowSum = "row_sum";
constexpr const char* kGeluRowSum = "gelu_row_sum";

void check_like(const ConstView& one, const char* name, const ConstView& dout) {
  if (one.rank == 2 && one.shape[0] == dout.shape[0] && one.shape[1] == dout.shape[1] && one.dtype == dout.dtype &&
      one.device == dout.device && one.contiguous())
    return;
  fail(kGeluRowSum, ": ", name, " has shape ", shape_text(one), " and dtype ", name_of(one.dtype), ", expected ",
       shape_text(dout), " ", name_of(dout.dtype), ", contiguous, on the device of dout");
}

RowSumJob job_of(const char* entry, const ConstView& x, const View& sum, const RunOptions& run) {
  if (const std::string why = row_sum_fit(x); !why.empty()) fail(entry, ": x of shape ", shape_text(x), ": ", why);
  if (sum.rank != 1 || sum.shape[0] != x.shape[1] || sum.dtype != DType::kF32 || sum.device != x.device ||
      !ConstView(sum).contiguous())
    fail(entry, ": sum has shape ", shape_text(sum), " and dtype ", name_of(sum.dtype), ", expected [", x.shape[1],
         "] f32, contiguous, on the device of x");
  const std::int64_t bytes = row_sum_workspace(x);
  if (x.device != kCpu && static_cast<std::int64_t>(run.workspace.size()) < bytes)
    fail(entry, ": workspace has ", run.workspace.size(), " bytes, expected ", bytes);
  RowSumJob job;
  job.x = x.data, job.sum = static_cast<float*>(sum.data), job.dtype = x.dtype;
  job.parts = reinterpret_cast<float*>(run.workspace.data());
  job.rows = x.shape[0], job.columns = x.shape[1], job.stream = run.stream;
  return job;
}

void run_job(RowSumJob& job, const ConstView& x, const RunOptions& run) {
  if (x.device == kCpu) {
    std::vector<float> parts(static_cast<std::size_t>(row_sum_workspace(x)) / sizeof(float));
    job.parts = parts.data();
    const CallExecutor call(run, kCpu);
    return row_sum_simd(job, call.executor);
  }
  const DeviceGuard guard(x.device);
  row_sum_cuda(job);
}

bool is_kernel_value(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16; }

// Whether rows at these addresses begin at multiples of 16 bytes.
bool are_aligned(const RowSumJob& job, std::initializer_list<const void*> addresses) {
  for (const void* address : addresses) {
    if (reinterpret_cast<std::uintptr_t>(address) % 16 != 0) return false;
  }
  return job.columns * size_of(job.dtype) % 16 == 0;
}

}  // namespace

std::string row_sum_fit(const ConstView& x) {
  constexpr std::int64_t kMostColumns = 1 << 20;
  if (x.device != kCpu && !cuda_built()) return "built without CUDA";
  if (!is_kernel_value(x.dtype)) return "expected f32, bf16 or f16";
  if (x.rank != 2 || !x.contiguous()) return "expected two axes without gaps";
  return x.shape[1] < 1 || x.shape[1] > kMostColumns ? "expected 1 to 1048576 columns" : "";
}

std::int64_t row_sum_workspace(const ConstView& x) {
  return row_sum_parts(x.shape[0]) * x.shape[1] * static_cast<std::int64_t>(sizeof(float));
}

void row_sum(const ConstView& x, const View& sum, const RunOptions& run) {
  RowSumJob job = job_of(kRowSum, x, sum, run);
  job.aligned = are_aligned(job, {job.x});
  run_job(job, x, run);
}

std::string gelu_fit(const ConstView& x) {
  if (x.device != kCpu) return "the kernel is one of the CPU";
  return is_kernel_value(x.dtype) ? "" : "expected f32, bf16 or f16";
}

void gelu(Gelu kind, const ConstView& x, const View& y, const RunOptions& run) {
  constexpr const char* kEntry = "gelu";
  if (const std::string why = gelu_fit(x); !why.empty()) fail(kEntry, ": x of shape ", shape_text(x), ": ", why);
  if (!x.contiguous() || !ConstView(y).contiguous() || y.rank != x.rank || y.shape != x.shape || y.dtype != x.dtype ||
      y.device != x.device)
    fail(kEntry, ": y has shape ", shape_text(y), " and dtype ", name_of(y.dtype), ", expected ", shape_text(x), " ",
         name_of(x.dtype), " like x, both contiguous, on the CPU");
  const CallExecutor call(run, kCpu);
  gelu_simd({kind, x.data, y.data, x.dtype, x.numel()}, call.executor);
}

void gelu_row_sum(Gelu kind, const ConstView& dout, const ConstView& pre, const View& dpre, const View& sum,
                  const RunOptions& run) {
  RowSumJob job = job_of(kGeluRowSum, dout, sum, run);
  check_like(pre, "pre", dout), check_like(dpre, "dpre", dout);
  job.pre = pre.data, job.dpre = dpre.data, job.gelu = kind;
  job.aligned = are_aligned(job, {job.x, job.pre, job.dpre});
  run_job(job, dout, run);
}

}  // namespace mhla
