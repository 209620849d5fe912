// Every candidate against the formula in f64: odd sizes, strides, dtypes, maps, both kinds of pairs, forward and back.
#include "mhla/kernels/rope/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "mhla/core/cuda.h"
#include "mhla/core/error.h"
#include "mhla/core/threads.h"
#include "mhla/testing/messages.h"
#include "mhla/testing/tensor.h"

namespace mhla {
namespace {

constexpr FeatureMap kMaps[] = {FeatureMap::kIdentity, FeatureMap::kRelu, FeatureMap::kReluEps, FeatureMap::kElu1};

// How q, k and their gradients lie in memory.
enum class Place : std::uint8_t {
  kDense,
  kSlices,      // of a fused projection, q first
  kShifted,     // the same with elements before and between: on no boundary of 16 bytes
  kHeadsFirst,  // [B, H, N, D] seen as [B, N, H, D]
};

struct Shape {
  std::int64_t B, N, H, Hkv, D;  // Hkv 0: no k
  bool halves, batched;          // a line of the table per batch element and token, or per token
};

std::string text_of(const Shape& s) {
  return str("B ", s.B, ", N ", s.N, ", H ", s.H, "+", s.Hkv, ", D ", s.D, s.halves ? ", halves" : ", adjacent",
             s.batched ? ", a table each" : "");
}

// Memory of one tensor, in the host's or the device's. Starts as NaN between guard bands.
class Memory {
 public:
  Memory(DType dtype, std::int64_t count, bool device)
      : host_(dtype, {std::max<std::int64_t>(count, 1)}), device_(device) {
    if (device_) upload();
  }
  Tensor& host() { return host_; }
  void upload() {
    if (!device_) return;
    const auto bytes = host_.guarded_bytes();
    if (buffer_.size() == 0) buffer_ = DeviceBuffer(static_cast<std::int64_t>(bytes.size()), 0);
    device_copy(buffer_.data(), bytes.data(), buffer_.size(), 0);
  }
  Tensor& download() {
    const auto bytes = host_.guarded_bytes();
    if (device_) device_copy(bytes.data(), buffer_.data(), buffer_.size(), 0);
    return host_;
  }
  View view(const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& strides, std::int64_t offset) {
    const auto guard = static_cast<std::byte*>(host_.data()) - host_.guarded_bytes().data();
    std::byte* data = device_ ? buffer_.data() + guard : static_cast<std::byte*>(host_.data());
    View v(data + offset * size_of(host_.dtype()), host_.dtype(), shape);
    for (std::size_t axis = 0; axis < strides.size(); ++axis) v.stride[axis] = strides[axis];
    if (device_) v.device = 0;
    return v;
  }

 private:
  Tensor host_;
  bool device_;
  DeviceBuffer buffer_;
};

// q and k, or their outputs or gradients, in one piece of memory.
class Heads {
 public:
  Heads(const Shape& s, DType dtype, Place place, bool device) : s_(s) {
    const bool shifted = place == Place::kShifted;
    const std::int64_t gap = shifted ? 3 : 0, all = s.H + s.Hkv + (place == Place::kSlices ? 1 : 0);
    const std::int64_t row = all * (s.D + gap) + gap;
    memory_ = std::make_unique<Memory>(dtype, s.B * s.N * row + gap, device);
    offset_ = {gap, gap + s.H * (s.D + gap)};
    for (std::size_t i = 0; i < 2; ++i) stride_[i] = {s.N * row, row, s.D + gap, 1};
    if (place == Place::kDense || place == Place::kHeadsFirst) {
      const std::int64_t counts[] = {s.H, s.Hkv};
      offset_ = {0, s.B * s.N * s.H * s.D};
      for (std::size_t i = 0; i < 2; ++i) {
        const std::int64_t h = counts[i];
        stride_[i] = {s.N * h * s.D, h * s.D, s.D, 1};
        if (place == Place::kHeadsFirst) stride_[i] = {s.N * h * s.D, s.D, s.N * s.D, 1};
      }
    }
  }
  // Of q (0) or k (1), tokens [first, end); not given where there is no k.
  View view(int which, std::int64_t first = 0, std::int64_t end = -1) {
    const std::int64_t heads = which == 0 ? s_.H : s_.Hkv, tokens = (end < 0 ? s_.N : end) - first;
    if (heads == 0) return {};
    const auto& stride = stride_[static_cast<std::size_t>(which)];
    return memory_->view({s_.B, tokens, heads, s_.D}, stride,
                         offset_[static_cast<std::size_t>(which)] + first * stride[1]);
  }
  // f(index in memory, which, b, n, h, channel) for every element.
  void each(const std::function<void(std::int64_t, int, std::int64_t, std::int64_t, std::int64_t, std::int64_t)>& f) {
    for (int which = 0; which < 2; ++which) {
      const auto& st = stride_[static_cast<std::size_t>(which)];
      for (std::int64_t b = 0; b < s_.B; ++b)
        for (std::int64_t n = 0; n < s_.N; ++n)
          for (std::int64_t h = 0; h < (which == 0 ? s_.H : s_.Hkv); ++h)
            for (std::int64_t c = 0; c < s_.D; ++c)
              f(offset_[static_cast<std::size_t>(which)] + b * st[0] + n * st[1] + h * st[2] + c, which, b, n, h, c);
    }
  }
  Memory& memory() { return *memory_; }
  std::vector<double> values() {
    const Tensor& t = memory_->download();
    EXPECT_TRUE(t.guards_intact());
    std::vector<double> all;
    each(
        [&](std::int64_t at, int, std::int64_t, std::int64_t, std::int64_t, std::int64_t) { all.push_back(t.at(at)); });
    return all;
  }

