// Streaming on a CUDA device: any split of a sequence into calls has the bits of one chunkwise pass of the `cuda`
// candidate, whatever the batch, and forks, rollbacks and files go on as if nothing had happened. Skipped, saying so,
// where there is no device; the emulator of tests/gpu runs the same tests on the CPU, with every 4th case of the lists.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "mhla/core/cuda.h"
#include "mhla/core/error.h"
#include "mhla/kernels/streaming/streaming_device_fixture.h"

namespace mhla {
namespace {

constexpr std::string_view kCuda = "cuda";

class StreamingCuda : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = cuda_missing(); !why.empty()) GTEST_SKIP() << "cuda: " << why;
  }
  static bool emulated() { return device_facts(0).name == "emulator"; }
};
class StreamingCudaDtypes : public StreamingCuda, public testing::WithParamInterface<DType> {};

Tensor wanted(const Case& c, const CaseInputs& inputs) {
  RunOptions run;
  run.candidate = kCuda;
  return run_case(c, inputs, run, kOnlyOut).out;
}

void expect_same(const Case& c, const CaseInputs& inputs, const Tensor& want,
                 const std::vector<std::int64_t>& lengths) {
  Placed placed(c, inputs, kCuda);
  std::vector<StreamingState> states = states_of(c, inputs, kCuda, c.B);
  std::int64_t t = 0;
  for (const std::int64_t length : lengths) {
    placed.append(pointers(states), t, length);
    t += length;
  }
  const Tensor& got = placed.finish();
  EXPECT_TRUE(got.same_bits(want)) << c.name() << " split " << text_of(lengths) << ": " << worst_element(got, want);
}

void check_splits(const Case& c) {
  const CaseInputs inputs(c);
  const Tensor want = wanted(c, inputs);
  Random random(c.seed);
  expect_same(c, inputs, want, {c.N});
  expect_same(c, inputs, want, std::vector<std::int64_t>(static_cast<std::size_t>(c.N), 1));
  expect_same(c, inputs, want, random_lengths(c.N, 7, random));
  expect_same(c, inputs, want, random_lengths(c.N, 3 * c.layout.block_size, random));
}

// Those that are one stream per batch element.
std::vector<Case> streams(const std::vector<Case>& cases, DType dtype, std::size_t every) {
  std::vector<Case> some;
  for (std::size_t i = 0; i < cases.size(); i += every) {
    Case c = cases[i];
    c.dtype = dtype;
    if (c.cu_seqlens.empty() && c.B > 0 && c.N > 0) some.push_back(c);
  }
  return some;
}

TEST_P(StreamingCudaDtypes, Options) {
  for (const Case& c : streams(option_combinations(Form::kCausal), GetParam(), emulated() ? 4 : 1)) check_splits(c);
}

TEST_P(StreamingCudaDtypes, ForgottenShapes) {
  for (const Case& c : streams(forgotten_shapes(Form::kCausal), GetParam(), emulated() ? 4 : 1)) check_splits(c);
}

// Every pair of cuts around multiples of the chunk.
TEST_P(StreamingCudaDtypes, EveryBoundary) {
  Case c;
  c.form = Form::kCausal, c.dtype = GetParam(), c.layout = Layout::line(5), c.N = 17, c.H = 2, c.D = 6, c.E = 9;
  c.eps = 0.1;
  const CaseInputs inputs(c);
  const Tensor want = wanted(c, inputs);
  for (std::int64_t first = 1; first < c.N; first += emulated() ? 3 : 1) {
    for (std::int64_t second = first + 1; second < c.N; ++second)
      expect_same(c, inputs, want, {first, second - first, c.N - second});
  }
}

