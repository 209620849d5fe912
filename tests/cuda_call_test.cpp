// Calls on a CUDA device as programs make them: recorded into a graph, on a stream of the caller's, with and without a
// workspace, with offsets beyond 32 bits, with more sequences than one launch can carry. Skipped, with the reason,
// where there is no device or the candidate is not in the list of the form.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "mhla/core/cuda.h"
#include "mhla/core/device_graph.h"
#include "mhla/core/error.h"
#include "mhla/testing/accuracy.h"
#include "mhla/testing/run_case_device.h"

namespace mhla {
namespace {

constexpr int kDevice = 0;

struct Target {
  Form form;
  const char* candidate;
};

class CudaCall : public testing::TestWithParam<Target> {
 protected:
  void SetUp() override {
    const auto names = candidates_of(GetParam().form);
    if (std::find(names.begin(), names.end(), GetParam().candidate) == names.end())
      GTEST_SKIP() << GetParam().candidate << " is no candidate of this form";
    if (!cuda_missing().empty()) GTEST_SKIP() << GetParam().candidate << ": " << cuda_missing();
  }
  static std::string_view candidate() { return GetParam().candidate; }

  // bf16, four query heads on two kv heads, sizes that every candidate takes.
  static Case plain_case() {
    Case c;
    c.form = GetParam().form, c.dtype = DType::kBF16;
    c.normalizer = c.form == Form::kCausal ? Normalizer::kNone : Normalizer::kPaper;
    c.B = 2, c.N = 256, c.H = 4, c.Hkv = 2, c.D = 64, c.E = 64, c.eps = 0.1;
    c.layout = c.form == Form::kCausal ? Layout::line(64) : Layout::grid2d(16, 16, 4, 4);
    return c;
  }
  static Case packed_case() {
    Case c = plain_case();
    c.B = 1, c.N = 300, c.layout = Layout::line(64), c.cu_seqlens = {0, 70, 70, 199, 300};
    return c;
  }
  // A candidate for one kind of card may leave a case to the next in the list.
  static std::vector<Case> taken(const std::vector<Case>& cases) {
    std::vector<Case> some;
    for (const Case& c : cases) {
      if (steps_aside(c, candidate()).empty()) some.push_back(c);
    }
    EXPECT_FALSE(some.empty()) << candidate() << " takes none of the cases";
    return some;
  }
  // Whether backward is to be run: the candidate has one and takes the case.
  static bool backward(const Case& c) {
    return has_backward(c.form, candidate()) && steps_aside(c, candidate(), true).empty();
  }
};

INSTANTIATE_TEST_SUITE_P(Candidates, CudaCall,
                         testing::Values(Target{Form::kBidirectional, "cuda"}, Target{Form::kBidirectional, "sm80"},
                                         Target{Form::kBidirectional, "sm90"}, Target{Form::kCausal, "cuda"},
                                         Target{Form::kCausal, "sm80"}, Target{Form::kCausal, "sm90"}),
                         [](const auto& test) {
                           return str(test.param.form == Form::kCausal ? "causal_" : "bidirectional_",
                                      test.param.candidate);
                         });

// The views of one call, all on the device, and what runs over them.
struct DeviceCall {
  Case c;
  CaseInputs inputs;  // views on the device; cu_seqlens on the host
  View out, dq, dk, dv, dmix;
  bool backward = true;

