#include "mhla/kernels/grid_conv/grid_conv.h"

#include <algorithm>

#include "mhla/core/cuda.h"
#include "mhla/core/error.h"
#include "mhla/kernels/grid_conv/grid_conv_job.h"

namespace mhla {
namespace {

template <class V>
bool aligned(const V& view, std::int64_t stride) {
  const auto piece = static_cast<std::uintptr_t>(4 * size_of(view.dtype));
  return reinterpret_cast<std::uintptr_t>(view.data) % piece == 0 && stride % 4 == 0;
}

void expect_tokens(const ConstView& view, const ConstView& v, const char* entry, const char* name) {
  if (view.rank != 3 || view.shape != v.shape || view.dtype != v.dtype || view.device != v.device)
    fail(entry, ": ", name, " has shape ", shape_text(view), " and dtype ", name_of(view.dtype), ", expected ",
         shape_text(v), " ", name_of(v.dtype), " like v, on its device");
  if (!view.contiguous() || !aligned(view, view.shape[2]))
    fail(entry, ": ", name, " has gaps or is not aligned, expected contiguous tokens");
}

void expect_channels(const ConstView& view, std::int64_t numel, const ConstView& v, const char* entry,
                     const char* name) {
  if (view.numel() != numel || !view.contiguous() || view.dtype != DType::kF32 || view.device != v.device ||
      !aligned(view, 4))
    fail(entry, ": ", name, " has shape ", shape_text(view), " and dtype ", name_of(view.dtype), ", expected ", numel,
         " contiguous, aligned f32 numbers on the device of v");
}

GridConvJob job_of(const GridConvParams& p, const char* entry, void* stream) {
  const std::int64_t C = p.v.rank == 3 ? p.v.shape[2] : 0;
  if (p.v.rank != 3 || p.v.shape[1] != p.rows * p.columns || p.rows < 1 || p.columns < 1)
    fail(entry, ": v has shape ", shape_text(p.v), ", expected [B, ", p.rows, " x ", p.columns, ", C]");
  if (const std::string why = grid_conv_fit(p); !why.empty()) fail(entry, ": ", why);
  if (p.v.stride[2] != 1 || !aligned(p.v, p.v.stride[1]) || p.v.stride[0] % 4 != 0)
    fail(entry, ": channels of v are apart or not aligned to four, expected them next to each other");
  expect_channels(p.weight, C * p.kernel * p.kernel, p.v, entry, "weight");
  if (p.maybe_bias.given()) expect_channels(p.maybe_bias, C, p.v, entry, "bias");
  if (p.maybe_base.given()) expect_tokens(p.maybe_base, p.v, entry, "base");
  if (p.maybe_gate.given() && !p.maybe_base.given()) fail(entry, ": a gate is given without base");
  if (p.maybe_gate.given()) expect_tokens(p.maybe_gate, p.v, entry, "gate");
  GridConvJob job;
  job.v = p.v.data, job.base = p.maybe_base.data, job.gate = p.maybe_gate.data;
  job.weight = data_as<float>(p.weight), job.bias = p.maybe_bias.given() ? data_as<float>(p.maybe_bias) : nullptr;
  job.image_stride = p.v.stride[0], job.token_stride = p.v.stride[1];
  job.dtype = p.v.dtype;
  job.images = p.v.shape[0], job.rows = static_cast<int>(p.rows), job.columns = static_cast<int>(p.columns);
  job.channels = static_cast<int>(C), job.kernel = static_cast<int>(p.kernel), job.stream = stream;
  return job;
}

}  // namespace

std::string grid_conv_fit(const GridConvParams& p) {
  constexpr std::int64_t kMost = std::int64_t{1} << 36, kMostOfImage = std::int64_t{1} << 30;  // elements
  if (p.v.device == kCpu) return "the kernels are of GPUs";
  if (!cuda_built()) return "built without CUDA";
  if (!is_kernel_dtype(p.v.dtype)) return "expected f32, bf16 or f16";
  if (p.kernel != 3 && p.kernel != 5) return str("a kernel of ", p.kernel, ", expected 3 or 5");
  if (p.v.shape[2] % 4 != 0) return str(p.v.shape[2], " channels, expected a multiple of 4");
  if (p.v.numel() > kMost || p.rows * p.columns * std::max(p.v.stride[1], p.v.shape[2]) > kMostOfImage)
    return "too many tokens";
  return "";
}

void grid_conv(const GridConvParams& params, const View& out, const RunOptions& run) {
  constexpr const char* kEntry = "grid_conv";
  GridConvJob job = job_of(params, kEntry, run.stream);
  expect_tokens(out, params.v, kEntry, "out");
  job.out = out.data;
  if (params.v.numel() == 0) return;
  const DeviceGuard guard(params.v.device);
  grid_conv_cuda(job);
}

std::int64_t grid_conv_workspace(const GridConvParams& p) {
  return conv_parts(conv_walks(p.v.shape[0], p.rows, p.columns)) * (p.kernel * p.kernel + 1) * p.v.shape[2] *
         static_cast<std::int64_t>(sizeof(float));
}

void grid_conv_backward(const GridConvParams& params, const GridConvGrads& grads, const RunOptions& run) {
  constexpr const char* kEntry = "grid_conv_backward";
  GridConvJob job = job_of(params, kEntry, run.stream);
  const std::int64_t C = params.v.shape[2];
  expect_tokens(grads.dout, params.v, kEntry, "dout");
  expect_tokens(grads.dv, params.v, kEntry, "dv");
  expect_channels(grads.dweight, C * params.kernel * params.kernel, params.v, kEntry, "dweight");
  expect_channels(grads.dbias, C, params.v, kEntry, "dbias");
  if (params.maybe_gate.given()) {
    expect_tokens(grads.maybe_dbase, params.v, kEntry, "dbase");
    expect_tokens(grads.maybe_dgate, params.v, kEntry, "dgate");
  }
  const std::int64_t bytes = grid_conv_workspace(params);
  if (static_cast<std::int64_t>(run.workspace.size()) < bytes)
    fail(kEntry, ": workspace has ", run.workspace.size(), " bytes, expected ", bytes);
  job.dout = grads.dout.data, job.out = grads.dv.data;
  job.dbase = grads.maybe_dbase.data, job.dgate = grads.maybe_dgate.data;
  job.dweight = data_as<float>(grads.dweight), job.dbias = data_as<float>(grads.dbias);
  job.parts = reinterpret_cast<float*>(run.workspace.data());
  if (C == 0) return;
  const DeviceGuard guard(params.v.device);
  grid_conv_backward_cuda(job);
}

}  // namespace mhla