// Groups that share a prefix are rows of one product: more than it has, odd numbers, one; prefixes of query heads.
TEST_P(StreamingCudaDtypes, Groups) {
  for (const std::int64_t group : {1, 3, 16, 17}) {
    for (const std::int64_t E : {4, 70, 256}) {
      if (emulated() && group * E > 1200) continue;
      Case c;
      c.form = Form::kCausal, c.dtype = GetParam(), c.N = 39, c.layout = Layout::line(16), c.D = 40, c.E = E;
      c.H = 2 * group, c.Hkv = 2, c.eps = 0.1;
      c.normalizer = group % 2 != 0 ? Normalizer::kPaper : Normalizer::kNone;
      c.per_head = group == 3;
      check_splits(c);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, StreamingCudaDtypes, testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

// Chunks of more than one tile, windows of `extend` that turn round in the slots, the shape of the language models.
TEST_F(StreamingCuda, LargeChunksAndWindows) {
  struct Size {
    std::int64_t N, C, D, E, rows;
  };
  for (const Size& size : {Size{150, 64, 128, 256, 0},
                           {300, 130, 33, 48, 0},
                           {100, 3, 16, 20, 0},
                           {130, 4, 16, 24, 1},
                           {130, 4, 16, 24, 2},
                           {130, 4, 16, 24, 3},
                           {130, 4, 16, 24, 20},
                           {70, 1, 8, 8, 0},
                           {70, 1, 8, 8, 4}}) {
    for (const Normalizer normalizer : {Normalizer::kNone, Normalizer::kPaper}) {
      Case c;
      c.form = Form::kCausal, c.N = size.N, c.layout = Layout::line(size.C), c.D = size.D, c.E = size.E;
      c.H = 4, c.Hkv = 2, c.rows = size.rows, c.extend = size.rows > 0, c.normalizer = normalizer, c.eps = 0.1;
      c.dtype = normalizer == Normalizer::kNone ? DType::kBF16 : DType::kF32;
      if (emulated() && size.D == 128) c.H = c.Hkv = 1, c.N = 70;
      check_splits(c);
      c.per_head = true, c.B = 2;
      if (!emulated()) check_splits(c);
    }
  }
}

// Rings whose end falls into a chunk.
TEST_F(StreamingCuda, RingsTurnInsideAChunk) {
  Case c;
  c.form = Form::kCausal, c.dtype = DType::kBF16, c.N = 60, c.layout = Layout::line(9), c.H = 2, c.D = 17, c.E = 33;
  c.normalizer = Normalizer::kPaper, c.den = true, c.eps = 0.1;
  const CaseInputs inputs(c);
  const Tensor want = wanted(c, inputs);
  for (const std::int64_t rollback : {0, 1, 4, 11}) {
    for (const std::int64_t most : {1, 7}) {
      StreamingConfig config = config_of(c);
      config.device = 0, config.rollback = rollback;
      StreamingState state(config, inputs.mix);
      Placed placed(c, inputs, kCuda);
      Random random(9);
      for (const std::int64_t length : random_lengths(c.N, most, random)) {
        placed.append({&state}, state.position(), length);
        if (rollback < 1 || state.position() % 5 != 0) continue;
        state.rollback(1);
        placed.append({&state}, state.position(), 1);
      }
      EXPECT_TRUE(placed.finish().same_bits(want)) << "R " << rollback << ", up to " << most << " tokens a call";
    }
  }
}

TEST_F(StreamingCuda, RandomSplitsOfRandomShapes) {
  Random random(20260301);
  for (int round = 0; round < (emulated() ? 24 : 120); ++round) {
    Case c;
    c.form = Form::kCausal, c.seed = static_cast<std::uint64_t>(round) + 1;
    c.N = 1 + random.below(90), c.layout = Layout::line(1 + random.below(70));
    c.Hkv = 1 + random.below(2), c.H = c.Hkv * (1 + random.below(3));
    c.D = 1 + random.below(80), c.E = 1 + random.below(140), c.B = 1 + random.below(2);
    c.normalizer = random.below(2) ? Normalizer::kPaper : Normalizer::kNone, c.eps = 0.1;
    c.den = c.normalizer == Normalizer::kPaper && random.below(2);
    c.per_head = random.below(2), c.extend = random.below(2), c.fused = random.below(2);
    if (c.extend) c.rows = 1 + random.below(8);
    c.feature_map = static_cast<FeatureMap>(random.below(4));
    c.dtype = static_cast<DType>(random.below(3));
    check_splits(c);
  }
}

// What is not finite reaches the tokens it may reach, whatever the split, and no other sequence. Bits are promised for
// finite numbers alone: a tile with others in it adds term by term.
TEST_F(StreamingCuda, NonFiniteValuesStayWhereTheyBelong) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    Case c;
    c.form = Form::kCausal, c.dtype = dtype, c.B = 2, c.N = 60, c.layout = Layout::line(16);
    c.H = c.Hkv = 2, c.D = 20, c.E = 36;
    c.normalizer = Normalizer::kPaper, c.eps = 0.1;
    const CaseInputs inputs(c);
    const std::int64_t row = c.H * c.E;
    CaseInputs::set(inputs.v, 20 * row + 3, std::nan(""));
    CaseInputs::set(inputs.v, 45 * row + 40, std::numeric_limits<double>::infinity());
    const Tensor want = wanted(c, inputs);
    ASSERT_TRUE(std::isnan(want.at(20 * row + 3)) && std::isfinite(want.at(19 * row + 3)));
    const std::vector<std::int64_t> ones(60, 1);
    for (const auto& lengths : {std::vector<std::int64_t>{60}, ones, {18, 5, 20, 1, 16}}) {
      Placed placed(c, inputs, kCuda);
      std::vector<StreamingState> states = states_of(c, inputs, kCuda, c.B);
      for (std::int64_t t = 0, call = 0; t < c.N; t += lengths[static_cast<std::size_t>(call++)])
        placed.append(pointers(states), t, lengths[static_cast<std::size_t>(call)]);
      const Tensor& got = placed.finish();
      for (std::int64_t i = 0; i < got.numel(); ++i) {
        const double x = got.at(i), y = want.at(i), tolerance = 0.02 * std::abs(y) + 1e-3;
        ASSERT_EQ(std::isfinite(x), std::isfinite(y)) << "element " << i << " of " << name_of(dtype);
        if (!std::isfinite(y)) continue;
        ASSERT_LE(std::abs(x - y), tolerance) << "element " << i << " of " << name_of(dtype);
      }
    }
  }
}

// More sequences than one launch takes, each somewhere else, decode as they would alone.
TEST_F(StreamingCuda, StatesAtDifferentPositions) {
  Case c;
  c.form = Form::kCausal, c.dtype = DType::kBF16, c.B = 131, c.N = 24, c.layout = Layout::line(6), c.D = 12, c.E = 10;
  const CaseInputs inputs(c);
  const Tensor want = wanted(c, inputs);
  Placed placed(c, inputs, kCuda);
  std::vector<StreamingState> states = states_of(c, inputs, kCuda, c.B);
  std::vector<std::int64_t> at(static_cast<std::size_t>(c.B));
  for (std::int64_t b = 0; b < c.B; ++b) {
    at[static_cast<std::size_t>(b)] = b % 17;
    if (b % 17 > 0) placed.append({&states[static_cast<std::size_t>(b)]}, 0, b % 17, b);
  }
  // The token at its own position of every sequence, gathered by strides: those of equal b % 17 lie 17 apart.
  const auto step = [&](std::int64_t first, std::int64_t count) {
    std::vector<StreamingState*> some;
    for (std::int64_t n = 0; n < count; ++n) some.push_back(&states[static_cast<std::size_t>(first + 17 * n)]);
    StreamingParams params;
    params.states = some;
    const std::int64_t t = at[static_cast<std::size_t>(first)];
    const auto gather = [&](auto view) {
      view = tokens_of(view, t, 1, first, count);
      view.stride[0] *= 17;
      return view;
    };
    params.q = gather(placed.inputs().q), params.k = gather(placed.inputs().k), params.v = gather(placed.inputs().v);
    params.out = gather(placed.out());
    streaming_append(params);
    for (std::int64_t n = 0; n < count; ++n) ++at[static_cast<std::size_t>(first + 17 * n)];
  };
  for (int round = 0; round < 7; ++round) {
    for (std::int64_t first = 0; first < 17; ++first) step(first, (c.B - 1 - first) / 17 + 1);
  }
  const Tensor& got = placed.finish();
  for (std::int64_t b = 0; b < c.B; ++b) {
    const std::int64_t row = c.H * c.E, end = at[static_cast<std::size_t>(b)];
    EXPECT_EQ(states[static_cast<std::size_t>(b)].position(), end);
    for (std::int64_t i = b * c.N * row; i < (b * c.N + end) * row; ++i) ASSERT_EQ(got.at(i), want.at(i)) << b;
  }
}

// All of them in one call from here on: a batch of sequences at 17 different positions.
TEST_F(StreamingCuda, OneLaunchForAllPositions) {
  Case c;
  c.form = Form::kCausal, c.dtype = DType::kBF16, c.B = 140, c.N = 24, c.layout = Layout::line(6), c.D = 12, c.E = 10;
  const CaseInputs inputs(c);
  const Tensor want = wanted(c, inputs);
  Placed placed(c, inputs, kCuda);
  std::vector<StreamingState> states = states_of(c, inputs, kCuda, c.B);
  for (std::int64_t b = 1; b < c.B; ++b)
    if (b % 17 > 0) placed.append({&states[static_cast<std::size_t>(b)]}, 0, b % 17, b);
  Case step = c;
  step.N = 1;
  for (int round = 0; round < 7; ++round) {
    CaseInputs tokens(step);
    const auto gather = [&](const ConstView& from, const ConstView& to) {
      const std::int64_t bytes = from.shape[2] * from.shape[3] * size_of(from.dtype);
      for (std::int64_t b = 0; b < c.B; ++b) {
        const ConstView row = tokens_of(from, b % 17 + round, 1, b, 1);
        std::copy_n(static_cast<const std::byte*>(row.data), bytes,
                    static_cast<std::byte*>(const_cast<void*>(to.data)) + b * bytes);
      }
    };
    gather(inputs.q, tokens.q), gather(inputs.k, tokens.k), gather(inputs.v, tokens.v);
    Placed one(step, tokens, kCuda);
    one.append(pointers(states), 0, 1);
    const Tensor& got = one.finish();
    const std::int64_t row = c.H * c.E;
    for (std::int64_t i = 0; i < got.numel(); ++i) {
      const std::int64_t b = i / row;
      ASSERT_EQ(got.at(i), want.at((b * c.N + b % 17 + round) * row + i % row)) << "sequence " << b;
    }
  }
}

// A case whose states were cut at `cut`, changed by `change`, and go on token by token or at once.
Case plain_case() {
  Case c;
  c.form = Form::kCausal, c.dtype = DType::kBF16, c.N = 50, c.layout = Layout::line(8), c.H = 4, c.Hkv = 2, c.D = 20;
  c.E = 24, c.eps = 0.1, c.normalizer = Normalizer::kPaper, c.den = true;
  return c;
}

// Replaces the state, then goes on from its position.
void check_change(const Case& c, std::int64_t cut, const std::function<StreamingState(StreamingState)>& change) {
  const CaseInputs inputs(c);
  const Tensor want = wanted(c, inputs);
  for (const std::int64_t most : {1, 30}) {
    Placed placed(c, inputs, kCuda);
    StreamingState state = std::move(states_of(c, inputs, kCuda, 1)[0]);
    placed.append({&state}, 0, cut);
    state = change(std::move(state));
    Random random(3);
    for (const std::int64_t length : random_lengths(c.N - state.position(), most, random))
      placed.append({&state}, state.position(), length);
    const Tensor& got = placed.finish();
    EXPECT_TRUE(got.same_bits(want)) << c.name() << " cut at " << cut << ": " << worst_element(got, want);
  }
}

TEST_F(StreamingCuda, ForksGoOnByThemselves) {
  const Case c = plain_case();
  for (const std::int64_t cut : {1, 8, 37}) {
    check_change(c, cut, [](StreamingState state) { return StreamingState(state); });
    check_change(c, cut, [&](StreamingState state) {  // a snapshot, restored after the original went elsewhere
      const StreamingState snapshot = state;
      Case other = c;
      other.seed = 99;
      const CaseInputs inputs(other);
      Placed lost(other, inputs, kCuda);
      lost.append({&state}, 0, 11);
      state = snapshot;
      return state;
    });
  }
}

TEST_F(StreamingCuda, RollbackForgets) {
  for (const bool extend : {false, true}) {
    Case c = plain_case();
    c.extend = extend;
    if (extend) c.rows = 3;
    for (const std::int64_t cut : {3, 8, 24, 37, 48}) {
      for (const std::int64_t tokens : {1, 5, 8}) {
        if (tokens > cut) continue;
        check_change(c, cut, [&](StreamingState state) {
          state.rollback(tokens);
          return state;
        });
      }
    }
    check_change(c, 37, [&](StreamingState state) {  // twice, the second after new tokens
      const CaseInputs inputs(c);
      Placed lost(c, inputs, kCuda);
      state.rollback(6);
      lost.append({&state}, 0, 2);
      state.rollback(4);
      return state;
    });
    check_change(c, 37, [](StreamingState state) {
      state.reset();
      return state;
    });
  }
}

TEST_F(StreamingCuda, SavedAndLoaded) {
  for (const bool extend : {false, true}) {
    Case c = plain_case();
    c.extend = extend;
    if (extend) c.rows = 3;
    for (const std::int64_t cut : {1, 16, 37, 49}) {
      check_change(c, cut, [](StreamingState state) {
        const auto metadata = state.metadata();
        EXPECT_EQ(metadata.at("candidate"), "cuda");
        const auto views = state.views();
        for (const NamedView& view : views) EXPECT_EQ(view.view.device, kCpu) << view.name;
        return StreamingState::load(views, metadata, 0);
      });
    }
  }
}

template <class F>
void expect_error(const F& call, const std::string& part) {
  try {
    call();
    ADD_FAILURE() << "no error, expected one with: " << part;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST_F(StreamingCuda, ErrorsNameTheArgument) {
  const Case c = plain_case();
  const CaseInputs inputs(c);
  Placed placed(c, inputs, kCuda);
  std::vector<StreamingState> states = states_of(c, inputs, kCuda, 1);
  Tensor out(c.dtype, {c.B, c.N, c.H, c.E});
  expect_error([&] { append(inputs, pointers(states), 0, 1, 0, out.view()); },
               "streaming_append: q is on cpu, expected cuda:0 like the state");
  std::vector<StreamingState> host = states_of(c, inputs, "ref", 1);
  expect_error([&] { placed.append(pointers(host), 0, 1); },
               "streaming_append: q is on cuda:0, expected cpu like the state");
  CaseInputs mixed = placed.inputs().alias();
  mixed.v = inputs.v;
  expect_error([&] { append(mixed, pointers(states), 0, 1, 0, placed.out()); }, "v is on cpu, expected cuda:0 like q");
  StreamingConfig config = config_of(c);
  config.device = 1000;
  expect_error([&] { StreamingState(config, inputs.mix); }, "StreamingState: device is cuda:1000, expected one below");
  config.device = 0, config.D = 257;
  expect_error([&] { StreamingState(config, inputs.mix); }, "cuda: D is 257, above 256 | simd: memory is on cuda:0");
  config = config_of(c), config.device = 0;
  expect_error([&] { StreamingState(config, inputs.mix, "simd"); }, "simd: memory is on cuda:0");
  config.device = kCpu;
  expect_error([&] { StreamingState(config, inputs.mix, "cuda"); }, "cuda: memory is on cpu");
  EXPECT_EQ(states[0].position(), 0);
  RunOptions run;
  const DeviceBuffer small(64, 0);
  run.workspace = small.bytes();
  expect_error([&] { placed.append(pointers(states), 0, c.N, 0, run); }, "workspace has 64 bytes, expected at least");
}

// mix may come from the device, with any strides.
TEST_F(StreamingCuda, MixFromTheDevice) {
  Case c = plain_case();
  c.per_head = true;
  const CaseInputs inputs(c);
  const Tensor want = wanted(c, inputs);
  Placed placed(c, inputs, kCuda);
  DevicePlace place(0, nullptr);
  ConstView mix = inputs.mix;
  place.move_input(mix, "mix");
  StreamingConfig config = config_of(c);
  config.device = 0;
  StreamingState state(config, mix);
  EXPECT_EQ(state.candidate(), "cuda");
  placed.append({&state}, 0, c.N);
  EXPECT_TRUE(placed.finish().same_bits(want));
}

// Decode takes no workspace, and the one of a long call is used, not overrun.
TEST_F(StreamingCuda, Workspace) {
  Case c = plain_case();
  c.N = 300;
  const CaseInputs inputs(c);
  const Tensor want = wanted(c, inputs);
  Placed placed(c, inputs, kCuda);
  std::vector<StreamingState> states = states_of(c, inputs, kCuda, 1);
  StreamingParams params;
  const std::vector<StreamingState*> all = pointers(states);
  const auto bytes = [&](std::int64_t count) {
    params.states = all;
    const CaseInputs& in = placed.inputs();
    params.q = tokens_of(in.q, 0, count, 0, 1), params.k = tokens_of(in.k, 0, count, 0, 1);
    params.v = tokens_of(in.v, 0, count, 0, 1), params.maybe_q_den = tokens_of(in.maybe_q_den, 0, count, 0, 1);
    params.maybe_k_den = tokens_of(in.maybe_k_den, 0, count, 0, 1);
    params.out = tokens_of(placed.out(), 0, count, 0, 1);
    return streaming_append_workspace(params);
  };
  EXPECT_EQ(bytes(1), 0);
  const std::int64_t needed = bytes(c.N), band = 1024;
  ASSERT_GT(needed, 0);
  std::vector<std::byte> nan(static_cast<std::size_t>(needed + band), std::byte{0xff});
  const DeviceMirror memory(nan, 0, nullptr);
  RunOptions run;
  auto* const start = memory.at(nan.data());
  run.workspace = {reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(start) + 63) / 64 * 64),
                   static_cast<std::size_t>(needed)};
  placed.append(pointers(states), 0, c.N, 0, run);
  EXPECT_TRUE(placed.finish().same_bits(want));
  EXPECT_TRUE(memory.bands_intact());
}

}  // namespace
}  // namespace mhla
