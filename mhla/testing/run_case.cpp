#include "mhla/testing/run_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "mhla/core/error.h"
#include "mhla/kernels/bidirectional/bidirectional_candidates.h"
#include "mhla/kernels/chunkwise/chunkwise_candidates.h"

namespace mhla {
namespace {

// Scratch memory of all ones, NaN in every float type, between guard bands.
class PoisonedWorkspace {
 public:
  explicit PoisonedWorkspace(std::int64_t bytes) : memory_(bytes + 2 * kGuard) {
    std::memset(memory_.bytes().data(), 0xff, memory_.bytes().size());
  }
  [[nodiscard]] std::span<std::byte> span() const {
    return memory_.bytes().subspan(kGuard, memory_.bytes().size() - 2 * kGuard);
  }
  void check(const Case& c) const {
    const auto intact = [](std::byte byte) { return byte == std::byte{0xff}; };
    const auto bytes = memory_.bytes();
    if (!std::all_of(bytes.begin(), bytes.begin() + kGuard, intact) ||
        !std::all_of(bytes.end() - kGuard, bytes.end(), intact)) {
      fail("run_case: written outside the workspace in ", c.name());
    }
  }

 private:
  static constexpr std::int64_t kGuard = 1024;
  AlignedBuffer memory_;
};

// An output in memory of its own or as a slice of a larger tensor whose other elements must stay NaN.
struct Output {
  Tensor memory;
  View view;

  static Output plain(DType dtype, std::vector<std::int64_t> shape) {
    Output output;
    output.memory = Tensor(dtype, std::move(shape));
    output.view = output.memory.view();
    return output;
  }
  // Token rows of `width` elements, the slice starting at `column`.
  static Output slice(const Case& c, DType dtype, std::int64_t heads, std::int64_t size, std::int64_t column) {
    const std::int64_t width = heads * size + 2 * column + 3;
    Output output = plain(dtype, {c.B, c.N, width});
    output.view =
        View(static_cast<std::byte*>(output.memory.data()) + column * size_of(dtype), dtype, {c.B, c.N, heads, size});
    output.view.stride = {c.N * width, width, size, 1};
    return output;
  }
  // [B, heads, N, size] in memory, seen as [B, N, heads, size].
  static Output head_major(const Case& c, DType dtype, std::int64_t heads, std::int64_t size) {
    Output output = plain(dtype, {c.B, heads, c.N, size});
    output.view = View(output.memory.data(), dtype, {c.B, c.N, heads, size});
    output.view.stride = {heads * c.N * size, size, c.N * size, 1};
    return output;
  }

