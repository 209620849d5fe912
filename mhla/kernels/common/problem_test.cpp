// Bad input, one row per mistake: the error names the entry point, the argument, what came and what was
// expected, and no output has changed by a bit.
#include "mhla/kernels/common/problem.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <limits>

#include "mhla/core/cuda.h"
#include "mhla/core/error.h"
#include "mhla/kernels/bidirectional/bidirectional.h"
#include "mhla/kernels/chunkwise/chunkwise.h"
#include "mhla/testing/cases.h"

namespace mhla {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kHuge = std::int64_t{1} << 40;

// A good call of both passes over one set of tensors: B 2, N 12, H 4, Hkv 2, D 3, E 5, three blocks of four.
struct Call {
  Case c = make_case();
  CaseInputs inputs{c};
  Tensor out_memory{DType::kF32, {2, 12, 4, 5}}, dq_memory{DType::kF32, {2, 12, 4, 3}},
      dk_memory{DType::kF32, {2, 12, 2, 3}}, dv_memory{DType::kF32, {2, 12, 2, 5}}, dmix_memory{DType::kF32, {3, 3}},
      dq_den_memory{DType::kF32, {2, 12, 4, 3}}, dk_den_memory{DType::kF32, {2, 12, 2, 3}};
  BidirectionalParams params = bidirectional_params(c, inputs);
  View out = out_memory.view();
  BidirectionalGrads grads{inputs.dout,        dq_memory.view(),     dk_memory.view(),    dv_memory.view(),
                           dmix_memory.view(), dq_den_memory.view(), dk_den_memory.view()};
  std::vector<std::int64_t> cu;
  RunOptions run;
  std::optional<std::int64_t> chunk;  // set: the causal form
  bool extend = false;

  static Case make_case() {
    Case c;
    c.B = 2, c.N = 12, c.H = 4, c.Hkv = 2, c.D = 3, c.E = 5, c.layout = Layout::line(4), c.den = true;
    return c;
  }
  Call() { run.candidate = "ref"; }

  void pack(std::vector<std::int64_t> offsets) {
    cu = std::move(offsets);
    params.maybe_cu_seqlens = ConstView(cu.data(), DType::kI64, {static_cast<std::int64_t>(cu.size())});
  }
  void one_batch() {  // packed sequences come with B = 1
    for (BasicView<const void*>* view :
         {&params.q, &params.k, &params.v, &params.maybe_q_den, &params.maybe_k_den, &grads.dout})
      view->shape[0] = 1;
    for (View* view : {&out, &grads.dq, &grads.dk, &grads.dv, &grads.maybe_dq_den, &grads.maybe_dk_den})
      view->shape[0] = 1;
  }

