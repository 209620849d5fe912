#include "mhla/kernels/norm/modulated_norm.h"

#include <vector>

#include "mhla/core/cuda.h"
#include "mhla/core/error.h"
#include "mhla/kernels/common/call.h"
#include "mhla/kernels/norm/modulated_norm_job.h"

namespace mhla {
namespace {

// A GPU reads and writes four columns at a time.
void expect_pieces(const ConstView& view, std::int64_t stride, const char* entry, const char* name) {
  if (view.device == kCpu) return;
  const auto piece = static_cast<std::uintptr_t>(4 * size_of(view.dtype));
  if (reinterpret_cast<std::uintptr_t>(view.data) % piece != 0 || stride % 4 != 0)
    fail(entry, ": ", name, " is not aligned to four columns");
}

ModulatedRows tokens_of(const ConstView& view, const ConstView& x, const char* entry, const char* name) {
  if (!view.given()) return {};
  if (view.rank != 3 || view.shape != x.shape)
    fail(entry, ": ", name, " has shape ", shape_text(view), ", expected ", shape_text(x), " like x");
  if (!view.contiguous()) fail(entry, ": ", name, " has gaps, expected contiguous tokens");
  if (view.device != x.device) fail(entry, ": ", name, " is on another device than x");
  if (!is_kernel_dtype(view.dtype))
    fail(entry, ": ", name, " has dtype ", name_of(view.dtype), ", expected f32, bf16 or f16");
  expect_pieces(view, view.shape[2], entry, name);
  return {const_cast<void*>(static_cast<const void*>(view.data)), view.shape[2], view.dtype};
}

ModulatedRows tokens_of(const View& view, const ConstView& x, const char* entry, const char* name) {
  return tokens_of(ConstView(view), x, entry, name);
}

ModulatedRows samples_of(const ConstView& view, const ConstView& x, const char* entry, const char* name) {
  if (!view.given()) return {};
  if (view.rank != 2 || view.shape[0] != x.shape[0] || view.shape[1] != x.shape[2])
    fail(entry, ": ", name, " has shape ", shape_text(view), ", expected [", x.shape[0], ", ", x.shape[2], "]");
  if (view.stride[1] != 1 && view.shape[1] > 1)
    fail(entry, ": ", name, " has column stride ", view.stride[1], ", expected 1");
  if (view.device != x.device) fail(entry, ": ", name, " is on another device than x");
  if (!is_kernel_dtype(view.dtype))
    fail(entry, ": ", name, " has dtype ", name_of(view.dtype), ", expected f32, bf16 or f16");
  expect_pieces(view, view.stride[0], entry, name);
  return {const_cast<void*>(static_cast<const void*>(view.data)), view.stride[0], view.dtype};
}

ModulatedNormJob job_of(const ModulatedNormParams& p, DType out, const char* entry, void* stream) {
  if (p.x.rank != 3) fail(entry, ": x has shape ", shape_text(p.x), ", expected [B, N, X]");
  if (const std::string why = modulated_norm_fit(p, out); !why.empty()) fail(entry, ": ", why);
  if (p.maybe_branch.given() != p.maybe_gate.given()) fail(entry, ": branch and gate go together");
  if (!p.scale.given()) fail(entry, ": scale is not given");
  if (!(p.eps >= 0)) fail(entry, ": eps is ", p.eps, ", expected 0 or more");
  ModulatedNormJob job;
  job.x = tokens_of(p.x, p.x, entry, "x"), job.branch = tokens_of(p.maybe_branch, p.x, entry, "branch");
  job.gate = samples_of(p.maybe_gate, p.x, entry, "gate"), job.scale = samples_of(p.scale, p.x, entry, "scale");
  job.shift = samples_of(p.shift, p.x, entry, "shift");
  job.samples = p.x.shape[0], job.tokens = p.x.shape[1], job.X = static_cast<int>(p.x.shape[2]);
  job.eps = static_cast<float>(p.eps), job.stream = stream;
  return job;
}

}  // namespace

std::string modulated_norm_fit(const ModulatedNormParams& p, DType out) {
  if (!is_kernel_dtype(p.x.dtype) || !is_kernel_dtype(out)) return "expected f32, bf16 or f16";
  if (p.x.device == kCpu) return "";
  if (!cuda_built()) return "built without CUDA";
  if (p.x.shape[2] > kModulatedColumns) return str("rows of ", p.x.shape[2], ", at most ", kModulatedColumns);
  if (p.x.shape[2] % 4 != 0) return str("rows of ", p.x.shape[2], ", expected a multiple of 4");
  if (p.x.shape[0] > 65535) return str("a batch of ", p.x.shape[0], ", at most 65535");
  return "";
}

void modulated_norm(const ModulatedNormParams& params, const View& maybe_sum, const View& out, const RunOptions& run) {
  constexpr const char* kEntry = "modulated_norm";
  ModulatedNormJob job = job_of(params, out.dtype, kEntry, run.stream);
  if (job.shift.data == nullptr && params.x.shape[0] > 0) fail(kEntry, ": shift is not given");
  if (maybe_sum.given() != params.maybe_branch.given()) fail(kEntry, ": sum and branch go together");
  if (maybe_sum.given() && maybe_sum.dtype != params.x.dtype) fail(kEntry, ": sum has another dtype than x");
  job.y = tokens_of(out, params.x, kEntry, "out"), job.sum = tokens_of(maybe_sum, params.x, kEntry, "sum");
  if (job.samples == 0 || job.tokens == 0 || job.X == 0) return;
  if (params.x.device == kCpu) return modulated_norm_simd(job, CallExecutor(run, kCpu).executor);
  const DeviceGuard guard(params.x.device);
  modulated_norm_cuda(job);
}

std::int64_t modulated_norm_workspace(const ModulatedNormParams& p) {
  return p.x.shape[0] * modulated_parts(p.x.shape[1]) * 3 * p.x.shape[2] * static_cast<std::int64_t>(sizeof(float));
}

void modulated_norm_backward(const ModulatedNormParams& params, const ModulatedNormGrads& grads,
                             const RunOptions& run) {
  constexpr const char* kEntry = "modulated_norm_backward";
  ModulatedNormJob job = job_of(params, grads.dout.dtype, kEntry, run.stream);
  if (grads.maybe_dbranch.given() != params.maybe_branch.given()) fail(kEntry, ": dbranch and branch go together");
  job.y = tokens_of(grads.dout, params.x, kEntry, "dout");
  job.sum = tokens_of(grads.maybe_dsum, params.x, kEntry, "dsum");
  job.dx = tokens_of(grads.dx, params.x, kEntry, "dx");
  job.dbranch = tokens_of(grads.maybe_dbranch, params.x, kEntry, "dbranch");
  if (grads.dx.dtype != params.x.dtype) fail(kEntry, ": dx has another dtype than x");
  const View& d = grads.dmodulation;
  if (d.rank != 3 || d.shape[0] != params.x.shape[0] || d.shape[1] != 3 || d.shape[2] != params.x.shape[2] ||
      d.dtype != DType::kF32 || !d.contiguous() || d.device != params.x.device)
    fail(kEntry, ": dmodulation has shape ", shape_text(d), ", expected contiguous f32 [", params.x.shape[0], ", 3, ",
         params.x.shape[2], "] on the device of x");
  job.dmodulation = data_as<float>(d);
  const std::int64_t bytes = modulated_norm_workspace(params);
  if (params.x.device == kCpu) {
    std::vector<float> parts(static_cast<std::size_t>(bytes) / sizeof(float));
    job.parts = parts.data();
    if (job.samples == 0 || job.X == 0) return;
    return modulated_norm_backward_simd(job, CallExecutor(run, kCpu).executor);
  }
  if (static_cast<std::int64_t>(run.workspace.size()) < bytes)
    fail(kEntry, ": workspace has ", run.workspace.size(), " bytes, expected ", bytes);
  job.parts = reinterpret_cast<float*>(run.workspace.data());
  if (job.samples == 0 || job.X == 0) return;
  const DeviceGuard guard(params.x.device);
  modulated_norm_backward_cuda(job);
}

}  // namespace mhla
