#include "mhla/kernels/norm/norm_rope.h"

#include "mhla/core/cuda.h"
#include "mhla/core/error.h"
#include "mhla/kernels/norm/norm_rope_job.h"

namespace mhla {
namespace {

constexpr const char* kNormRopeEntry = "norm_rope";

bool in_pieces(const ConstView& view) {  // four columns at a time lie aligned
  const auto piece = static_cast<std::uintptr_t>(4 * size_of(view.dtype));
  return reinterpret_cast<std::uintptr_t>(view.data) % piece == 0 && (view.rank == 1 || view.stride[0] % 4 == 0);
}

void expect_table(const ConstView& view, const NormRopeParams& p, const char* name) {
  if (view.rank != 2 || view.shape[0] < 1 || view.shape[1] * 2 != p.head || !view.contiguous() ||
      view.dtype != DType::kF32 || view.device != p.x.device ||
      reinterpret_cast<std::uintptr_t>(view.data) % (2 * sizeof(float)) != 0)
    fail(kNormRopeEntry, ": ", name, " has shape ", shape_text(view), ", expected [tokens, ", p.head / 2,
         "] in f32 beside x");
}

}  // namespace

std::string norm_rope_fit(const NormRopeParams& p, DType out) {
  if (p.x.device == kCpu) return "the kernel is of GPUs";
  if (!cuda_built()) return "built without CUDA";
  if (!is_kernel_dtype(p.x.dtype) || !is_kernel_dtype(p.weight.dtype) || !is_kernel_dtype(out))
    return "expected f32, bf16 or f16";
  const std::int64_t X = p.x.shape[1];
  if (X > kNormRopeColumns || X % 4 != 0)
    return str("rows of ", X, ", expected a multiple of 4 up to ", kNormRopeColumns);
  if (!in_pieces(p.x) || !in_pieces(p.weight)) return "rows are not aligned to four columns";
  if (p.maybe_cos.given() && (p.head < 4 || p.head % 4 != 0 || X % p.head != 0))
    return str("heads of ", p.head, ", expected a multiple of 4 that divides ", X);
  return "";
}

void norm_rope(const NormRopeParams& p, const View& out, const RunOptions& run) {
  if (p.x.rank != 2 || out.shape != p.x.shape)
    fail(kNormRopeEntry, ": x has shape ", shape_text(p.x), " and out ", shape_text(ConstView(out)),
         ", expected both [rows, X]");
  if (const std::string why = norm_rope_fit(p, out.dtype); !why.empty()) fail(kNormRopeEntry, ": ", why);
  if (p.weight.rank != 1 || p.weight.shape[0] != p.x.shape[1] || p.weight.device != p.x.device)
    fail(kNormRopeEntry, ": weight has shape ", shape_text(p.weight), ", expected [", p.x.shape[1], "] beside x");
  if (!in_pieces(ConstView(out))) fail(kNormRopeEntry, ": out is not aligned to four columns");
  if (!(p.eps >= 0)) fail(kNormRopeEntry, ": eps is ", p.eps, ", expected 0 or more");
  if (p.maybe_cos.given() != p.maybe_sin.given()) fail(kNormRopeEntry, ": cos and sin go together");
  if (p.maybe_cos.given() && p.silu) fail(kNormRopeEntry, ": a table and silu are given, expected one of them");
  const auto rows = [](const ConstView& view, std::int64_t stride) {
    return ModulatedRows{const_cast<void*>(view.data), stride, view.dtype};
  };
  NormRopeJob job;
  job.x = rows(p.x, p.x.stride[0]), job.y = rows(ConstView(out), out.stride[0]), job.weight = rows(p.weight, 0);
  if (p.maybe_cos.given()) {
    expect_table(p.maybe_cos, p, "cos"), expect_table(p.maybe_sin, p, "sin");
    if (p.maybe_sin.shape[0] != p.maybe_cos.shape[0] || p.x.shape[0] % p.maybe_cos.shape[0] != 0)
      fail(kNormRopeEntry, ": ", p.x.shape[0], " rows with tables of ", p.maybe_cos.shape[0], " and ",
           p.maybe_sin.shape[0], " lines, expected a multiple of them");
    job.cos = data_as<float>(p.maybe_cos), job.sin = data_as<float>(p.maybe_sin);
    job.tokens = p.maybe_cos.shape[0], job.head = static_cast<int>(p.head), job.map = p.feature_map;
  }
  job.rows = p.x.shape[0], job.X = static_cast<int>(p.x.shape[1]), job.silu = p.silu;
  job.eps = static_cast<float>(p.eps), job.stream = run.stream;
  if (job.rows == 0 || job.X == 0) return;
  const DeviceGuard guard(p.x.device);
  norm_rope_cuda(job);
}

}  // namespace mhla
