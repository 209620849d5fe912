#include "mhla/kernels/norm/norm.h"

#include <vector>

#include "mhla/core/cuda.h"
#include "mhla/core/error.h"
#include "mhla/core/threads.h"
#include "mhla/kernels/norm/norm_job.h"

namespace mhla {
namespace {

void expect_rows(const ConstView& view, const ConstView& x, const char* entry, const char* name) {
  if (view.rank != 2 || view.shape[0] != x.shape[0] || view.shape[1] != x.shape[1])
    fail(entry, ": ", name, " has shape ", shape_text(view), ", expected ", shape_text(x), " like x");
  if (view.stride[1] != 1 && view.shape[1] > 1)
    fail(entry, ": ", name, " has column stride ", view.stride[1], ", expected 1");
  if (view.device != x.device) fail(entry, ": ", name, " is on another device than x");
}

void expect_columns(const ConstView& view, const ConstView& x, const char* entry, const char* name) {
  if (view.rank != 1 || view.shape[0] != x.shape[1] || !view.contiguous() || view.dtype != DType::kF32)
    fail(entry, ": ", name, " has shape ", shape_text(view), " and dtype ", name_of(view.dtype), ", expected ",
         x.shape[1], " f32 values in a row");
  if (view.device != x.device) fail(entry, ": ", name, " is on another device than x");
}

template <class V>
NormRows norm_rows(const V& view) {
  if (!view.given()) return {};
  const auto piece = static_cast<std::uintptr_t>(4 * size_of(view.dtype));
  const bool aligned = reinterpret_cast<std::uintptr_t>(view.data) % piece == 0;
  return {const_cast<void*>(static_cast<const void*>(view.data)), view.stride[0], view.dtype,
          aligned && view.stride[0] % 4 == 0 && view.shape[1] % 4 == 0};
}

NormRows column_row(const ConstView& view) {
  const auto piece = static_cast<std::uintptr_t>(4 * size_of(view.dtype));
  const bool aligned = reinterpret_cast<std::uintptr_t>(view.data) % piece == 0 && view.shape[0] % 4 == 0;
  return {const_cast<void*>(view.data), 0, view.dtype, aligned};
}

template <class V>
auto* floats_of(const V& view) {
  return view.given() ? data_as<float>(view) : nullptr;
}

NormJob job_of(const NormParams& p, const char* entry, void* stream) {
  if (p.x.rank != 2) fail(entry, ": x has shape ", shape_text(p.x), ", expected [rows, columns]");
  expect_rows(p.x, p.x, entry, "x");
  if (p.x.device == kCpu || !is_kernel_dtype(p.weight.dtype)) {
    expect_columns(p.weight, p.x, entry, "weight");
  } else {
    ConstView weight = p.weight;  // of any of the three
    weight.dtype = DType::kF32;
    expect_columns(weight, p.x, entry, "weight");
  }
  if (p.maybe_bias.given()) expect_columns(p.maybe_bias, p.x, entry, "bias");
  if (p.maybe_gate.given()) {
    expect_rows(p.maybe_gate, p.x, entry, "gate");
    if (p.maybe_gate.dtype != p.x.dtype) fail(entry, ": gate has another dtype than x");
  }
  if (!(p.eps >= 0)) fail(entry, ": eps is ", p.eps, ", expected 0 or more");
  NormJob job;
  job.x = norm_rows(p.x), job.gate = norm_rows(p.maybe_gate);
  job.weight = column_row(p.weight), job.bias = floats_of(p.maybe_bias);
  job.rows = p.x.shape[0], job.X = static_cast<int>(p.x.shape[1]);
  job.eps = static_cast<float>(p.eps), job.centered = p.centered;
  job.stream = stream;
  return job;
}

void expect_fit(const NormParams& p, DType out, const char* entry) {
  if (const std::string why = norm_fit(p, out); !why.empty()) fail(entry, ": ", why);
}

// add and its sum, or dsum and dadd: what comes with the residual stream.
void expect_stream(const NormParams& p, const ConstView& view, const char* entry, const char* name) {
  expect_rows(view, p.x, entry, name);
  if (p.x.device == kCpu || p.maybe_gate.given())
    fail(entry, ": ", name, " is given, expected a GPU and no gate for it");
}

template <class F>
void with_executor(const RunOptions& run, const F& f) {
  if (run.maybe_executor != nullptr) return f(*run.maybe_executor);
  f(*default_executor());
}

}  // namespace

std::string norm_fit(const NormParams& p, DType out) {
  if (!is_kernel_dtype(p.x.dtype) || !is_kernel_dtype(out)) return "expected f32, bf16 or f16";
  if (p.x.device == kCpu) return "";
  if (!cuda_built()) return "built without CUDA";
  if (p.x.shape[1] > kNormMaxColumns) return str("rows of ", p.x.shape[1], ", at most ", kNormMaxColumns);
  return "";
}

void norm(const NormParams& params, const View& out, const RunOptions& run, const View& maybe_sum) {
  constexpr const char* kEntry = "norm";
  NormJob job = job_of(params, kEntry, run.stream);
  expect_rows(out, params.x, kEntry, "out");
  expect_fit(params, out.dtype, kEntry);
  job.y = norm_rows(out);
  if (params.maybe_add.given() != maybe_sum.given()) fail(kEntry, ": add and sum go together");
  if (maybe_sum.given()) {
    expect_stream(params, params.maybe_add, kEntry, "add");
    expect_stream(params, maybe_sum, kEntry, "sum");
    if (maybe_sum.dtype != params.x.dtype || !is_kernel_dtype(params.maybe_add.dtype))
      fail(kEntry, ": sum is ", name_of(maybe_sum.dtype), " and add ", name_of(params.maybe_add.dtype),
           ", expected the dtype of x and f32, bf16 or f16");
    job.add = norm_rows(params.maybe_add), job.sum = norm_rows(maybe_sum);
  }
  if (job.rows == 0 || job.X == 0) return;
  if (params.x.device == kCpu) return with_executor(run, [&](Executor& e) { norm_simd(job, e); });
  const DeviceGuard guard(params.x.device);
  norm_cuda(job);
}

std::int64_t norm_workspace(const NormParams& params) {
  return 2 * norm_parts(params.x.shape[0]) * params.x.shape[1] * static_cast<std::int64_t>(sizeof(float));
}

void norm_backward(const NormParams& params, const NormGrads& grads, const RunOptions& run) {
  constexpr const char* kEntry = "norm_backward";
  NormJob job = job_of(params, kEntry, run.stream);
  expect_rows(grads.dout, params.x, kEntry, "dout");
  expect_rows(grads.dx, params.x, kEntry, "dx");
  expect_fit(params, grads.dout.dtype, kEntry);
  if (grads.dx.dtype != params.x.dtype) fail(kEntry, ": dx has another dtype than x");
  if (grads.maybe_dgate.given() != params.maybe_gate.given()) fail(kEntry, ": dgate and gate go together");
  if (grads.maybe_dgate.given()) {
    expect_rows(grads.maybe_dgate, params.x, kEntry, "dgate");
    if (grads.maybe_dgate.dtype != params.x.dtype) fail(kEntry, ": dgate has another dtype than x");
  }
  if (grads.maybe_dweight.given()) expect_columns(grads.maybe_dweight, params.x, kEntry, "dweight");
  if (grads.maybe_dbias.given()) expect_columns(grads.maybe_dbias, params.x, kEntry, "dbias");
  job.y = norm_rows(grads.dout), job.dx = norm_rows(grads.dx), job.dgate = norm_rows(grads.maybe_dgate);
  job.dweight = floats_of(grads.maybe_dweight), job.dbias = floats_of(grads.maybe_dbias);
  if (grads.maybe_dsum.given()) {
    expect_stream(params, grads.maybe_dsum, kEntry, "dsum");
    if (grads.maybe_dsum.dtype != params.x.dtype) fail(kEntry, ": dsum has another dtype than x");
    job.sum = norm_rows(grads.maybe_dsum);
  }
  if (grads.maybe_dadd.given()) {
    expect_stream(params, grads.maybe_dadd, kEntry, "dadd");
    if (!is_kernel_dtype(grads.maybe_dadd.dtype))
      fail(kEntry, ": dadd is ", name_of(grads.maybe_dadd.dtype), ", expected f32, bf16 or f16");
    job.dadd = norm_rows(grads.maybe_dadd);
  }
  if (job.X == 0) return;
  const std::int64_t bytes = norm_workspace(params);
  if (params.x.device == kCpu) {
    std::vector<float> parts(static_cast<std::size_t>(bytes) / sizeof(float));
    job.parts = parts.data();
    return with_executor(run, [&](Executor& e) { norm_backward_simd(job, e); });
  }
  if (static_cast<std::int64_t>(run.workspace.size()) < bytes)
    fail(kEntry, ": workspace has ", run.workspace.size(), " bytes, expected ", bytes);
  job.parts = reinterpret_cast<float*>(run.workspace.data());
  const DeviceGuard guard(params.x.device);
  norm_backward_cuda(job);
}

}  // namespace mhla
