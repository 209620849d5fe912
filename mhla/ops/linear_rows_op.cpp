// linear_rows of mhla/kernels on tensors: inference, nothing is registered with the dispatcher.
#include "mhla/core/error.h"
#include "mhla/kernels/linear/linear_rows_step.h"
#include "mhla/ops/rows_step.h"
#include "mhla/ops/tensor_view.h"

namespace mhla::ops {
namespace {

constexpr const char* kLinearRows = "linear_rows";

at::Tensor rows_of(const at::Tensor& x, std::int64_t columns) { return x.defined() ? x.view({-1, columns}) : x; }

// [..., K] as rows, without a copy; the tensors outlive the call.
struct Views {
  at::Tensor x, gate, add;
  LinearRowsParams params;
  explicit Views(const RowsInputs& in) {
    const std::int64_t K = in.weight.size(1), O = in.weight.size(0);
    x = rows_of(in.x, K), gate = rows_of(in.gate, K), add = rows_of(in.add, O);
    params.before = in.before, params.after = in.after, params.head = in.head, params.eps = in.eps;
    params.x = view_of(x, kLinearRows, "x"), params.weight = view_of(in.weight, kLinearRows, "weight");
    params.maybe_second = view_of(in.second, kLinearRows, "second"),
    params.maybe_scale = view_of(in.scale, kLinearRows, "scale");
    params.maybe_gate = view_of(gate, kLinearRows, "gate"), params.maybe_add = view_of(add, kLinearRows, "add");
  }
};

// Lines of the table, one for each row.
struct StepViews {
  at::Tensor cos, sin;
  RowsStep step;
  StepViews(const RowsStepInputs& in, std::int64_t rows) {
    step.maybe_next = view_of(in.next, kLinearRows, "next");
    step.silu_second = in.silu_second, step.silu_done = in.silu_done;
    if (in.turn.columns == 0) return;
    const auto lines = [&](const at::Tensor& x) { return x.dim() == 3 ? x.select(1, 0) : x.expand({rows, -1}); };
    cos = lines(in.turn.table.cos), sin = lines(in.turn.table.sin);
    RowsTurn& turn = step.turn;
    turn.cos = view_of(cos, kLinearRows, "cos"), turn.sin = view_of(sin, kLinearRows, "sin");
    turn.columns = in.turn.columns, turn.head = in.turn.head, turn.feature_map = in.turn.feature_map;
  }
};

bool takes_rows(const RowsInputs& in) {
  if (at::GradMode::is_enabled() || !in.x.is_cuda()) return false;
  for (const at::Tensor* each : {&in.x, &in.gate, &in.add}) {
    if (each->defined() && !each->is_contiguous()) return false;
  }
  return true;
}

}  // namespace

bool rows_fit(const RowsInputs& in) { return takes_rows(in) && linear_rows_fit(Views(in).params).empty(); }
RowsOutputs linear_rows(const RowsInputs& in) { return linear_rows_step(in, {}); }

bool rows_step_fit(const RowsInputs& in, const RowsStepInputs& step) {
  if (!takes_rows(in)) return false;
  const at::Tensor &cos = step.turn.table.cos, &sin = step.turn.table.sin;
  if (step.turn.columns != 0) {
    if (!cos.defined() || !step.turn.table.halves || cos.sizes() != sin.sizes()) return false;
    if (cos.dim() == 3 ? cos.size(1) != 1 : cos.dim() != 2 || cos.size(0) != 1) return false;
  }
  const Views views(in);
  return linear_rows_step_fit(views.params, StepViews(step, views.x.size(0)).step).empty();
}

RowsOutputs linear_rows_step(const RowsInputs& in, const RowsStepInputs& step) {
  const Views views(in);
  const at::ScalarType dtype = in.after == RowsAfter::kAdd ? at::kFloat : at::kBFloat16;
  std::vector<std::int64_t> shape = in.x.sizes().vec();
  const auto make = [&](std::int64_t columns) {
    shape.back() = columns;
    return at::empty(shape, in.x.options().dtype(dtype));
  };
  RowsOutputs y;
  y.out = make(in.weight.size(0));
  RunOptions run;
  run.stream = current_stream(in.x);
  View second;
  if (in.after == RowsAfter::kStore && in.second.defined()) {
    y.second = make(in.second.size(0));
    second = output_view(rows_of(y.second, in.second.size(0)), kLinearRows, "second");
  }
  const View out = output_view(rows_of(y.out, in.weight.size(0)), kLinearRows, "out");
  mhla::linear_rows_step(views.params, StepViews(step, views.x.size(0)).step, out, second, run);
  return y;
}

}  // namespace mhla::ops
