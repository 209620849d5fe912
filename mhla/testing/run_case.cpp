#include "mhla/testing/run_case.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <optional>

#include "mhla/core/error.h"
#include "mhla/kernels/bidirectional/bidirectional_candidates.h"
#include "mhla/kernels/chunkwise/chunkwise_candidates.h"
#include "mhla/testing/run_case_device.h"

namespace mhla {
namespace {

constexpr int kDevice = 0;

// Scratch memory of all ones, NaN in every float type, between guard bands: on the host or on a device.
class PoisonedWorkspace {
 public:
  PoisonedWorkspace(std::int64_t bytes, int device, void* stream) : device_(device), stream_(stream) {
    if (device_ == kCpu) {
      memory_ = AlignedBuffer(bytes + 2 * kGuard);
      std::memset(memory_.bytes().data(), 0xff, memory_.bytes().size());
    } else {
      device_memory_ = DeviceBuffer(bytes + 2 * kGuard, device_, stream_);
      fill(device_memory_.bytes().first(kGuard));
      fill(device_memory_.bytes().last(kGuard));
      if (poison()) fill(device_memory_.bytes());
    }
  }
  [[nodiscard]] std::span<std::byte> span() const { return all().subspan(kGuard, all().size() - 2 * kGuard); }
  [[nodiscard]] std::vector<std::byte> bytes() const {  // on the host
    std::vector<std::byte> copy(span().size());
    if (device_ == kCpu) {
      std::copy(span().begin(), span().end(), copy.begin());
    } else {
      device_copy(copy.data(), span().data(), static_cast<std::int64_t>(copy.size()), device_, stream_);
    }
    return copy;
  }
  void check(const Case& c) const {
    if (!intact(all().first(kGuard)) || !intact(all().last(kGuard)))
      fail("run_case: written outside the workspace in ", c.name());
  }

 private:
  static constexpr std::int64_t kGuard = 1024;
  // compute-sanitizer's initcheck takes filled memory for initialised: with MHLA_NO_POISON it is left as it comes.
  static bool poison() {
    const char* off = std::getenv("MHLA_NO_POISON");
    return off == nullptr || *off == 0;
  }
  void fill(std::span<std::byte> bytes) const {
    device_fill(bytes.data(), 0xff, static_cast<std::int64_t>(bytes.size()), device_, stream_);
  }
  [[nodiscard]] std::span<std::byte> all() const { return device_ == kCpu ? memory_.bytes() : device_memory_.bytes(); }
  [[nodiscard]] bool intact(std::span<const std::byte> band) const {
    std::vector<std::byte> copy(band.size());
    if (device_ == kCpu) {
      std::copy(band.begin(), band.end(), copy.begin());
    } else {
      device_copy(copy.data(), band.data(), kGuard, device_, stream_);
    }
    return std::all_of(copy.begin(), copy.end(), [](std::byte byte) { return byte == std::byte{0xff}; });
  }

  int device_;
  void* stream_;
  AlignedBuffer memory_;
  DeviceBuffer device_memory_;
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
void call_with_workspace(const Case& c, RunOptions run, int device, const Sizes& sizes, const Call& call) {
  const PoisonedWorkspace workspace(sizes(run), device, run.stream);
  run.workspace = workspace.span();
  call(run);
  workspace.check(c);
}

struct BidirectionalCalls {
  static constexpr auto forward = bidirectional_forward;
  static constexpr auto backward = bidirectional_backward;
  static constexpr auto forward_workspace = bidirectional_forward_workspace;
  static constexpr auto backward_workspace = bidirectional_backward_workspace;
  static constexpr auto kept = bidirectional_kept;
};
struct ChunkwiseCalls {
  static constexpr auto forward = chunkwise_forward;
  static constexpr auto backward = chunkwise_backward;
  static constexpr auto forward_workspace = chunkwise_forward_workspace;
  static constexpr auto backward_workspace = chunkwise_backward_workspace;
  static constexpr auto kept = chunkwise_kept;
};

// Memory for what forward keeps, where it was asked for: backward must only read it.
class Kept {
 public:
  Kept(const Case& c, RunOptions& run, int device, std::int64_t bytes) : case_(c) {
    if (bytes == 0) return;
    memory_.emplace(bytes, device, run.stream);
    run.kept = memory_->span();
  }
  void written() {
    if (memory_) before_ = memory_->bytes();
  }
  void check() const {
    if (!memory_) return;
    memory_->check(case_);
    if (memory_->bytes() != before_) fail("run_case: backward wrote what forward kept in ", case_.name());
  }

 private:
  const Case& case_;
  std::optional<PoisonedWorkspace> memory_;
  std::vector<std::byte> before_;
};

// The outputs of a case, those that were wanted, in the order of kResultFields.
struct Outputs {
  std::array<Output, std::size(kResultFields)> list;

