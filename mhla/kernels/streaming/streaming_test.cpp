// Exact streaming: any split of a sequence into calls has the bits of one chunkwise pass, for every candidate,
// dtype and option.
#include <gtest/gtest.h>

#include "mhla/core/error.h"
#include "mhla/core/threads.h"
#include "mhla/kernels/common/simd/targets.h"
#include "mhla/kernels/streaming/streaming_fixture.h"

namespace mhla {
namespace {

constexpr std::string_view kCandidates[] = {"simd", "ref"};

std::vector<Case> in_dtype(std::vector<Case> cases, DType dtype) {
  for (Case& c : cases) c.dtype = dtype;
  return cases;
}

// Cases that are one stream per batch element.
std::vector<Case> streams(std::vector<Case> cases) {
  std::erase_if(cases, [](const Case& c) { return !c.cu_seqlens.empty() || c.B == 0 || c.N == 0; });
  return cases;
}

void expect_same(const Case& c, const CaseInputs& inputs, std::string_view candidate, const Tensor& want,
                 const std::vector<std::int64_t>& lengths) {
  const Tensor got = streamed(c, inputs, candidate, lengths);
  EXPECT_TRUE(got.same_bits(want)) << candidate << " " << c.name() << " split " << text_of(lengths) << ": "
                                   << worst_element(got, want);
  EXPECT_TRUE(got.guards_intact()) << c.name();
}

void check_splits(const Case& c, std::string_view candidate) {
  const CaseInputs inputs(c);
  const Tensor want = one_pass(c, inputs, candidate);
  Random random(c.seed);
  expect_same(c, inputs, candidate, want, {c.N});
  expect_same(c, inputs, candidate, want, std::vector<std::int64_t>(static_cast<std::size_t>(c.N), 1));
  expect_same(c, inputs, candidate, want, random_lengths(c.N, 7, random));
  expect_same(c, inputs, candidate, want, random_lengths(c.N, 3 * c.layout.block_size, random));
}

class StreamingSplits : public testing::TestWithParam<std::tuple<DType, std::string_view>> {};

TEST_P(StreamingSplits, Options) {
  const auto [dtype, candidate] = GetParam();
  for (const Case& c : streams(in_dtype(option_combinations(Form::kCausal), dtype))) check_splits(c, candidate);
}

TEST_P(StreamingSplits, ForgottenShapes) {
  const auto [dtype, candidate] = GetParam();
  for (const Case& c : streams(in_dtype(forgotten_shapes(Form::kCausal), dtype))) check_splits(c, candidate);
}

// Every pair of cuts around multiples of the chunk.
TEST_P(StreamingSplits, EveryBoundary) {
  const auto [dtype, candidate] = GetParam();
  Case c;
  c.form = Form::kCausal, c.dtype = dtype, c.layout = Layout::line(5), c.N = 17, c.H = 2, c.D = 6, c.E = 9;
  c.eps = 0.1;
  const CaseInputs inputs(c);
  const Tensor want = one_pass(c, inputs, candidate);
  for (std::int64_t first = 1; first < c.N; ++first) {
    for (std::int64_t second = first + 1; second < c.N; ++second) {
      expect_same(c, inputs, candidate, want, {first, second - first, c.N - second});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, StreamingSplits,
                         testing::Combine(testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                                          testing::ValuesIn(kCandidates)),
                         [](const auto& p) { return str(name_of(std::get<0>(p.param)), "_", std::get<1>(p.param)); });

TEST(Streaming, DoublePrecisionTakesRef) {
  for (const Case& c : streams(in_dtype(option_combinations(Form::kCausal), DType::kF64))) check_splits(c, "");
}

// Chunks of more tokens than are packed at a time, more chunks than a group, windows of `extend` in all sizes.
TEST(Streaming, LargeChunksAndManyChunks) {
  struct Size {
    std::int64_t N, C, D, E, rows;
  };
  for (const Size& size : {Size{300, 64, 40, 72, 0},
                           {450, 128, 33, 48, 0},
                           {700, 200, 16, 20, 0},
                           {333, 8, 24, 16, 0},
                           {260, 4, 16, 24, 1},
                           {260, 4, 16, 24, 2},
                           {260, 4, 16, 24, 3},
                           {260, 4, 16, 24, 5},
                           {260, 4, 16, 24, 6},
                           {260, 4, 16, 24, 20},
                           {90, 1, 8, 8, 0},
                           {90, 1, 8, 8, 4}}) {
    for (const Normalizer normalizer : {Normalizer::kNone, Normalizer::kPaper}) {
      Case c;
      c.form = Form::kCausal, c.N = size.N, c.layout = Layout::line(size.C), c.D = size.D, c.E = size.E;
      c.H = 4, c.Hkv = 2, c.rows = size.rows, c.extend = size.rows > 0, c.normalizer = normalizer, c.eps = 0.1;
      check_splits(c, "simd");
      c.per_head = true, c.B = 2;
      check_splits(c, "simd");
    }
  }
}

// Decode reads several heads of a group at once: groups of every shape.
TEST(Streaming, Groups) {
  for (const std::int64_t group : {1, 2, 3, 4, 5, 7, 8}) {
    for (const std::int64_t E : {4, 16, 32, 70, 128, 200, 256}) {
      Case c;
      c.form = Form::kCausal, c.N = 45, c.layout = Layout::line(16), c.D = 24, c.E = E, c.H = 2 * group, c.Hkv = 2;
      c.normalizer = group % 2 ? Normalizer::kPaper : Normalizer::kNone, c.eps = 0.1;
      check_splits(c, "simd");
    }
  }
}

TEST(Streaming, RandomSplitsOfRandomShapes) {
  Random random(20260115);
  for (int round = 0; round < 60; ++round) {
    Case c;
    c.form = Form::kCausal, c.seed = static_cast<std::uint64_t>(round) + 1;
    c.N = 1 + random.below(200), c.layout = Layout::line(1 + random.below(70));
    c.Hkv = 1 + random.below(3), c.H = c.Hkv * (1 + random.below(3));
    c.D = 1 + random.below(80), c.E = 1 + random.below(80), c.B = 1 + random.below(2);
    c.normalizer = random.below(2) ? Normalizer::kPaper : Normalizer::kNone, c.eps = 0.1;
    c.den = c.normalizer == Normalizer::kPaper && random.below(2);
    c.per_head = random.below(2), c.extend = random.below(2);
    if (c.extend) c.rows = 1 + random.below(8);
    c.feature_map = static_cast<FeatureMap>(random.below(4));
    c.dtype = static_cast<DType>(random.below(3));
    check_splits(c, "simd");
  }
}

TEST(Streaming, EveryInstructionSet) {
  for (const std::string& target : simd_targets()) {
    use_simd_target(target);
    for (const Case& c : streams(option_combinations(Form::kCausal))) check_splits(c, "simd");
    for (const auto& [D, E] : {std::pair{1, 3}, {5, 2}, {7, 40}, {24, 12}, {33, 65}, {72, 130}}) {
      Case c;
      c.form = Form::kCausal, c.N = 150, c.layout = Layout::line(70), c.D = D, c.E = E, c.H = 3, c.Hkv = 1, c.eps = 0.1;
      check_splits(c, "simd");
    }
  }
  use_simd_target("");
}

TEST(Streaming, EveryThreadCount) {
  Case c;
  c.form = Form::kCausal, c.B = 3, c.N = 200, c.layout = Layout::line(16), c.H = 4, c.Hkv = 2, c.D = 64, c.E = 64;
  const CaseInputs inputs(c);
  const Tensor want = one_pass(c, inputs, "simd");
  for (const int threads : {1, 2, 7}) {
    ThreadPool pool(threads);
    Random random(5);
    for (const std::int64_t most : {3, 50, 200}) {
      const std::vector<std::int64_t> lengths = random_lengths(c.N, most, random);
      const Tensor got = streamed(c, inputs, "simd", lengths, {.maybe_executor = &pool});
      EXPECT_TRUE(got.same_bits(want)) << threads << " threads, split " << text_of(lengths);
    }
  }
}

// Enough bytes that a decode step is shared by the workers.
TEST(Streaming, DecodeInParallel) {
  Case c;
  c.form = Form::kCausal, c.B = 4, c.N = 40, c.layout = Layout::line(8), c.H = 8, c.Hkv = 4, c.D = 128, c.E = 128;
  const CaseInputs inputs(c);
  ThreadPool pool(3);
  const std::vector<std::int64_t> ones(static_cast<std::size_t>(c.N), 1);
  EXPECT_TRUE(streamed(c, inputs, "simd", ones, {.maybe_executor = &pool}).same_bits(one_pass(c, inputs, "simd")));
}

TEST(Streaming, StatesAtDifferentPositions) {
  Case c;
  c.form = Form::kCausal, c.B = 3, c.N = 60, c.layout = Layout::line(7), c.H = 2, c.D = 12, c.E = 10;
  const CaseInputs inputs(c);
  const Tensor want = one_pass(c, inputs, "simd");
  // Element b starts b * 5 tokens ahead; then all go on together from the inputs of their own position.
  std::vector<StreamingState> states = states_of(c, inputs, "simd", c.B);
  Tensor out(c.dtype, {c.B, c.N, c.H, c.E});
  for (std::int64_t b = 1; b < c.B; ++b) append(c, inputs, {&states[static_cast<std::size_t>(b)]}, 0, 5 * b, b, out);
  const std::int64_t count = c.N - 5 * (c.B - 1);
  for (std::int64_t t = 0; t < count;) {
    const std::int64_t length = std::min<std::int64_t>(count - t, 1 + t % 9);
    Case shifted = c;  // gathered tokens, as a server would batch them
    shifted.N = length;
    CaseInputs step(shifted);
    for (auto [from, to] : {std::pair{&inputs.q, &step.q}, {&inputs.k, &step.k}, {&inputs.v, &step.v}}) {
      for (std::int64_t b = 0; b < c.B; ++b) {
        const ConstView source = tokens_of(*from, 5 * b + t, length, b, 1);
        const std::int64_t size = length * source.shape[2] * source.shape[3] * 4;
        std::copy_n(static_cast<const std::byte*>(source.data), size,
                    static_cast<std::byte*>(const_cast<void*>(to->data)) + b * size);
      }
    }
    Tensor result(c.dtype, {c.B, length, c.H, c.E});
    append(shifted, step, pointers(states), 0, length, 0, result);
    for (std::int64_t index = 0; index < result.numel(); ++index) {
      const std::int64_t row = c.H * c.E, b = index / (length * row), token = index / row % length;
      out.set(((b * c.N) + 5 * b + t + token) * row + index % row, result.at(index));
    }
    t += length;
  }
  for (std::int64_t b = 0; b + 1 < c.B; ++b) {
    append(c, inputs, {&states[static_cast<std::size_t>(b)]}, 5 * b + count, c.N - 5 * b - count, b, out);
  }
  EXPECT_TRUE(out.same_bits(want)) << worst_element(out, want);
}

}  // namespace
}  // namespace mhla