 private:
  Shape s_;
  std::unique_ptr<Memory> memory_;
  std::array<std::int64_t, 2> offset_{};
  std::array<std::vector<std::int64_t>, 2> stride_;
};

// All of one problem.
struct Problem {
  Shape s;
  DType dtype;
  FeatureMap map;
  bool device;
  Heads x, dout, out, dx;
  Memory cos, sin;

  Problem(const Shape& shape, DType type, FeatureMap feature_map, Place place, bool on_device)
      : s(shape),
        dtype(type),
        map(feature_map),
        device(on_device),
        x(s, dtype, place, device),
        dout(s, dtype, place, device),
        out(s, dtype, place, device),
        dx(s, dtype, place, device),
        cos(table_dtype(), lines() * s.D / 2, device),
        sin(table_dtype(), lines() * s.D / 2, device) {
    Random random(static_cast<std::uint64_t>(s.N * 31 + s.D));
    for (std::int64_t i = 0; i < lines() * s.D / 2; ++i) {
      const double angle = 6.0 * random.normal();
      cos.host().set(i, std::cos(angle)), sin.host().set(i, std::sin(angle));
    }
    // The values do not depend on the place: drawn in the order of elements.
    x.each([&](std::int64_t at, auto...) { x.memory().host().set(at, random.normal()); });
    dout.each([&](std::int64_t at, auto...) { dout.memory().host().set(at, random.normal()); });
    cos.upload(), sin.upload(), x.memory().upload(), dout.memory().upload();
  }
  [[nodiscard]] DType table_dtype() const { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }
  [[nodiscard]] std::int64_t lines() const { return s.batched ? s.B * s.N : s.N; }