  Outputs() = default;
  Outputs(const Case& c, const CaseInputs& in, unsigned wanted) {
    const DType dtype = in.q.dtype;
    const auto gradient = [&](const ConstView& like, std::int64_t column) {
      if (!like.given()) return Output();
      return c.fused ? Output::slice(c, dtype, like.shape[2], like.shape[3], column)
                     : Output::plain(like.dtype, shape_of(like));
    };
    list[0] = c.fused ? Output::head_major(c, dtype, c.H, c.E) : Output::plain(dtype, {c.B, c.N, c.H, c.E});
    list[1] = gradient(in.q, 0), list[2] = gradient(in.k, 1), list[3] = gradient(in.v, 2);
    list[4] = Output::plain(in.mix.dtype, shape_of(in.mix));
    list[5] = gradient(in.maybe_q_den, 3), list[6] = gradient(in.maybe_k_den, 4);
    for (std::size_t f = 0; f < list.size(); ++f) {
      if ((wanted >> f & 1u) == 0) list[f] = Output();
    }
  }
  [[nodiscard]] bool any_gradient() const {
    return std::any_of(list.begin() + 1, list.end(), [](const Output& output) { return output.view.given(); });
  }
  template <class Grads>
  [[nodiscard]] Grads grads(const ConstView& dout) const {
    return {dout, list[1].view, list[2].view, list[3].view, list[4].view, list[5].view, list[6].view};
  }
};

// The passes whose results are wanted, over views that lie where the candidate works.
void run_passes(const Case& c, const CaseInputs& in, const Outputs& outputs, RunOptions run, int device,
                std::int64_t* maybe_kept) {
  const View out = outputs.list[0].view;
  const auto passes = [&](const auto& params, const auto& grads, const auto& form) {
    if (maybe_kept != nullptr) *maybe_kept = form.kept(params, out, run);
    Kept kept(c, run, device, maybe_kept == nullptr ? 0 : *maybe_kept);
    if (out.given()) {
      call_with_workspace(
          c, run, device, [&](const RunOptions& r) { return form.forward_workspace(params, out, r); },
          [&](const RunOptions& r) { form.forward(params, out, r); });
    }
    kept.written();
    if (outputs.any_gradient()) {
      call_with_workspace(
          c, run, device, [&](const RunOptions& r) { return form.backward_workspace(params, grads, r); },
          [&](const RunOptions& r) { form.backward(params, grads, r); });
    }
    kept.check();
  };
  if (c.form == Form::kBidirectional) {
    passes(bidirectional_params(c, in), outputs.grads<BidirectionalGrads>(in.dout), BidirectionalCalls{});
  } else {
    passes(chunkwise_params(c, in), outputs.grads<ChunkwiseGrads>(in.dout), ChunkwiseCalls{});
  }
}

struct NamedInput {
  const char* name;
  ConstView CaseInputs::*view;
};
constexpr NamedInput kInputs[] = {{"q", &CaseInputs::q},
                                  {"k", &CaseInputs::k},
                                  {"v", &CaseInputs::v},
                                  {"dout", &CaseInputs::dout},
                                  {"q_den", &CaseInputs::maybe_q_den},
                                  {"k_den", &CaseInputs::maybe_k_den},
                                  {"mix", &CaseInputs::mix}};

bool for_one_card(std::string_view candidate) { return candidate.substr(0, 2) == "sm" && on_device(candidate); }

}  // namespace

CaseResult run_case(const Case& c, const CaseInputs& in, const RunOptions& run, unsigned wanted,
                    std::int64_t* maybe_kept) {
  const bool backward = has_backward(c.form, run.candidate) &&
                        (!for_one_card(run.candidate) || steps_aside(c, run.candidate, true).empty());
  Outputs outputs(c, in, backward ? wanted : wanted & kOnlyOut);
  if (on_device(run.candidate)) {
    CaseInputs placed = in.alias();
    Outputs placed_outputs;  // views only: the memory stays in `outputs`
    DevicePlace place(kDevice, run.stream);
    for (const NamedInput& input : kInputs) place.move_input(placed.*input.view, input.name);
    for (std::size_t f = 0; f < outputs.list.size(); ++f) {
      placed_outputs.list[f].view = outputs.list[f].view;
      place.move_output(placed_outputs.list[f].view, outputs.list[f].memory.guarded_bytes(), kResultFields[f].name);
    }
    run_passes(c, placed, placed_outputs, run, kDevice, maybe_kept);
    place.finish(c.name());
  } else {
    run_passes(c, in, outputs, run, kCpu, maybe_kept);
  }
  CaseResult result;
  for (std::size_t f = 0; f < outputs.list.size(); ++f) {
    if (outputs.list[f].view.given()) result.*kResultFields[f].tensor = outputs.list[f].take(c, kResultFields[f].name);
  }
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

bool on_device(std::string_view candidate) {
  return bidirectional_on_device(candidate) || chunkwise_on_device(candidate);
}

std::string missing_here(std::string_view candidate) { return on_device(candidate) ? cuda_missing() : std::string(); }

std::string steps_aside(const Case& c, std::string_view candidate, bool backward) {
  if (!for_one_card(candidate)) return {};
  if (!missing_here(candidate).empty()) return missing_here(candidate);
  CaseInputs in(c);  // only sizes are looked at: host memory may pass for the device's
  Outputs outputs(c, in, backward ? kAllResults : kOnlyOut);
  for (const NamedInput& input : kInputs) (in.*input.view).device = kDevice;
  for (Output& output : outputs.list) output.view.device = kDevice;
  std::vector<Support> support;
  if (c.form == Form::kBidirectional) {
    const BidirectionalParams params = bidirectional_params(c, in);
    support = backward ? bidirectional_backward_support(params, outputs.grads<BidirectionalGrads>(in.dout))
                       : bidirectional_forward_support(params, outputs.list[0].view);
  } else {
    const ChunkwiseParams params = chunkwise_params(c, in);
    support = backward ? chunkwise_backward_support(params, outputs.grads<ChunkwiseGrads>(in.dout))
                       : chunkwise_forward_support(params, outputs.list[0].view);
  }
  for (const Support& one : support)
    if (one.name == candidate) return one.reason;
  return "no candidate of that name";
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
