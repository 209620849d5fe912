// Bad input to streaming: one clear error, no state moves, the output is untouched.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "mhla/core/error.h"
#include "mhla/kernels/streaming/streaming_fixture.h"

namespace mhla {
namespace {

Case stream_case() {
  Case c;
  c.form = Form::kCausal, c.B = 2, c.N = 12, c.layout = Layout::line(4), c.H = 4, c.Hkv = 2, c.D = 6, c.E = 5;
  c.normalizer = Normalizer::kNone;
  return c;
}

// The message of the error that f throws; empty when it throws none.
template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

void expect_error(const std::string& got, const std::string& part) {
  EXPECT_NE(got.find(part), std::string::npos) << "got: '" << got << "', expected: '" << part << "'";
}

class StreamingErrors : public testing::Test {
 protected:
  Case c = stream_case();
  CaseInputs inputs{c};
  std::vector<StreamingState> states = states_of(c, inputs, "simd", 2);
  std::vector<StreamingState*> all = pointers(states);
  Tensor out{DType::kF32, {2, 12, 4, 5}};

  StreamingParams params(std::int64_t T) {
    StreamingParams p;
    p.states = all;
    p.q = tokens_of(inputs.q, 0, T, 0, 2), p.k = tokens_of(inputs.k, 0, T, 0, 2);
    p.v = tokens_of(inputs.v, 0, T, 0, 2), p.out = tokens_of(out.view(), 0, T, 0, 2);
    return p;
  }