  View table(Memory& of, std::int64_t first, std::int64_t end) {
    const std::int64_t pairs = s.D / 2;
    if (!s.batched) return of.view({end - first, pairs}, {pairs, 1}, first * pairs);
    return of.view({s.B, end - first, pairs}, {s.N * pairs, pairs, 1}, first * pairs);
  }
  RopeParams params(std::int64_t first = 0, std::int64_t end = -1) {
    if (end < 0) end = s.N;
    RopeParams p;
    p.q = x.view(0, first, end), p.maybe_k = x.view(1, first, end);
    p.cos = table(cos, first, end), p.sin = table(sin, first, end);
    p.halves = s.halves, p.feature_map = map;
    return p;
  }
  void forward(const RunOptions& run, std::int64_t first = 0, std::int64_t end = -1) {
    rope(params(first, end), out.view(0, first, end), out.view(1, first, end), run);
  }
  void backward(const RunOptions& run) {
    RopeParams p = params();
    if (map == FeatureMap::kIdentity) p.q = {}, p.maybe_k = {};  // not read
    rope_backward(p, {dout.view(0), dout.view(1), dx.view(0), dx.view(1)}, run);
  }
};

double phi_by_hand(FeatureMap map, double x) {
  if (map == FeatureMap::kIdentity) return x;
  if (map == FeatureMap::kElu1) return x > 0 ? x + 1 : std::exp(x);
  return std::max(x, 0.0) + (map == FeatureMap::kReluEps ? 1e-6 : 0.0);
}
double slope(FeatureMap map, double x) {
  if (map == FeatureMap::kIdentity || x > 0) return 1;
  return map == FeatureMap::kElu1 ? std::exp(x) : 0;
}

double epsilon_of_rounding(DType dtype) {  // half the distance from 1 to the next number
  if (dtype == DType::kBF16) return 0x1p-8;
  if (dtype == DType::kF16) return 0x1p-11;
  return dtype == DType::kF64 ? 0x1p-53 : 0x1p-24;
}

// The formula for every element of out or dx, and how far a result may be: two products and a sum in f32 (four
// roundings of an exponential beside them), rounded once.
void expect_formula(Problem& p, bool backward) {
  Heads &from = backward ? p.dout : p.x, &to = backward ? p.dx : p.out;
  const Tensor &x = p.x.memory().host(), &in = from.memory().host(), &cos = p.cos.host(), &sin = p.sin.host();
  const Tensor& got = to.memory().download();
  EXPECT_TRUE(got.guards_intact());
  const double wide = p.dtype == DType::kF64 ? 0x1p-53 : 0x1p-24;
  const double work = (p.map == FeatureMap::kElu1 ? 6.0 : 2.0) * wide;
  std::int64_t wrong = 0;
  to.each([&](std::int64_t at, int, std::int64_t b, std::int64_t n, std::int64_t, std::int64_t c) {
    const std::int64_t half = p.s.D / 2, pair = p.s.halves ? c % half : c / 2;
    const bool second = p.s.halves ? c >= half : c % 2 == 1;
    const std::int64_t other = at + (p.s.halves ? half : 1) * (second ? -1 : 1);
    const std::int64_t line = ((p.s.batched ? b * p.s.N : 0) + n) * half + pair;
    const auto value = [&](std::int64_t i) { return backward ? in.at(i) : phi_by_hand(p.map, in.at(i)); };
    const double one = value(at) * cos.at(line), two = value(other) * sin.at(line);
    const bool minus = second == backward;
    const double factor = backward ? slope(p.map, x.at(at)) : 1.0, want = factor * (minus ? one - two : one + two);
    const double tolerance = factor * work * (std::abs(one) + std::abs(two)) +
                             epsilon_of_rounding(p.dtype) * std::abs(want) + (p.dtype == DType::kF16 ? 0x1p-25 : 1e-40);
    if (std::abs(got.at(at) - want) <= tolerance) return;
    if (++wrong == 1)
      ADD_FAILURE() << (backward ? "dx" : "out") << " at token " << n << ", channel " << c << " is " << got.at(at)
                    << ", expected " << want << " within " << tolerance;
  });
  EXPECT_EQ(wrong, 0);
}

constexpr Shape kShapes[] = {
    {2, 5, 3, 1, 8, true, false},   {2, 5, 3, 1, 8, false, true},    {1, 1, 1, 0, 2, true, false},
    {1, 1, 1, 1, 2, false, false},  {3, 7, 2, 4, 6, true, true},     {3, 7, 2, 4, 6, false, false},
    {2, 33, 4, 4, 64, true, true},  {2, 33, 4, 2, 64, false, false}, {1, 40, 2, 2, 128, true, false},
    {2, 9, 1, 3, 72, false, true},  {2, 9, 1, 3, 72, true, false},   {1, 3, 5, 2, 100, true, false},
    {1, 3, 5, 2, 34, false, false}, {1, 2, 34, 6, 512, true, false}, {1, 2, 34, 6, 512, false, true},
    {0, 4, 2, 2, 8, true, false},   {2, 0, 2, 2, 8, true, true},     {70, 1, 4, 4, 128, true, true},
};

void check(const char* candidate, bool device, DType dtype) {
  RunOptions run;
  run.candidate = candidate;
  for (const Shape& s : kShapes) {
    for (const FeatureMap map : kMaps) {
      std::vector<double> out, dx;
      for (const Place place : {Place::kDense, Place::kSlices, Place::kShifted, Place::kHeadsFirst}) {
        SCOPED_TRACE(str(text_of(s), ", ", name_of(map), ", ", name_of(dtype), ", place ", static_cast<int>(place)));
        Problem p(s, dtype, map, place, device);
        p.forward(run), p.backward(run);
        if (place == Place::kDense) {
          expect_formula(p, false), expect_formula(p, true);
          out = p.out.values(), dx = p.dx.values();
          p.forward(run), p.backward(run);
        }
        // Again, and wherever it lies: the same bits.
        EXPECT_EQ(out, p.out.values());
        EXPECT_EQ(dx, p.dx.values());
      }
    }
  }
}

TEST(Rope, ReferenceIsTheFormula) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) check("ref", false, dtype);
}

TEST(Rope, VectorsAreTheFormula) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) check("simd", false, dtype);
}