  Tensor take(const Case& c, const char* name) const {
    if (!memory.guards_intact()) fail("run_case: written outside ", name, " in ", c.name());
    Tensor copy = contiguous(view);
    std::int64_t poisoned = 0;
    for (std::int64_t index = 0; index < memory.numel(); ++index) poisoned += std::isnan(memory.at(index));
    for (std::int64_t index = 0; index < copy.numel(); ++index) poisoned -= std::isnan(copy.at(index));
    if (poisoned != memory.numel() - copy.numel())
      fail("run_case: written between the rows of ", name, " in ", c.name());
    return copy;
  }
};

std::vector<std::int64_t> shape_of(const ConstView& view) {
  return {view.shape.begin(), view.shape.begin() + view.rank};
}

template <class Sizes, class Call>
void call_with_workspace(const Case& c, RunOptions run, const Sizes& sizes, const Call& call) {
  const PoisonedWorkspace workspace(sizes(run));
  run.workspace = workspace.span();
  call(run);
  workspace.check(c);
}

}  // namespace

CaseResult run_case(const Case& c, const CaseInputs& in, const RunOptions& run) {
  const DType dtype = in.q.dtype;
  const bool backward = has_backward(c.form, run.candidate);
  const auto output = [&](const ConstView& like, std::int64_t column) {
    if (!like.given() || !backward) return Output();
    return c.fused ? Output::slice(c, dtype, like.shape[2], like.shape[3], column)
                   : Output::plain(like.dtype, shape_of(like));
  };
  Output out = c.fused ? Output::head_major(c, dtype, c.H, c.E) : Output::plain(dtype, {c.B, c.N, c.H, c.E});
  Output dq = output(in.q, 0), dk = output(in.k, 1), dv = output(in.v, 2);
  Output dq_den = output(in.maybe_q_den, 3), dk_den = output(in.maybe_k_den, 4);
  Output dmix = Output::plain(in.mix.dtype, shape_of(in.mix));

  if (c.form == Form::kBidirectional) {
    const BidirectionalParams params = bidirectional_params(c, in);
    const BidirectionalGrads grads{in.dout, dq.view, dk.view, dv.view, dmix.view, dq_den.view, dk_den.view};
    call_with_workspace(
        c, run, [&](const RunOptions& r) { return bidirectional_forward_workspace(params, out.view, r); },
        [&](const RunOptions& r) { bidirectional_forward(params, out.view, r); });
    if (backward) {
      call_with_workspace(
          c, run, [&](const RunOptions& r) { return bidirectional_backward_workspace(params, grads, r); },
          [&](const RunOptions& r) { bidirectional_backward(params, grads, r); });
    }
  } else {
    const ChunkwiseParams params = chunkwise_params(c, in);
    const ChunkwiseGrads grads{in.dout, dq.view, dk.view, dv.view, dmix.view, dq_den.view, dk_den.view};
    call_with_workspace(
        c, run, [&](const RunOptions& r) { return chunkwise_forward_workspace(params, out.view, r); },
        [&](const RunOptions& r) { chunkwise_forward(params, out.view, r); });
    if (backward) {
      call_with_workspace(
          c, run, [&](const RunOptions& r) { return chunkwise_backward_workspace(params, grads, r); },
          [&](const RunOptions& r) { chunkwise_backward(params, grads, r); });
    }
  }

  CaseResult result;
  result.out = out.take(c, "out");
  if (!backward) return result;
  result.dq = dq.take(c, "dq"), result.dk = dk.take(c, "dk"), result.dv = dv.take(c, "dv");
  result.dmix = dmix.take(c, "dmix");
  if (in.maybe_q_den.given())
    result.maybe_dq_den = dq_den.take(c, "dq_den"), result.maybe_dk_den = dk_den.take(c, "dk_den");
  return result;
}

CaseResult reference_case(const Case& c, const CaseInputs& in) {
  RunOptions run;
  run.candidate = "ref";
  return run_case(c, in.to(DType::kF64), run);
}

bool has_backward(Form form, std::string_view candidate) {
  const auto names =
      form == Form::kBidirectional ? bidirectional_backward_candidates() : chunkwise_backward_candidates();
  return candidate.empty() || std::find(names.begin(), names.end(), candidate) != names.end();
}

std::vector<std::string_view> candidates_of(Form form) {
  return form == Form::kBidirectional ? bidirectional_candidates() : chunkwise_candidates();
}

CaseSlice slice_case(const Case& c, const CaseInputs& in, std::int64_t batch, std::int64_t start, std::int64_t length) {
  CaseSlice slice{c, in.alias()};
  slice.c.B = 1, slice.c.N = length;
  slice.c.rows = c.mix_rows();
  slice.c.cu_seqlens.clear();
  slice.inputs.maybe_cu_seqlens = {};
  for (ConstView* view : {&slice.inputs.q, &slice.inputs.k, &slice.inputs.v, &slice.inputs.dout,
                          &slice.inputs.maybe_q_den, &slice.inputs.maybe_k_den}) {
    if (!view->given()) continue;
    const std::int64_t offset = batch * view->stride[0] + start * view->stride[1];
    view->data = static_cast<const std::byte*>(view->data) + offset * size_of(view->dtype);
    view->shape[0] = 1, view->shape[1] = length;
  }
  return slice;
}

}  // namespace mhla
