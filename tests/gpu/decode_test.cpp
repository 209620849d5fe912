// The small decode kernel of sm_90 (streaming_decode_sm90.cu) in the emulator: one token of sequences that stand
// anywhere in a chunk, against the formula in f64 and, bit for bit, against the kernel of all cards. Whatever of a
// state the step has no business with is NaN, and must stay what it was.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "mhla/kernels/common/cuda/plan.h"
#include "mhla/kernels/streaming/streaming_cuda.h"
#include "mhla/testing/accuracy.h"
#include "tests/gpu/emulator/modes.h"
#include "tests/gpu/emulator/previous.h"

namespace mhla::cuda {
namespace {

constexpr int kD = 128, kRows = 3;  // rows of mix: later chunks have the last one

struct Step {
  const char* name;
  int E, C, spare;  // spare: rows of the ring beyond a chunk
  int Hkv, group;
  FeatureMap map = FeatureMap::kRelu;
  bool per_head = false, recorded = false;
  std::vector<int> insides;  // place of the newest token in its chunk, for each sequence
};

std::vector<int> repeated(const std::vector<int>& places, int count) {
  std::vector<int> all;
  for (int i = 0; i < count; ++i) all.push_back(places[static_cast<std::size_t>(i) % places.size()]);
  return all;
}

std::vector<Step> steps() {
  return {
      {"first to last token of a chunk", 128, 64, 0, 1, 1, FeatureMap::kRelu, false, false, {0, 1, 15, 16, 31, 32, 63}},
      {"heads of 256, more than three rounds", 256, 100, 0, 1, 2, FeatureMap::kReluEps, false, false, {0, 47, 98, 99}},
      {"chunks shorter than a round, rings that turn",
       128,
       20,
       7,
       2,
       3,
       FeatureMap::kIdentity,
       false,
       false,
       {0, 13, 18, 19}},
      {"chunks of one token", 128, 1, 2, 1, 1, FeatureMap::kIdentity, false, false, {0, 0, 0}},
      {"all rows of a product, and one more", 128, 40, 5, 1, 17, FeatureMap::kRelu, false, false, {8, 33, 39}},
      {"a mix for each head", 256, 64, 9, 1, 3, FeatureMap::kReluEps, true, false, {5, 63}},
      {"recorded", 128, 64, 33, 2, 2, FeatureMap::kRelu, false, true, {0, 31, 32, 62, 63}},
      {"two panels a block", 256, 40, 3, 2, 1, FeatureMap::kRelu, false, false, repeated({0, 7, 31, 32, 39}, 64)},
      {"two panels a block, recorded", 128, 33, 0, 4, 2, FeatureMap::kIdentity, false, true,
       repeated({32, 0, 15, 16}, 64)},
  };
}

std::int64_t aligned(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

// States and tensors of a step, and the job that names them.
class Problem {
 public:
  explicit Problem(const Step& step)
      : step_(step),
        B_(static_cast<int>(step.insides.size())),
        q_(DType::kBF16, {kBefore + B_, 2, step.Hkv * step.group, kD}),
        k_(DType::kBF16, {kBefore + B_, 2, step.Hkv, kD}),
        v_(DType::kBF16, {kBefore + B_, 2, step.Hkv, step.E}) {
    shape_.C = step.C, shape_.D = kD, shape_.E = step.E, shape_.Hkv = step.Hkv, shape_.group = step.group;
    shape_.L = kRows, shape_.ring = step.C + step.spare, shape_.per_head = step.per_head;
    shape_.feature_map = step.map, shape_.scale = 0.75f;
    shape_.layout = PrefixLayout::of(DType::kBF16, kD, step.E, false, 0);
    const std::int64_t prefixes = shape_.prefixes() * shape_.layout.stride;
    shape_.prefix[0] = aligned(4 * (step.per_head ? shape_.heads() : 1) * kRows * kRows);
    shape_.prefix[1] = shape_.prefix[0] + aligned(prefixes);
    shape_.k = shape_.prefix[1] + aligned(prefixes);
    shape_.v = shape_.k + aligned(std::int64_t{2} * shape_.ring * step.Hkv * kD);
    bytes_ = shape_.v + aligned(std::int64_t{2} * shape_.ring * step.Hkv * step.E);
    Random random(static_cast<std::uint64_t>(step.E + step.C));
    for (int b = 0; b < B_; ++b) {
      states_.emplace_back(DType::kBF16, std::vector{bytes_ / 2});
      fill_state(b, random);
      for (Tensor* const x : {&q_, &k_, &v_}) fill_token(*x, b, random);
    }
  }

  [[nodiscard]] DecodeCall call(std::vector<Tensor>& states, Tensor& out) const {
    DecodeCall job;
    job.shape = shape_, job.first = kBefore, job.count = B_;
    job.q = tensor_of(q_.view()), job.k = tensor_of(k_.view()), job.v = tensor_of(v_.view());
    job.out = tensor_of(out.view());
    for (int b = 0; b < B_; ++b) job.sequences[b] = sequence(b, states[static_cast<std::size_t>(b)]);
    return job;
  }
  // What a step writes: its outputs, and its states.
  struct Result {
    Tensor out;
    std::vector<Tensor> states;
  };
  [[nodiscard]] Result start() const {
    Result result{Tensor(DType::kBF16, {kBefore + B_, 2, shape_.heads(), shape_.E}), {}};
    for (const Tensor& state : states_) result.states.push_back(state.clone());
    return result;
  }
  [[nodiscard]] Result run(bool small, bool early = false) const {
    Result result = start();
    DecodeCall job = call(result.states, result.out);
    EXPECT_TRUE(decode_sm90_fits(job)) << step_.name;
    std::vector<std::span<std::byte>> of_previous;  // what it writes and reads
    const auto give = [&](const Tensor& x) { of_previous.push_back(x.guarded_bytes()); };
    if (early) give(q_), give(k_), give(v_), give(result.out);
    const emulator::PreviousKernel previous(of_previous);
    job.q.vector = small;  // without pieces of 16 bytes it is left to the kernel of all cards
    EXPECT_EQ(decode_sm90_fits(job), small) << step_.name;
    if (step_.recorded) {
      DecodeReplay replay;
      static_cast<DecodeJob&>(replay) = job;
      replay.sequences = job.sequences;
      stream_decode_panels(replay, nullptr);
    } else {
      stream_decode_panels(job, nullptr);
    }
    return result;
  }

  // The states after the step: the newest token in its row of the ring, all else as before.
  [[nodiscard]] std::vector<Tensor> expected_states() const {
    std::vector<Tensor> states = start().states;
    for (int b = 0; b < B_; ++b) {
      for (int head = 0; head < shape_.Hkv; ++head) {
        Tensor& state = states[static_cast<std::size_t>(b)];
        for (int d = 0; d < kD; ++d) state.set(row(b, inside(b), head, shape_.k, kD) + d, token(k_, b, head, d));
        for (int e = 0; e < shape_.E; ++e)
          state.set(row(b, inside(b), head, shape_.v, shape_.E) + e, token(v_, b, head, e));
      }
    }
    return states;
  }

  // Outputs by the formula in f64; `rounded`: with features and scores in bf16, as plain code has them.
  [[nodiscard]] Tensor expected(bool rounded) const {
    Tensor out(DType::kF64, {B_, shape_.heads(), shape_.E});
    const auto round = [&](double x) { return rounded ? to_f32(to_bf16(static_cast<float>(x))) : x; };
    const std::vector<Tensor> states = expected_states();
    for (int b = 0; b < B_; ++b) {
      const Tensor& state = states[static_cast<std::size_t>(b)];
      for (int h = 0; h < shape_.heads(); ++h) {
        const int kv_head = h / shape_.group;
        std::vector<double> sums(static_cast<std::size_t>(shape_.E)), q(kD);
        for (int d = 0; d < kD; ++d) {
          q[static_cast<std::size_t>(d)] = round(phi(shape_.feature_map, token(q_, b, h, d)));
          for (int e = 0; e < shape_.E; ++e)
            sums[static_cast<std::size_t>(e)] +=
                q[static_cast<std::size_t>(d)] * state.at(prefix(b, shape_.per_head ? h : kv_head, d, e));
        }
        for (int place = 0; place <= inside(b); ++place) {
          const std::int64_t key = row(b, place, kv_head, shape_.k, kD);
          const std::int64_t value = row(b, place, kv_head, shape_.v, shape_.E);
          double score = 0;
          for (int d = 0; d < kD; ++d)
            score += q[static_cast<std::size_t>(d)] * round(phi(shape_.feature_map, state.at(key + d)));
          score = round(score * coefficient(h, chunk(b), chunk(b)));
          for (int e = 0; e < shape_.E; ++e) sums[static_cast<std::size_t>(e)] += score * state.at(value + e);
        }
        for (int e = 0; e < shape_.E; ++e)
          out.set((std::int64_t{b} * shape_.heads() + h) * shape_.E + e,
                  round(shape_.scale * sums[static_cast<std::size_t>(e)]));
      }
    }
    return out;
  }

  // The outputs of the step; everything around them must be NaN.
  [[nodiscard]] Tensor outputs(const Tensor& all) const {
    Tensor own(DType::kF64, {B_, shape_.heads(), shape_.E});
    const std::int64_t token = std::int64_t{1} * shape_.heads() * shape_.E;
    for (std::int64_t i = 0; i < all.numel(); ++i) {
      const std::int64_t b = i / token / 2 - kBefore;
      if (b >= 0 && i / token % 2 == 0)
        own.set(b * token + i % token, all.at(i));
      else
        EXPECT_TRUE(std::isnan(all.at(i))) << step_.name << ": element " << i << " was written";
    }
    EXPECT_TRUE(all.guards_intact()) << step_.name;
    return own;
  }

 private:
  static constexpr int kBefore = 2;  // batch elements before those of the step

  [[nodiscard]] int inside(int b) const { return step_.insides[static_cast<std::size_t>(b)]; }
  [[nodiscard]] static int chunk(int b) { return b % (kRows + 2); }
  [[nodiscard]] static int open(int b) { return b / 2 % 2; }
  [[nodiscard]] double coefficient(int head, int i, int b) const {
    const MixIndex index = mix_index(i, b, kRows);
    return 0.5 + 0.25 * static_cast<double>(index.row + 2 * index.column) + (step_.per_head ? 0.125 * head : 0);
  }
  // Elements of bf16 in a state before a row of a ring, or before an element of the open prefix.
  [[nodiscard]] std::int64_t row(int b, int place, int head, std::int64_t offset, int columns) const {
    const int in_ring = (chunk(b) * shape_.C + place) % shape_.ring;
    return offset / 2 + (std::int64_t{in_ring} * shape_.Hkv + head) * columns;
  }
  [[nodiscard]] std::int64_t prefix(int b, int head, int d, int e) const {
    return (shape_.prefix[open(b)] + head * shape_.layout.stride) / 2 + PrefixLayout::index(d, e, kD);
  }
  [[nodiscard]] static double token(const Tensor& x, int b, int head, int column) {
    const std::int64_t heads = x.shape()[2], columns = x.shape()[3];
    return x.at(((kBefore + b) * 2 * heads + head) * columns + column);
  }

  static void fill_token(Tensor& x, int b, Random& random) {
    const std::int64_t values = x.shape()[2] * x.shape()[3];
    for (std::int64_t i = 0; i < values; ++i) x.set((kBefore + b) * 2 * values + i, random.normal());
  }
  void fill_state(int b, Random& random) {
    Tensor& state = states_[static_cast<std::size_t>(b)];
    auto* const mix = static_cast<float*>(state.data());
    for (int head = 0; head < (step_.per_head ? shape_.heads() : 1); ++head) {
      for (int i = 0; i < kRows * kRows; ++i)
        mix[head * kRows * kRows + i] = static_cast<float>(coefficient(head, i / kRows, i % kRows));
    }
    for (int head = 0; head < shape_.prefixes(); ++head) {
      for (int d = 0; d < kD; ++d) {
        for (int e = 0; e < shape_.E; ++e) state.set(prefix(b, head, d, e), 4 * random.normal());
      }
    }
    for (int place = 0; place < inside(b); ++place) {
      for (int head = 0; head < shape_.Hkv; ++head) {
        for (int d = 0; d < kD; ++d) state.set(row(b, place, head, shape_.k, kD) + d, random.normal());
        for (int e = 0; e < shape_.E; ++e) state.set(row(b, place, head, shape_.v, shape_.E) + e, random.normal());
      }
    }
  }
  [[nodiscard]] DecodeSequence sequence(int b, Tensor& state) const {
    return {static_cast<std::byte*>(state.data()), chunk(b), inside(b), chunk(b) * shape_.C % shape_.ring, open(b)};
  }

  const Step& step_;
  int B_;
  StreamShape shape_;
  std::int64_t bytes_ = 0;  // of a state
  Tensor q_, k_, v_;        // [batch, 2, heads, columns], of which the first token is the step's
  std::vector<Tensor> states_;
};

void expect_states(const std::vector<Tensor>& got, const std::vector<Tensor>& want, const char* name) {
  for (std::size_t b = 0; b < want.size(); ++b) {
    EXPECT_TRUE(got[b].same_bits(want[b])) << name << ", state " << b << ": " << worst_element(got[b], want[b]);
    EXPECT_TRUE(got[b].guards_intact()) << name << ", state " << b;
  }
}

TEST(SmallDecodeKernel, IsTheFormulaWithTheBitsOfTheKernelOfAllCards) {
  for (const Step& step : steps()) {
    const Problem problem(step);
    const Problem::Result got = problem.run(true), other = problem.run(false);
    const Tensor out = problem.outputs(got.out), want = problem.expected(false);
    PooledError error, plain;
    error.add(out, want), plain.add(problem.expected(true), want);
    const Accuracy a = judge(error, plain, DType::kBF16, false);
    EXPECT_TRUE(a.holds()) << step.name << ": RMS error " << a.rms << " (bound " << a.rms_bound << "), largest "
                           << a.max << " (bound " << a.max_bound << "); " << worst_element(out, want);
    const Tensor other_out = problem.outputs(other.out);
    EXPECT_TRUE(out.same_bits(other_out)) << step.name << ": " << worst_element(out, other_out);
    expect_states(got.states, problem.expected_states(), step.name);
    expect_states(other.states, got.states, step.name);
  }
}

// What a call brings, and where its results go, belongs to the previous kernel at first.
TEST(SmallDecodeKernel, HasTheSameBitsInEveryOrder) {
  for (const Step& step : steps()) {
    if (step.insides.size() > 10) continue;
    const Problem problem(step);
    const Problem::Result want = problem.run(true);
    const Tensor want_out = problem.outputs(want.out);
    const emulator::Modes restored;
    for (const emulator::Order order : {emulator::Order::kBackward, emulator::Order::kShuffled}) {
      emulator::order = order;
      emulator::late_copies = order == emulator::Order::kShuffled;
      const Problem::Result got = problem.run(true, /*early=*/true);
      const Tensor out = problem.outputs(got.out);
      EXPECT_TRUE(out.same_bits(want_out)) << step.name << ": " << worst_element(out, want_out);
      expect_states(got.states, want.states, step.name);
    }
  }
}

TEST(SmallDecodeKernel, TakesNothingElse) {
  const Step step = steps()[0];
  const Problem problem(step);
  Problem::Result result = problem.start();
  const DecodeCall good = problem.call(result.states, result.out);
  ASSERT_TRUE(decode_sm90_fits(good));
  const auto fits_with = [&](const auto& change) {
    DecodeCall job = good;
    change(job);
    return decode_sm90_fits(job);
  };
  EXPECT_TRUE(fits_with([](DecodeCall& job) { job.shape.E = 256; }));
  EXPECT_FALSE(fits_with([](DecodeCall& job) { job.shape.E = 192; }));
  EXPECT_FALSE(fits_with([](DecodeCall& job) { job.shape.D = 64; }));
  EXPECT_FALSE(fits_with([](DecodeCall& job) { job.shape.normalized = true; }));
  EXPECT_FALSE(fits_with([](DecodeCall& job) { job.shape.feature_map = FeatureMap::kElu1; }));
  EXPECT_FALSE(fits_with([](DecodeCall& job) { job.shape.layout.panels = false; }));
  EXPECT_FALSE(fits_with([](DecodeCall& job) { job.k.vector = false; }));
  EXPECT_FALSE(fits_with([](DecodeCall& job) { job.v.vector = false; }));
  EXPECT_FALSE(fits_with([](DecodeCall& job) { job.out.vector = false; }));
}

}  // namespace
}  // namespace mhla::cuda