TEST(Rope, OnTheGpuIsTheFormula) {
  if (cuda_device_count() == 0) GTEST_SKIP() << cuda_missing();
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) check("cuda", true, dtype);
}

TEST(Rope, OnTheGpuAnyNumberOfBatchElements) {  // more than the second axis of a grid takes
  if (cuda_device_count() == 0) GTEST_SKIP() << cuda_missing();
  Problem p({70000, 1, 1, 1, 4, true, true}, DType::kBF16, FeatureMap::kRelu, Place::kDense, true);
  p.forward({}), p.backward({});
  expect_formula(p, false), expect_formula(p, true);
}

// In f32 it is what a framework's operators give: two products, each rounded, and their sum.
TEST(Rope, InF32HasTheBitsOfTwoProductsAndASum) {
  const Shape s{2, 9, 3, 2, 38, true, false};
  for (const bool device : {false, true}) {
    if (device && cuda_device_count() == 0) continue;
    Problem p(s, DType::kF32, FeatureMap::kRelu, Place::kDense, device);
    p.forward({});
    const Tensor &x = p.x.memory().host(), &got = p.out.memory().download();
    p.out.each([&](std::int64_t at, int, std::int64_t, std::int64_t n, std::int64_t, std::int64_t c) {
      if (c >= s.D / 2) return;
      const auto a = static_cast<float>(std::max(x.at(at), 0.0)),
                 b = static_cast<float>(std::max(x.at(at + s.D / 2), 0.0));
      const auto cos = static_cast<float>(p.cos.host().at(n * s.D / 2 + c)),
                 sin = static_cast<float>(p.sin.host().at(n * s.D / 2 + c));
      const float ac = a * cos, bs = b * sin, as = a * sin, bc = b * cos;
      ASSERT_EQ(static_cast<float>(got.at(at)), ac - bs);
      ASSERT_EQ(static_cast<float>(got.at(at + s.D / 2)), as + bc);
    });
  }
}

TEST(Rope, GradientsAreSlopes) {  // of <dout, rope(x)> along a random direction, in f64
  for (const Shape& s : {Shape{2, 5, 3, 2, 8, true, false}, Shape{2, 5, 3, 2, 8, false, true}}) {
    for (const FeatureMap map : kMaps) {
      Problem p(s, DType::kF64, map, Place::kDense, false);
      p.backward({});
      const std::vector<double> dx = p.dx.values(), dout = p.dout.values(), x = p.x.values();
      Random random(5);
      std::vector<double> direction(x.size());
      double want = 0;
      for (std::size_t i = 0; i < x.size(); ++i) want += dx[i] * (direction[i] = random.normal());
      constexpr double kStep = 1e-6;
      double losses[2] = {};
      for (const int side : {0, 1}) {
        std::size_t next = 0;
        p.x.each([&](std::int64_t at, auto...) {
          p.x.memory().host().set(at, x[next] + (side == 0 ? -kStep : kStep) * direction[next]), ++next;
        });
        p.forward({});
        const std::vector<double> out = p.out.values();
        for (std::size_t i = 0; i < out.size(); ++i) losses[side] += dout[i] * out[i];
      }
      EXPECT_NEAR((losses[1] - losses[0]) / (2 * kStep), want, 1e-7) << name_of(map) << text_of(s);
    }
  }
}

// A stream turns its tokens a few at a time: any split has the bits of one call.
TEST(Rope, ATokenDoesNotKnowTheOthers) {
  for (const bool device : {false, true}) {
    if (device && cuda_device_count() == 0) continue;
    for (const bool halves : {true, false}) {
      for (const FeatureMap map : kMaps) {
        const Shape s{2, 23, 3, 1, 22, halves, true};
        Problem whole(s, DType::kBF16, map, Place::kSlices, device),
            parts(s, DType::kBF16, map, Place::kSlices, device);
        whole.forward({});
        for (const auto& [first, end] : {std::pair{0, 1}, std::pair{1, 2}, std::pair{2, 19}, std::pair{19, 23}})
          parts.forward({}, first, end);
        EXPECT_EQ(whole.out.values(), parts.out.values()) << name_of(map);
      }
    }
  }
}