  [[nodiscard]] ChunkwiseParams causal() const {
    ChunkwiseParams p;
    p.q = params.q, p.k = params.k, p.v = params.v, p.mix = params.mix;
    p.maybe_q_den = params.maybe_q_den, p.maybe_k_den = params.maybe_k_den;
    p.maybe_cu_seqlens = params.maybe_cu_seqlens;
    p.chunk = *chunk;
    p.feature_map = params.feature_map, p.normalizer = params.normalizer, p.eps = params.eps, p.scale = params.scale;
    p.beyond_mix = extend ? BeyondMix::kExtend : BeyondMix::kError;
    return p;
  }
  void forward() const {
    if (chunk)
      chunkwise_forward(causal(), out, run);
    else
      bidirectional_forward(params, out, run);
  }
  void backward() const {
    const ChunkwiseGrads g{grads.dout, grads.dq,           grads.dk,          grads.dv,
                           grads.dmix, grads.maybe_dq_den, grads.maybe_dk_den};
    if (chunk)
      chunkwise_backward(causal(), g, run);
    else
      bidirectional_backward(params, grads, run);
  }
  [[nodiscard]] std::vector<const Tensor*> outputs() const {
    return {&out_memory, &dq_memory, &dk_memory, &dv_memory, &dmix_memory, &dq_den_memory, &dk_den_memory};
  }
};

enum Pass { kForward = 1, kBackward = 2, kBoth = 3 };

struct Mistake {
  Pass pass;
  std::vector<std::string> words;  // all of them in the message
  std::function<void(Call&)> make;
};

void expect_refused(const Mistake& mistake, Pass pass) {
  Call call;
  mistake.make(call);
  std::vector<Tensor> before;
  for (const Tensor* output : call.outputs()) before.push_back(output->clone());
  std::string message;
  try {
    pass == kForward ? call.forward() : call.backward();
  } catch (const Error& error) {
    message = error.what();
  }
  const std::string entry =
      str(call.chunk ? "chunkwise" : "bidirectional", pass == kForward ? "_forward" : "_backward");
  EXPECT_EQ(message.rfind(entry, 0), 0u) << "got: '" << message << "', expected it to open with " << entry;
  for (const std::string& word : mistake.words)
    EXPECT_NE(message.find(word), std::string::npos) << "got: '" << message << "', expected the words '" << word << "'";
  for (std::size_t index = 0; index < before.size(); ++index)
    EXPECT_TRUE(before[index].same_bits(*call.outputs()[index])) << "output " << index << " was touched: " << message;
}

void expect_all_refused(const std::vector<Mistake>& mistakes) {
  for (const Mistake& mistake : mistakes) {
    SCOPED_TRACE(mistake.words.front());
    if (mistake.pass & kForward) expect_refused(mistake, kForward);
    if (mistake.pass & kBackward) expect_refused(mistake, kBackward);
  }
}

TEST(Problem, AGoodCallRuns) {
  Call call;
  call.forward();
  call.backward();
  for (const Tensor* output : call.outputs()) EXPECT_TRUE(std::isfinite(output->at(0)));
  call.chunk = 4;
  call.forward();
  call.backward();
}

TEST(Problem, NullData) {
  expect_all_refused({
      {kBoth, {"q has null data", "[2, 12, 4, 3]"}, [](Call& c) { c.params.q.data = nullptr; }},
      {kBoth, {"k has null data"}, [](Call& c) { c.params.k.data = nullptr; }},
      {kBoth, {"v has null data"}, [](Call& c) { c.params.v.data = nullptr; }},
      {kBoth, {"q_den has null data"}, [](Call& c) { c.params.maybe_q_den.data = nullptr; }},
      {kBoth, {"k_den has null data"}, [](Call& c) { c.params.maybe_k_den.data = nullptr; }},
      {kBoth, {"mix has null data"}, [](Call& c) { c.params.mix.data = nullptr; }},
      {kForward, {"out has null data"}, [](Call& c) { c.out.data = nullptr; }},
      {kBackward, {"dout has null data"}, [](Call& c) { c.grads.dout.data = nullptr; }},
      {kBackward, {"dq has null data"}, [](Call& c) { c.grads.dq.data = nullptr; }},
      {kBackward, {"dk has null data"}, [](Call& c) { c.grads.dk.data = nullptr; }},
      {kBackward, {"dv has null data"}, [](Call& c) { c.grads.dv.data = nullptr; }},
      {kBackward, {"dmix has null data"}, [](Call& c) { c.grads.dmix.data = nullptr; }},
      {kBackward, {"dq_den has null data"}, [](Call& c) { c.grads.maybe_dq_den.data = nullptr; }},
      {kBackward, {"dk_den has null data"}, [](Call& c) { c.grads.maybe_dk_den.data = nullptr; }},
  });
}

TEST(Problem, Shapes) {
  expect_all_refused({
      {kBoth, {"q has shape", "expected [B, N, H, D]"}, [](Call& c) { c.params.q.rank = 3; }},
      {kBoth, {"k has shape", "expected [B, N, Hkv, D]"}, [](Call& c) { c.params.k = {}; }},
      {kBoth, {"k has shape [2, 12, 2, 2]", "expected [2, 12, 2, 3]"}, [](Call& c) { c.params.k.shape[3] = 2; }},
      {kBoth, {"v has shape [2, 11, 2, 5]", "expected [2, 12, 2, 5]"}, [](Call& c) { c.params.v.shape[1] = 11; }},
      {kBoth, {"v has shape [1, 12, 2, 5]"}, [](Call& c) { c.params.v.shape[0] = 1; }},
      {kBoth, {"q_den has shape"}, [](Call& c) { c.params.maybe_q_den.shape[3] = 2; }},
      {kBoth, {"k_den has shape"}, [](Call& c) { c.params.maybe_k_den.shape[2] = 1; }},
      {kBoth, {"k has 3 heads", "divisor of H = 4"}, [](Call& c) { c.params.k.shape[2] = 3; }},
      {kBoth, {"D is 0", "at least 1"}, [](Call& c) { c.params.q.shape[3] = 0; }},
      {kBoth, {"E is 0", "at least 1"}, [](Call& c) { c.params.v.shape[3] = 0; }},
      {kForward, {"out has shape [2, 12, 4, 4]", "expected [2, 12, 4, 5]"}, [](Call& c) { c.out.shape[3] = 4; }},
      {kForward, {"out is not given"}, [](Call& c) { c.out = {}; }},
      {kBackward, {"dout is not given"}, [](Call& c) { c.grads.dout = {}; }},
      {kBackward, {"dq has shape [2, 12, 2, 3]", "expected [2, 12, 4, 3]"}, [](Call& c) { c.grads.dq.shape[2] = 2; }},
      {kBackward, {"dmix has shape", "expected [1, 3, 3]"}, [](Call& c) { c.grads.dmix.shape[1] = 2; }},
  });
}

TEST(Problem, NegativeAndOverflowingSizes) {
  expect_all_refused({
      {kBoth, {"N is -1", "at least 0"}, [](Call& c) { c.params.q.shape[1] = -1; }},
      {kBoth, {"B is -2", "at least 0"}, [](Call& c) { c.params.q.shape[0] = -2; }},
      {kBoth, {"H is -4", "at least 1"}, [](Call& c) { c.params.q.shape[2] = -4; }},
      {kBoth, {"k has shape [2, -12, 2, 3]", "negative"}, [](Call& c) { c.params.k.shape[1] = -12; }},
      {kBoth, {"q has shape", "overflows"}, [](Call& c) { c.params.q.shape[0] = c.params.q.shape[1] = kHuge; }},
      {kBoth, {"q has stride", "on axis 0", "overflow"}, [](Call& c) { c.params.q.stride[0] = INT64_MAX; }},
      {kBoth, {"v has stride", "on axis 1", "overflow"}, [](Call& c) { c.params.v.stride[1] = INT64_MIN / 2; }},
      {kForward, {"out has stride", "overflow"}, [](Call& c) { c.out.stride[0] = INT64_MAX; }},
  });
}

TEST(Problem, Strides) {
  expect_all_refused({
      {kBoth, {"q has last stride 2", "expected 1"}, [](Call& c) { c.params.q.stride[3] = 2; }},
      {kForward, {"out has last stride 0", "expected 1"}, [](Call& c) { c.out.stride[3] = 0; }},
      {kForward, {"out overlaps itself"}, [](Call& c) { c.out.stride[0] = 0; }},
      {kBackward, {"dk overlaps itself"}, [](Call& c) { c.grads.dk.stride[1] = 2; }},
      {kBackward, {"dmix overlaps itself"}, [](Call& c) { c.grads.dmix.stride[0] = 1; }},
  });
}

TEST(Problem, Dtypes) {
  expect_all_refused({
      {kBoth, {"q has dtype i32", "expected f32, bf16, f16 or f64"}, [](Call& c) { c.params.q.dtype = DType::kI32; }},
      {kBoth, {"k has dtype bf16", "expected f32"}, [](Call& c) { c.params.k.dtype = DType::kBF16; }},
      {kBoth, {"mix has dtype f64", "expected f32"}, [](Call& c) { c.params.mix.dtype = DType::kF64; }},
      {kForward, {"out has dtype f16", "expected f32"}, [](Call& c) { c.out.dtype = DType::kF16; }},
      {kBackward, {"dmix has dtype bf16", "expected f32"}, [](Call& c) { c.grads.dmix.dtype = DType::kBF16; }},
  });
}

TEST(Problem, CuSeqlens) {
  const auto packed = [](std::vector<std::int64_t> offsets) {
    return [offsets](Call& c) {
      c.one_batch();
      c.pack(offsets);
    };
  };
  expect_all_refused({
      {kBoth, {"cu_seqlens starts at 1", "expected 0"}, packed({1, 12})},
      {kBoth, {"cu_seqlens decreases from 8 to 4 at index 2"}, packed({0, 8, 4, 12})},
      {kBoth, {"cu_seqlens decreases from 0 to -3"}, packed({0, -3, 12})},
      {kBoth, {"cu_seqlens ends at 11", "expected N = 12"}, packed({0, 4, 11})},
      {kBoth, {"cu_seqlens ends at 13", "expected N = 12"}, packed({0, 4, 13})},
      {kBoth, {"cu_seqlens ends at 0", "expected N = 12"}, packed({0})},
      {kBoth, {"cu_seqlens has shape [0]"}, packed({})},
      {kBoth,
       {"B is 2", "expected 1 with cu_seqlens"},
       [](Call& c) {
         c.pack({0, 12});
       }},
      {kBoth,
       {"cu_seqlens has dtype f32", "i32 or i64"},
       [](Call& c) {
         c.one_batch(), c.pack({0, 12});
         c.params.maybe_cu_seqlens.dtype = DType::kF32;
       }},
      {kBoth,
       {"cu_seqlens has null data"},
       [](Call& c) {
         c.one_batch(), c.pack({0, 12});
         c.params.maybe_cu_seqlens.data = nullptr;
       }},
      {kBoth,
       {"cu_seqlens is on cuda:0", "host memory"},
       [](Call& c) {
         c.one_batch(), c.pack({0, 12});
         c.params.maybe_cu_seqlens.device = 0;
       }},
      {kBoth,
       {"cu_seqlens with a 2D layout", "1D"},
       [](Call& c) {
         c.one_batch(), c.pack({0, 12});
         c.params.layout = Layout::grid2d(3, 4, 3, 1);
       }},
  });
}

TEST(Problem, Layouts) {
  const auto layout = [](Layout value) { return [value](Call& c) { c.params.layout = value; }; };
  expect_all_refused({
      {kBoth, {"layout has 0 axes", "expected 1, 2 or 3"}, layout({})},
      {kBoth, {"block_size is 0", "at least 1"}, layout(Layout::line(0))},
      {kBoth, {"block_size is -4", "at least 1"}, layout(Layout::line(-4))},
      {kBoth, {"layout grid 3x5 has 15 tokens", "expected N = 12"}, layout(Layout::grid2d(3, 5, 1, 1))},
      {kBoth, {"layout grid 2x2x2 has 8 tokens"}, layout(Layout::grid3d({2, 2, 2}, {1, 1, 1}))},
      {kBoth, {"blocks 0x1", "below 1"}, layout(Layout::grid2d(3, 4, 0, 1))},
      {kBoth,
       {"axis 1 cuts 4 tokens into 3 blocks", "nearest count that works is 2"},
       layout(Layout::grid2d(3, 4, 1, 3))},
      {kBoth,
       {"axis 0 cuts 3 tokens into 4 blocks", "nearest count that works is 3"},
       layout(Layout::grid2d(3, 4, 4, 1))},
      {kBoth, {": chunk is 0, expected at least 1"}, [](Call& c) { c.chunk = 0; }},
  });
}

TEST(Problem, Mix) {
  const auto shape = [](std::int64_t rows, std::int64_t columns) {
    return [rows, columns](Call& c) { c.params.mix.shape = {rows, columns}; };
  };
  expect_all_refused({
      {kBoth, {"mix has shape [2, 2]", "expected at least [3, 3]", "N = 12, C = 4"}, shape(2, 2)},
      {kBoth, {"mix has shape [3, 4]", "expected at least [3, 3]"}, shape(3, 4)},
      {kBoth, {"mix has shape", "[M, M] or [H, M, M]"}, [](Call& c) { c.params.mix.rank = 1; }},
      {kBoth,
       {"mix has shape [2, 3, 3]", "expected at least [4, 3, 3]"},
       [](Call& c) {
         c.params.mix.rank = 3, c.params.mix.shape = {2, 3, 3}, c.params.mix.stride = {9, 3, 1};
       }},
      {kBoth,
       {"mix has shape [3, 3]", "expected [4, 4]", "2d grid 3x4 blocks 1x4"},
       [](Call& c) { c.params.layout = Layout::grid2d(3, 4, 1, 4); }},
      {kBoth,
       {"mix has shape [2, 2]", "expected at least [3, 3]"},
       [](Call& c) {
         c.chunk = 4, c.params.mix.shape = {2, 2};
       }},
      {kBoth,
       {"mix has shape [0, 0]", "expected at least [1, 1]"},
       [](Call& c) {
         c.chunk = 4, c.extend = true, c.params.mix.shape = {0, 0};
       }},
  });
}

TEST(Problem, Options) {
  expect_all_refused({
      {kBoth, {"eps is nan", "finite"}, [](Call& c) { c.params.eps = kNan; }},
      {kBoth, {"eps is inf", "finite"}, [](Call& c) { c.params.eps = kInfinity; }},
      {kBoth, {"scale is nan", "finite"}, [](Call& c) { c.params.scale = kNan; }},
      {kBoth, {"scale is -inf", "finite"}, [](Call& c) { c.params.scale = -kInfinity; }},
      {kBoth, {"only q_den is given", "together"}, [](Call& c) { c.params.maybe_k_den = {}; }},
      {kBoth, {"only k_den is given", "together"}, [](Call& c) { c.params.maybe_q_den = {}; }},
      {kBoth,
       {"q_den and k_den are given with normalizer none"},
       [](Call& c) { c.params.normalizer = Normalizer::kNone; }},
      {kBackward,
       {"dq_den or dk_den is given without q_den and k_den"},
       [](Call& c) { c.params.maybe_q_den = c.params.maybe_k_den = {}; }},
      {kBoth,
       {"normalizer official needs blocks of equal size", "1d C=5"},
       [](Call& c) { c.params.normalizer = Normalizer::kOfficial, c.params.layout = Layout::line(5); }},
      {kBoth,
       {"normalizer is official", "none or paper"},
       [](Call& c) { c.chunk = 4, c.params.normalizer = Normalizer::kOfficial; }},
  });
}

void move_to_device(Call& c, int device) {
  for (ConstView* view : {&c.params.q, &c.params.k, &c.params.v, &c.params.maybe_q_den, &c.params.maybe_k_den,
                          &c.params.mix, &c.grads.dout})
    view->device = device;
  for (View* view :
       {&c.out, &c.grads.dq, &c.grads.dk, &c.grads.dv, &c.grads.dmix, &c.grads.maybe_dq_den, &c.grads.maybe_dk_den})
    view->device = device;
}

TEST(Problem, Candidates) {
  static std::array<std::byte, 256> memory;
  expect_all_refused({
      {kBoth, {"no candidate is called 'fast'", "ref"}, [](Call& c) { c.run.candidate = "fast"; }},
      {kBoth, {"k is on cuda:1", "expected cpu like q"}, [](Call& c) { c.params.k.device = 1; }},
      {kBoth, {"mix is on cuda:0", "expected cpu like q"}, [](Call& c) { c.params.mix.device = 0; }},
      {kBackward, {"dmix is on cuda:0", "expected cpu like q"}, [](Call& c) { c.grads.dmix.device = 0; }},
      {kBoth, {"q is on device -2", "expected -1 for host memory"}, [](Call& c) { move_to_device(c, -2); }},
      {kBoth,
       {"workspace is not aligned", "64"},
       [](Call& c) {
         const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
         c.run.workspace = std::span(memory).subspan(address % 64 == 0 ? 1 : 0);
       }},
  });
}

TEST(Problem, DevicesThatAreNotThere) {
  const auto move_away = [](Call& c) { move_to_device(c, 63), c.run.candidate = {}; };
  if (!cuda_missing().empty()) {
    expect_all_refused({{kBoth, {"q is on cuda:63, but there is none: ", cuda_missing()}, move_away}});
  } else {
    expect_all_refused({{kBoth, {"q is on cuda:63", "expected a device below cuda:"}, move_away}});
  }
}

// Only sizes and places are looked at before a candidate is chosen: host memory may pass for the device's.
TEST(Problem, OnADevice) {
  if (!cuda_missing().empty()) GTEST_SKIP() << cuda_missing();
  expect_all_refused({
      {kBoth,
       {"mix is on cpu", "expected cuda:0 like q"},
       [](Call& c) { move_to_device(c, 0), c.params.mix.device = kCpu; }},
      {kBoth,
       {"no candidate for f32 B=2 N=12 H=4 Hkv=2 D=3 E=5 M=3 on cuda:0", "ref: memory is on cuda:0"},
       [](Call& c) { move_to_device(c, 0), c.run.candidate = "ref"; }},
  });
}

// `ref` is never a silent fallback: without a name it takes f64 only.
TEST(Problem, RefRunsUnaskedForDoubleOnly) {
  Case c = Call::make_case();
  c.dtype = DType::kF64;
  const CaseInputs inputs(c);
  Tensor out(DType::kF64, {2, 12, 4, 5});
  bidirectional_forward(bidirectional_params(c, inputs), out.view());
  EXPECT_TRUE(std::isfinite(out.at(0)));
}

// 2^40 elements of one memory cell each: offsets are 64-bit, and nothing is stored per empty sequence.
TEST(Problem, HugeButEmpty) {
  Case c;
  c.B = 1, c.N = 0;
  CaseInputs inputs(c);
  Tensor out(DType::kF32, {1, 0, 1, 8});
  View out_view = out.view();
  for (ConstView* view : {&inputs.q, &inputs.k, &inputs.v}) view->shape[0] = kHuge;
  out_view.shape[0] = kHuge;
  RunOptions run;
  run.candidate = "ref";
  EXPECT_NO_THROW(bidirectional_forward(bidirectional_params(c, inputs), out_view, run));
}

TEST(Problem, MixIndexOfExtend) {
  // Inside the matrix: itself. Beyond: the last row by distance, its first entry from distance L - 1 on.
  EXPECT_EQ(mix_index(2, 1, 4).row, 2);
  EXPECT_EQ(mix_index(2, 1, 4).column, 1);
  for (const auto& [i, b, column] :
       {std::array<std::int64_t, 3>{4, 4, 3}, {4, 3, 2}, {4, 1, 0}, {4, 0, 0}, {9, 8, 2}}) {
    EXPECT_EQ(mix_index(i, b, 4).row, 3);
    EXPECT_EQ(mix_index(i, b, 4).column, column) << i << " " << b;
  }
}

}  // namespace
}  // namespace mhla
