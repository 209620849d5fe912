// Sums of rows in f32 (kernels/row_sum); what the kernels do not take, and second derivatives, are LibTorch's
// operators.
#include "mhla/core/error.h"
#include "mhla/kernels/row_sum/row_sum.h"
#include "mhla/ops/attention_op.h"

namespace mhla::ops {
namespace {

constexpr const char* kRowSumEntry = "row_sum";

// In two steps: sums of f32 over many rows at once would lose digits.
at::Tensor by_operators(const at::Tensor& rows, at::ScalarType wide) {
  constexpr std::int64_t kPart = 128;
  const std::int64_t even = rows.size(0) / kPart * kPart;
  const at::Tensor rest = rows.narrow(0, even, rows.size(0) - even).sum(0, /*keepdim=*/false, wide);
  if (even == 0) return rest;
  const at::Tensor parts = rows.narrow(0, 0, even).reshape({-1, kPart, rows.size(1)});
  const at::Tensor sum = parts.sum(1, /*keepdim=*/false, wide).sum(0);
  return even < rows.size(0) ? sum + rest : sum;
}

}  // namespace

at::Tensor row_sum(const at::Tensor& x) {
  if (x.dim() < 1) fail(kRowSumEntry, ": x is a number, expected [..., C]");
  const at::Tensor rows = x.reshape({-1, x.size(-1)});
  const at::ScalarType wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const bool near =
      (rows.is_cuda() || rows.is_cpu()) && rows.is_contiguous() && rows.numel() > 0 &&
      !(at::GradMode::is_enabled() && x.requires_grad());  // create_graph: a sum that has gradients itself
  if (!near || !row_sum_fit(view_of(rows, kRowSumEntry, "x")).empty()) return by_operators(rows, wide);
  const ConstView view = view_of(rows, kRowSumEntry, "x");
  const at::Tensor sum = at::empty({rows.size(1)}, rows.options().dtype(at::kFloat));
  RunOptions run;
  run.stream = current_stream(rows);
  at::Tensor memory;
  if (rows.is_cuda()) memory = device_workspace(rows, row_sum_workspace(view)), run.workspace = bytes_of(memory);
  mhla::row_sum(view, output_view(sum, kRowSumEntry, "sum"), run);
  return sum;
}

}  // namespace mhla::ops