TEST(Rope, BitsDoNotDependOnTheThreads) {
  const Shape s{3, 200, 4, 2, 40, false, false};
  std::vector<std::vector<double>> results;
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    RunOptions run;
    run.maybe_executor = &pool;
    Problem p(s, DType::kF32, FeatureMap::kElu1, Place::kDense, false);
    p.forward(run);
    results.push_back(p.out.values());
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST(Rope, NanStaysInItsPair) {
  for (const char* candidate : {"ref", "simd", "cuda"}) {
    const bool device = std::string_view(candidate) == "cuda";
    if (device && cuda_device_count() == 0) continue;
    for (const FeatureMap map : kMaps) {
      Problem p({1, 2, 2, 0, 16, true, false}, DType::kF32, map, Place::kDense, device);
      p.x.memory().host().set(16 + 3, std::nan(""));  // token 0, head 1, channel 3
      p.x.memory().upload();
      RunOptions run;
      run.candidate = candidate;
      p.forward(run);
      const std::vector<double> out = p.out.values();
      for (std::size_t i = 0; i < out.size(); ++i)
        EXPECT_EQ(std::isnan(out[i]), i == 19 || i == 27) << candidate << " " << name_of(map) << " " << i;
    }
  }
}

TEST(Rope, RefusalsSayWhatIsWrong) {
  std::vector<float> memory(256);
  const auto view = [&](std::initializer_list<std::int64_t> shape, DType dtype = DType::kF32) {
    return View(memory.data(), dtype, shape);
  };
  RopeParams good;
  good.q = view({2, 3, 4, 8}), good.maybe_k = view({2, 3, 1, 8}), good.cos = good.sin = view({3, 4});
  const View q = view({2, 3, 4, 8}), k = view({2, 3, 1, 8});
  const auto refused = [&](const std::function<void(RopeParams&)>& change) {
    RopeParams p = good;
    change(p);
    return message_of([&] { rope(p, q, k); });
  };
  EXPECT_EQ(refused([](RopeParams&) {}), "nothing was thrown");
  EXPECT_EQ(refused([&](RopeParams& p) {
              p.q = view({2, 3, 8});
            }),
            "rope: q has shape [2, 3, 8], expected [B, N, H, D]");
  EXPECT_EQ(refused([&](RopeParams& p) {
              p.q = view({2, 3, 4, 7});
            }),
            "rope: q has 7 channels, expected an even number");
  EXPECT_EQ(refused([&](RopeParams& p) {
              p.q = view({2, 3, 4, 8}, DType::kI32);
            }),
            "rope: q is i32, expected f32, bf16, f16 or f64");
  EXPECT_EQ(refused([&](RopeParams& p) { p.q.stride[3] = 2; }), "rope: q has last stride 2, expected 1");
  EXPECT_EQ(refused([&](RopeParams& p) {
              p.maybe_k = view({2, 4, 1, 8});
            }),
            "rope: k has shape [2, 4, 1, 8], expected [2, 3, Hkv, 8]");
  EXPECT_EQ(refused([&](RopeParams& p) {
              p.maybe_k = view({2, 3, 1, 8}, DType::kBF16);
            }),
            "rope: k is bf16, expected f32 like q");
  EXPECT_EQ(refused([&](RopeParams& p) { p.maybe_k.device = 0; }), "rope: k is on cuda:0, expected the CPU like q");
  EXPECT_EQ(refused([&](RopeParams& p) { p.maybe_k = {}; }), "rope: k and k_out go together");
  EXPECT_EQ(refused([&](RopeParams& p) {
              p.cos = view({3, 8});
            }),
            "rope: cos has shape [3, 8], expected [3, 4] or [2, 3, 4]");
  EXPECT_EQ(refused([&](RopeParams& p) {
              p.sin = view({3, 4}, DType::kBF16);
            }),
            "rope: sin is bf16, expected f32 beside q in f32");
  EXPECT_EQ(message_of([&] { rope(good, k, k); }), "rope: q_out has shape [2, 3, 1, 8], expected [2, 3, 4, 8] like q");
  EXPECT_EQ(message_of([&] {
              rope(good, q, view({2, 3, 2, 8}));
            }),
            "rope: k_out has shape [2, 3, 2, 8], expected [2, 3, 1, 8] like k");
  RunOptions run;
  run.candidate = "fast";
  EXPECT_EQ(message_of([&] { rope(good, q, k, run); }),
            "rope: no candidate is called 'fast', expected one of cuda, simd, ref");
  RopeParams slopes = good;
  slopes.feature_map = FeatureMap::kRelu, slopes.q = view({2, 3, 2, 8});
  EXPECT_EQ(message_of([&] {
              rope_backward(slopes, {q, k, q, k});
            }),
            "rope_backward: q has shape [2, 3, 2, 8], expected [2, 3, 4, 8] like dq_out");
  EXPECT_EQ(message_of([&] { rope_backward(good, {q, k, q, {}}); }), "rope_backward: dk_out and dk go together");
}

}  // namespace
}  // namespace mhla