  [[nodiscard]] std::int64_t workspace(const RunOptions& run) const {
    std::int64_t bytes = 0;
    if (c.form == Form::kBidirectional) {
      bytes = bidirectional_forward_workspace(bidirectional_params(c, inputs), out, run);
      if (backward) {
        bytes = std::max(bytes, bidirectional_backward_workspace(bidirectional_params(c, inputs),
                                                                 {inputs.dout, dq, dk, dv, dmix, {}, {}}, run));
      }
    } else {
      bytes = chunkwise_forward_workspace(chunkwise_params(c, inputs), out, run);
      if (backward) {
        bytes = std::max(bytes, chunkwise_backward_workspace(chunkwise_params(c, inputs),
                                                             {inputs.dout, dq, dk, dv, dmix, {}, {}}, run));
      }
    }
    return bytes;
  }
  void run(const RunOptions& run) const {
    if (c.form == Form::kBidirectional) {
      bidirectional_forward(bidirectional_params(c, inputs), out, run);
      if (backward)
        bidirectional_backward(bidirectional_params(c, inputs), {inputs.dout, dq, dk, dv, dmix, {}, {}}, run);
    } else {
      chunkwise_forward(chunkwise_params(c, inputs), out, run);
      if (backward) chunkwise_backward(chunkwise_params(c, inputs), {inputs.dout, dq, dk, dv, dmix, {}, {}}, run);
    }
  }
};

// A contiguous tensor on the device, filled with NaN.
struct DeviceTensor {
  DeviceTensor(DType dtype, const std::vector<std::int64_t>& shape) : view(nullptr, dtype, shape) {
    bytes = view.numel() * size_of(dtype);
    memory = DeviceBuffer(bytes, kDevice);
    view.data = memory.data(), view.device = kDevice;
    device_fill(memory.data(), 0xff, bytes, kDevice);
  }
  void put(const ConstView& from) { device_copy(memory.data(), contiguous(from).data(), bytes, kDevice); }
  [[nodiscard]] Tensor get() const {
    Tensor host(view.dtype, std::vector<std::int64_t>(view.shape.begin(), view.shape.begin() + view.rank));
    device_copy(host.data(), memory.data(), bytes, kDevice);
    return host;
  }
  View view;
  DeviceBuffer memory;
  std::int64_t bytes = 0;
};

// One case with contiguous tensors on the device.
struct Prepared {
  Prepared(const Case& c, const CaseInputs& host, bool backward)
      : q(c.dtype, {c.B, c.N, c.H, c.D}),
        k(c.dtype, {c.B, c.N, c.Hkv, c.D}),
        v(c.dtype, {c.B, c.N, c.Hkv, c.E}),
        dout(c.dtype, {c.B, c.N, c.H, c.E}),
        mix(DType::kF32, {c.mix_rows(), c.mix_rows()}),
        out(c.dtype, {c.B, c.N, c.H, c.E}),
        dq(c.dtype, {c.B, c.N, c.H, c.D}),
        dk(c.dtype, {c.B, c.N, c.Hkv, c.D}),
        dv(c.dtype, {c.B, c.N, c.Hkv, c.E}),
        dmix(DType::kF32, {c.mix_rows(), c.mix_rows()}),
        call{c, host.alias(), out.view, dq.view, dk.view, dv.view, dmix.view, backward} {
    call.inputs.q = q.view, call.inputs.k = k.view, call.inputs.v = v.view;
    call.inputs.dout = dout.view, call.inputs.mix = mix.view;
  }
  void put(const CaseInputs& host) {
    q.put(host.q), k.put(host.k), v.put(host.v), dout.put(host.dout), mix.put(host.mix);
  }
  void poison_outputs() {
    for (DeviceTensor* output : {&out, &dq, &dk, &dv, &dmix})
      device_fill(output->memory.data(), 0xff, output->bytes, kDevice);
    device_synchronize(kDevice);
  }
  void expect(const CaseResult& want, const char* what) const {
    const std::pair<const DeviceTensor*, const Tensor*> pairs[] = {
        {&out, &want.out}, {&dq, &want.dq}, {&dk, &want.dk}, {&dv, &want.dv}, {&dmix, &want.dmix}};
    for (std::size_t f = 0; f < std::size(pairs); ++f) {
      if (!pairs[f].second->given()) continue;
      const Tensor got = pairs[f].first->get();
      EXPECT_TRUE(got.same_bits(*pairs[f].second)) << what << ": " << kResultFields[f].name << " has other bits, "
                                                   << worst_element(got, *pairs[f].second) << "\n  " << call.c.name();
    }
  }
  DeviceTensor q, k, v, dout, mix, out, dq, dk, dv, dmix;
  DeviceCall call;
};

RunOptions options(std::string_view candidate, void* stream = nullptr) {
  RunOptions run;
  run.candidate = candidate;
  run.stream = stream;
  return run;
}

// Recording must run nothing; the recorded call must read its tensors anew at every launch.
TEST_P(CudaCall, IsRecordedIntoAGraph) {
  for (const Case& c : taken({plain_case(), packed_case()})) {
    Case other = c;
    other.seed = 77;
    const CaseInputs first(c), second(other);
    const CaseResult want_first = run_case(c, first, options(candidate()));
    const CaseResult want_second = run_case(other, second, options(candidate()));
    Prepared p(c, first, backward(c));
    const DeviceStream stream(kDevice);
    RunOptions run = options(candidate(), stream.get());
    const DeviceBuffer workspace(p.call.workspace(run), kDevice);
    run.workspace = workspace.bytes();
    device_synchronize(kDevice);

    std::optional<DeviceGraph> graph;
    ASSERT_NO_THROW(graph.emplace(kDevice, stream.get(), [&] { p.call.run(run); })) << c.name();
    EXPECT_TRUE(std::isnan(p.out.get().at(0))) << "recording ran the call";
    for (const auto& [inputs, want] :
         {std::pair{&first, &want_first}, {&second, &want_second}, {&first, &want_first}}) {
      p.put(*inputs);
      p.poison_outputs();
      graph->launch(stream.get());
      device_synchronize(kDevice, stream.get());
      p.expect(*want, "launched from a graph");
    }
  }
}

// Inputs that arrive on the stream, late; a call on another stream would read the NaN that is there before.
TEST_P(CudaCall, WaitsForItsStream) {
  for (const Case& c : taken({plain_case(), packed_case()})) {
    const CaseInputs inputs(c);
    const CaseResult want = run_case(c, inputs, options(candidate()));
    Prepared source(c, inputs, backward(c)), p(c, inputs, backward(c));
    source.put(inputs);
    const DeviceStream stream(kDevice);
    RunOptions run = options(candidate(), stream.get());
    const DeviceBuffer workspace(p.call.workspace(run), kDevice), delay(std::int64_t{1} << 30, kDevice);
    run.workspace = workspace.bytes();
    device_fill(workspace.data(), 0xff, workspace.size(), kDevice);
    device_synchronize(kDevice);
    for (int i = 0; i < 20; ++i)
      device_fill(delay.data(), static_cast<unsigned char>(i), delay.size(), kDevice, stream.get());
    const std::pair<DeviceTensor*, DeviceTensor*> pairs[] = {
        {&p.q, &source.q}, {&p.k, &source.k}, {&p.v, &source.v}, {&p.dout, &source.dout}, {&p.mix, &source.mix}};
    for (const auto& [to, from] : pairs)
      device_copy(to->memory.data(), from->memory.data(), to->bytes, kDevice, stream.get());
    p.call.run(run);
    device_synchronize(kDevice, stream.get());
    p.expect(want, "on a stream of its own");
  }
}

TEST_P(CudaCall, AllocatesItsOwnWorkspace) {
  for (const Case& c : taken({plain_case(), packed_case()})) {
    const CaseInputs inputs(c);
    const CaseResult want = run_case(c, inputs, options(candidate()));
    Prepared p(c, inputs, backward(c));
    p.put(inputs);
    const DeviceStream stream(kDevice);
    device_synchronize(kDevice);
    p.call.run(options(candidate(), stream.get()));
    device_synchronize(kDevice, stream.get());
    p.expect(want, "with memory of its own");
  }
}

TEST_P(CudaCall, RefusesAWorkspaceThatIsTooSmall) {
  const Case c = plain_case();
  const CaseInputs inputs(c);
  Prepared p(c, inputs, false);
  p.put(inputs);
  RunOptions run = options(candidate());
  const std::int64_t bytes = p.call.workspace(run);
  if (bytes <= 64) GTEST_SKIP() << "the call needs " << bytes << " bytes";
  const DeviceBuffer workspace(bytes - 64, kDevice);
  run.workspace = workspace.bytes();
  EXPECT_THROW(p.call.run(run), Error);
  EXPECT_TRUE(std::isnan(p.out.get().at(0)));
}

// The candidates on the device are what runs when none is named.
TEST_P(CudaCall, TheListChoosesWithoutAName) {
  const Case c = plain_case();
  const CaseInputs inputs(c);
  Prepared p(c, inputs, backward(c));
  p.put(inputs);
  p.call.run(RunOptions{});
  device_synchronize(kDevice);
  EXPECT_TRUE(std::isfinite(p.out.get().at(0)));
}

// More packed sequences than one launch can take by value, empty ones among them.
TEST_P(CudaCall, ThousandsOfSequences) {
  Case c = plain_case();
  c.B = 1, c.H = 1, c.Hkv = 1, c.D = 16, c.E = 16, c.layout = Layout::line(4), c.cu_seqlens = {0};
  Random random(9);
  for (int s = 0; s < 2500; ++s) c.cu_seqlens.push_back(c.cu_seqlens.back() + random.below(10));
  c.N = c.cu_seqlens.back();
  if (const std::string why = steps_aside(c, candidate()); !why.empty()) GTEST_SKIP() << why;
  EXPECT_EQ(check_accuracy(c, candidate()), "");
}

// More batch elements than the second and third dimension of a launch have room for: those around the edge have the
// bits they have alone.
TEST_P(CudaCall, ManySmallBatchElements) {
  Case c = plain_case();
  c.B = 70000, c.N = 3, c.H = 1, c.Hkv = 1, c.D = 16, c.E = 16, c.layout = Layout::line(2);
  if (const std::string why = steps_aside(c, candidate()); !why.empty()) GTEST_SKIP() << why;
  const CaseInputs inputs(c);
  const CaseResult all = run_case(c, inputs, options(candidate()));
  for (const std::int64_t b : {0, 65534, 65535, 65536, 69999}) {
    const CaseSlice one = slice_case(c, inputs, b, 0, c.N);
    EXPECT_EQ(check_accuracy(one.c, candidate()), "");
    const CaseResult alone = run_case(one.c, one.inputs, options(candidate()));
    for (const ResultField& field : kResultFields) {
      const Tensor& want = alone.*field.tensor;
      if (!want.given() || field.tensor == &CaseResult::dmix) continue;
      ConstView rows = (all.*field.tensor).view();
      rows.data = static_cast<const std::byte*>(rows.data) + b * rows.stride[0] * size_of(rows.dtype);
      rows.shape[0] = 1;
      const Tensor got = contiguous(rows);
      EXPECT_TRUE(got.same_bits(want)) << field.name << " of batch element " << b << ": " << worst_element(got, want);
    }
  }
}

bool has_memory(std::int64_t gibibytes, std::string& reason) {
  const std::int64_t free = device_free_bytes(kDevice) >> 30;
  reason = str("needs ", gibibytes, " GiB of device memory, ", free, " are free");
  return free >= gibibytes;
}

// Rows of a strided device tensor, to or from the host.
enum class Way { kTo, kFrom };
void copy_rows(const View& device, Tensor& host, Way way) {
  const std::int64_t size = size_of(device.dtype), row = device.shape[3] * size;
  std::int64_t at = 0;
  for (std::int64_t b = 0; b < device.shape[0]; ++b) {
    for (std::int64_t t = 0; t < device.shape[1]; ++t) {
      for (std::int64_t h = 0; h < device.shape[2]; ++h, at += row) {
        auto* there = static_cast<std::byte*>(device.data) +
                      (b * device.stride[0] + t * device.stride[1] + h * device.stride[2]) * size;
        auto* here = static_cast<std::byte*>(host.data()) + at;
        way == Way::kTo ? device_copy(there, here, row, kDevice) : device_copy(here, there, row, kDevice);
      }
    }
  }
}

// Tokens, batch elements or heads so far apart that offsets pass 32 bits: 48 x 2^26 elements, 6 GiB in bf16.
TEST_P(CudaCall, StridesBeyond32Bits) {
  constexpr std::int64_t kFar = std::int64_t{1} << 26, kPart = 1 << 20;
  std::string reason;
  if (!has_memory(20, reason)) GTEST_SKIP() << reason;
  const DeviceBuffer in(49 * kFar * 2, kDevice), out(49 * kFar * 2, kDevice);
  for (int far_axis = 0; far_axis < 3; ++far_axis) {
    Case c = plain_case();
    const std::array<std::int64_t, 3> sizes[] = {{48, 8, 2}, {2, 48, 2}, {2, 8, 48}};
    c.B = sizes[far_axis][0], c.N = sizes[far_axis][1], c.H = c.Hkv = sizes[far_axis][2];
    c.D = c.E = 64, c.layout = Layout::line(4);
    if (const std::string why = steps_aside(c, candidate()); !why.empty()) GTEST_SKIP() << why;
    const CaseInputs host(c);
    const CaseResult want = run_case(c, host, options(candidate()));
    device_fill(in.data(), 0xff, in.size(), kDevice);
    const auto view = [&](const DeviceBuffer& buffer, std::int64_t part) {
      View x(buffer.data() + part * kPart * 2, c.dtype, {c.B, c.N, c.H, c.D});
      x.device = kDevice;
      std::int64_t near = c.D;
      for (int axis = 2; axis >= 0; --axis) {
        x.stride[static_cast<std::size_t>(axis)] = axis == far_axis ? kFar : near;
        if (axis != far_axis) near *= x.shape[static_cast<std::size_t>(axis)];
      }
      return x;
    };
    Prepared p(c, host, backward(c));  // for mix and dmix
    p.mix.put(host.mix);
    DeviceCall& call = p.call;
    const std::pair<ConstView*, const ConstView*> inputs[] = {{&call.inputs.q, &host.q},
                                                              {&call.inputs.k, &host.k},
                                                              {&call.inputs.v, &host.v},
                                                              {&call.inputs.dout, &host.dout}};
    std::int64_t part = 0;
    for (const auto& [device, from] : inputs) {
      const View x = view(in, part++);
      Tensor rows = contiguous(*from);
      copy_rows(x, rows, Way::kTo);
      *device = x;
    }
    call.out = view(out, 0), call.dq = view(out, 1), call.dk = view(out, 2), call.dv = view(out, 3);
    call.run(options(candidate()));
    const std::pair<View, const Tensor*> results[] = {
        {call.out, &want.out}, {call.dq, &want.dq}, {call.dk, &want.dk}, {call.dv, &want.dv}};
    for (const auto& [device, expected] : results) {
      if (!expected->given()) continue;
      Tensor got(c.dtype, expected->shape());
      copy_rows(device, got, Way::kFrom);
      EXPECT_TRUE(got.same_bits(*expected)) << "far axis " << far_axis << ": " << worst_element(got, *expected);
    }
  }
}

// Dense tensors of more than 2^31 elements: the batch elements around the edge and at the end have the bits they have
// alone.
TEST_P(CudaCall, TensorsBeyond32Bits) {
  std::string reason;
  if (!has_memory(60, reason)) GTEST_SKIP() << reason;
  Case c = plain_case();
  c.B = 2100, c.N = 1024, c.H = c.Hkv = 16, c.D = c.E = 64;
  c.layout = c.form == Form::kCausal ? Layout::line(64) : Layout::grid2d(32, 32, 4, 4);
  Case one = c;
  one.B = 1;
  const CaseInputs host(one);
  const bool with_backward = backward(one);
  Prepared p(c, host, with_backward);
  ASSERT_GT(p.q.view.numel(), std::int64_t{1} << 31);
  p.mix.put(host.mix);
  // A period that no batch element's size is a multiple of, so that all differ.
  constexpr std::int64_t kPeriod = (std::int64_t{1} << 22) - 3;
  Tensor values(c.dtype, {kPeriod});
  Random random(3);
  values.normal(random);
  for (DeviceTensor* x : {&p.q, &p.k, &p.v, &p.dout}) {
    device_copy(x->memory.data(), values.data(), kPeriod * 2, kDevice);
    for (std::int64_t done = kPeriod * 2; done < x->bytes; done *= 2)
      device_copy(x->memory.data() + done, x->memory.data(), std::min(done, x->bytes - done), kDevice);
    std::rotate(static_cast<std::uint16_t*>(values.data()), static_cast<std::uint16_t*>(values.data()) + 12345,
                static_cast<std::uint16_t*>(values.data()) + kPeriod);
  }
  p.call.run(options(candidate()));
  device_synchronize(kDevice);

  Prepared alone(one, host, with_backward);
  alone.mix.put(host.mix);
  const std::int64_t edge = (std::int64_t{1} << 31) / (c.N * c.H * c.D);
  for (const std::int64_t b : {std::int64_t{0}, edge - 1, edge, c.B - 1}) {
    const auto at = [&](const DeviceTensor& x) { return x.memory.data() + b * x.view.stride[0] * 2; };
    const std::pair<DeviceTensor*, const DeviceTensor*> inputs[] = {
        {&alone.q, &p.q}, {&alone.k, &p.k}, {&alone.v, &p.v}, {&alone.dout, &p.dout}};
    for (const auto& [to, from] : inputs) device_copy(to->memory.data(), at(*from), to->bytes, kDevice);
    alone.poison_outputs();
    alone.call.run(options(candidate()));
    const std::pair<const DeviceTensor*, const DeviceTensor*> results[] = {
        {&alone.out, &p.out}, {&alone.dq, &p.dq}, {&alone.dk, &p.dk}, {&alone.dv, &p.dv}};
    for (const auto& [small, large] : results) {
      if (!with_backward && small != &alone.out) continue;
      const Tensor want = small->get();
      Tensor got(c.dtype, want.shape());
      device_copy(got.data(), at(*large), small->bytes, kDevice);
      EXPECT_TRUE(std::isfinite(want.at(want.numel() - 1)));
      EXPECT_TRUE(got.same_bits(want)) << "batch element " << b << ": " << worst_element(got, want);
    }
  }
}

}  // namespace
}  // namespace mhla