  void expect_refused(const StreamingParams& p, const std::string& part, const RunOptions& run = {}) {
    const Tensor before = out.clone();
    expect_error(error_of([&] { streaming_append(p, run); }), part);
    EXPECT_TRUE(out.same_bits(before));
    EXPECT_EQ(states[0].position(), 0);
    EXPECT_EQ(states[1].position(), 0);
  }
};

TEST_F(StreamingErrors, Shapes) {
  StreamingParams p = params(3);
  p.q.shape[0] = 3;
  expect_refused(p, "q has shape [3, 3, 4, 6], expected [2, 3, 4, 6]");
  p = params(3), p.q.shape[3] = 5;
  expect_refused(p, "q has shape [2, 3, 4, 5]");
  p = params(3), p.q.rank = 3;
  expect_refused(p, "q has shape [2, 3, 4], expected [B, T, H, D]");
  p = params(3), p.k.shape[1] = 2;
  expect_refused(p, "k has shape [2, 2, 2, 6], expected [2, 3, 2, 6]");
  p = params(3), p.k.shape[2] = 4;
  expect_refused(p, "k has 4 heads, expected Hkv = 2");
  p = params(3), p.v.shape[3] = 4;
  expect_refused(p, "v has size 4, expected E = 5");
  p = params(3), p.out.shape[1] = 2;
  expect_refused(p, "out has shape");
  p = params(3), p.q.shape[1] = -1;
  expect_refused(p, "q has shape [2, -1, 4, 6]");
}

TEST_F(StreamingErrors, Memory) {
  StreamingParams p = params(3);
  p.q.data = nullptr;
  expect_refused(p, "q has null data");
  p = params(3), p.v.data = nullptr;
  expect_refused(p, "v has null data");
  p = params(3), p.out.data = nullptr;
  expect_refused(p, "out has null data");
  p = params(3), p.q.dtype = DType::kBF16;
  expect_refused(p, "q has dtype bf16, expected f32 like the state");
  p = params(3), p.k.dtype = DType::kF64;
  expect_refused(p, "k has dtype f64, expected f32");
  p = params(3), p.q.device = 0;
  expect_refused(p, "q is on cuda:0, expected cpu like the state");
  p = params(3), p.out.stride[1] = 0;
  expect_refused(p, "out overlaps itself");
  p = params(3), p.k.stride[3] = 2;
  expect_refused(p, "k has last stride 2, expected 1");
}

TEST_F(StreamingErrors, States) {
  StreamingParams p = params(3);
  p.states = {};
  expect_refused(p, "no states are given");
  std::vector<StreamingState*> twice{&states[0], &states[0]};
  p = params(3), p.states = twice;
  expect_refused(p, "states 0 and 1 are the same");
  std::vector<StreamingState*> hole{&states[0], nullptr};
  p = params(3), p.states = hole;
  expect_refused(p, "state 1 is null");
  StreamingConfig other = config_of(c);
  other.rollback = 1;
  StreamingState different(other, inputs.mix);
  std::vector<StreamingState*> mixed{&states[0], &different};
  p = params(3), p.states = mixed;
  expect_refused(p, "state 1 has another configuration");
  StreamingState by_ref(config_of(c), inputs.mix, "ref");
  std::vector<StreamingState*> candidates{&states[0], &by_ref};
  p = params(3), p.states = candidates;
  expect_refused(p, "state 1 has another configuration");
  expect_refused(params(3), "a state stays with its candidate", {.candidate = "ref"});
}

TEST_F(StreamingErrors, DenFeatures) {
  StreamingParams p = params(3);
  p.maybe_q_den = p.q, p.maybe_k_den = p.k;
  expect_refused(p, "given to a state made with den_features = false");
  StreamingConfig config = config_of(c);
  config.den_features = true;
  expect_error(error_of([&] { StreamingState(config, inputs.mix); }), "den_features with normalizer none");
  config.normalizer = Normalizer::kPaper;
  StreamingState a(config, inputs.mix), b(config, inputs.mix);
  std::vector<StreamingState*> with{&a, &b};
  p = params(3), p.states = with;
  expect_refused(p, "not given to a state made with den_features = true");
  p.maybe_q_den = p.q;
  expect_refused(p, "only q_den is given");
}

TEST_F(StreamingErrors, Capacity) {
  append(c, inputs, {&states[1]}, 0, 2, 1, out);
  const Tensor before = out.clone();
  expect_error(error_of([&] { streaming_append(params(11)); }),
               "state 1 is at position 2 and T is 11, expected at most 12 tokens in all (L = 3 rows of mix, C = 4)");
  EXPECT_TRUE(out.same_bits(before));
  EXPECT_EQ(states[0].position(), 0);
  EXPECT_EQ(states[1].position(), 2);
  append(c, inputs, {&states[0]}, 0, 12, 0, out);  // exactly full is fine, and nothing more fits
  EXPECT_EQ(states[0].position(), 12);
  expect_error(error_of([&] { append(c, inputs, {&states[0]}, 0, 1, 0, out); }), "at position 12 and T is 1");
  states[0].rollback(3);  // and back again
  append(c, inputs, {&states[0]}, 9, 3, 0, out);
  EXPECT_EQ(states[0].position(), 12);
}

TEST_F(StreamingErrors, NoTokens) {
  const Tensor before = out.clone();
  streaming_append(params(0));
  EXPECT_TRUE(out.same_bits(before));
  EXPECT_EQ(states[0].position(), 0);
  EXPECT_EQ(streaming_append_workspace(params(0)), 0);
}

TEST_F(StreamingErrors, Workspace) {
  const std::int64_t bytes = streaming_append_workspace(params(10));
  ASSERT_GT(bytes, 0);
  const AlignedBuffer memory(bytes + 64);
  const auto room = static_cast<std::size_t>(bytes);
  expect_refused(params(10), "workspace has", {.workspace = memory.bytes().first(room - 1)});
  expect_refused(params(10), "workspace is not aligned", {.workspace = memory.bytes().subspan(4)});
  streaming_append(params(10), {.workspace = memory.bytes().first(room)});
  EXPECT_EQ(states[0].position(), 10);
  EXPECT_EQ(streaming_append_workspace(params(1)), 0) << "decode allocates nothing";
}

TEST_F(StreamingErrors, Rollback) {
  append(c, inputs, {&states[0]}, 0, 9, 0, out);
  expect_error(error_of([&] { states[0].rollback(5); }), "tokens is 5, expected 0 to 4 (R = 4, position 9");
  expect_error(error_of([&] { states[0].rollback(-1); }), "tokens is -1");
  EXPECT_EQ(states[0].position(), 9);
}

TEST_F(StreamingErrors, Configuration) {
  const auto refused = [&](auto change, const std::string& part) {
    StreamingConfig config = config_of(c);
    change(config);
    expect_error(error_of([&] { StreamingState(config, inputs.mix); }), part);
  };
  refused([](auto& x) { x.H = 0; }, "H is 0, expected at least 1");
  refused([](auto& x) { x.Hkv = 3; }, "Hkv is 3, expected a divisor of H = 4");
  refused([](auto& x) { x.Hkv = -2; }, "Hkv is -2");
  refused([](auto& x) { x.D = 0; }, "D is 0");
  refused([](auto& x) { x.E = -5; }, "E is -5");
  refused([](auto& x) { x.chunk = 0; }, "chunk is 0");
  refused([](auto& x) { x.dtype = DType::kI32; }, "dtype is i32");
  refused([](auto& x) { x.dtype = DType::kF64; }, "mix has dtype f32, expected f64");
  refused([](auto& x) { x.normalizer = Normalizer::kOfficial; }, "normalizer is official");
  refused([](auto& x) { x.eps = std::nan(""); }, "eps is nan");
  refused([](auto& x) { x.scale = std::numeric_limits<double>::infinity(); }, "scale is inf");
  refused([](auto& x) { x.rollback = -1; }, "rollback is -1");
  refused([](auto& x) { x.device = -2; }, "device is -2");
  refused([](auto& x) { x.device = 1000; }, "device is cuda:1000, ");
  refused([](auto& x) { x.rollback = INT64_MAX; }, "overflows");
  refused([](auto& x) { x.D = 300; }, "simd: D = 300, at most 256 | ref: runs only when asked for by name");
  refused([](auto& x) { x.H = x.Hkv = INT64_MAX / 8; }, "does not fit 63 bits");
  expect_error(error_of([&] { StreamingState(config_of(c), inputs.mix, "fast"); }), "expected one of cuda, simd, ref");
}

TEST_F(StreamingErrors, Mix) {
  const auto refused = [&](auto change, const std::string& part) {
    ConstView mix = inputs.mix;
    change(mix);
    expect_error(error_of([&] { StreamingState(config_of(c), mix); }), part);
  };
  refused([](auto& m) { m = ConstView(); }, "mix has shape [], expected [L, L] or [4, L, L]");
  refused([](auto& m) { m.shape[0] = 2; }, "mix has shape [2, 3]");
  refused([](auto& m) { m.shape[0] = m.shape[1] = 0; }, "mix has shape [0, 0]");
  refused([](auto& m) { m.dtype = DType::kBF16; }, "mix has dtype bf16, expected f32");
  refused([](auto& m) { m.data = nullptr; }, "mix has null data");
  refused([](auto& m) { m.rank = 3, m.shape = {3, 3, 3}; }, "mix has shape [3, 3, 3]");
}

TEST_F(StreamingErrors, Load) {
  append(c, inputs, {&states[0]}, 0, 9, 0, out);
  const auto refused = [&](auto change, const std::string& part) {
    std::vector<NamedView> views = states[0].views();
    std::map<std::string, std::string> metadata = states[0].metadata();
    change(views, metadata);
    expect_error(error_of([&] { StreamingState::load(views, metadata); }), part);
  };
  refused([](auto&, auto& m) { m["format"] = "other"; }, "'format' is 'other'");
  for (const char* key : {"H", "Hkv", "D", "E", "chunk", "rollback", "position", "furthest", "lanes"}) {
    refused([&](auto&, auto& m) { m.erase(key); }, str("metadata has no '", key, "'"));
    refused([&](auto&, auto& m) { m[key] = "12x"; }, str("metadata '", key, "' is '12x', expected an integer"));
    refused([&](auto&, auto& m) { m[key] = "-7"; }, str("metadata '", key, "' is -7"));
  }
  refused([](auto&, auto& m) { m["eps"] = "small"; }, "'eps' is 'small', expected a number");
  refused([](auto&, auto& m) { m["scale"] = "nan"; }, "scale is nan");
  refused([](auto&, auto& m) { m["dtype"] = "f8"; }, "'dtype' is 'f8', expected one of f32, bf16, f16, f64");
  refused([](auto&, auto& m) { m["normalizer"] = "official"; }, "'normalizer' is 'official'");
  refused([](auto&, auto& m) { m["candidate"] = "fast"; }, "no candidate is called 'fast'");
  refused([](auto&, auto& m) { m["position"] = "13"; }, "'position' is 13");
  refused([](auto&, auto& m) { m["furthest"] = "99"; }, "'furthest' is 99, expected 0 to 12");
  refused([](auto&, auto& m) { m["rollback"] = "1000000000000"; }, "'v' has shape");
  refused([](auto& v, auto&) { v.pop_back(); }, "tensor 'v' is missing");
  refused([](auto& v, auto&) { v.push_back(v.front()); }, "tensor 'mix' is given twice");
  refused([](auto& v, auto&) { v[1].view.shape[0] = 1; }, "'summaries' has shape");
  refused([](auto& v, auto&) { v[2].view.dtype = DType::kBF16; }, "'k' has dtype bf16, expected f32");
  refused([](auto& v, auto&) { v[2].view.data = nullptr; }, "'k' has null data");
  refused([](auto& v, auto&) { v[3].view.stride[0] += 1; }, "'v' has strides");
}

}  // namespace
}  // namespace mhla
