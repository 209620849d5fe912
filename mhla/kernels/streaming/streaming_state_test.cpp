// The life of a streaming state: forks, snapshots, rollback, saving and loading, memory. Whatever happened to it, a
// state goes on with the bits of one pass over the tokens it has kept.
#include "mhla/kernels/streaming/streaming_state.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "mhla/core/error.h"
#include "mhla/kernels/common/simd/targets.h"
#include "mhla/kernels/streaming/streaming_fixture.h"

namespace mhla {
namespace {

constexpr std::string_view kCandidates[] = {"simd", "ref"};

Case small_case() {
  Case c;
  c.form = Form::kCausal, c.N = 64, c.layout = Layout::line(8), c.H = 4, c.Hkv = 2, c.D = 12, c.E = 20;
  c.normalizer = Normalizer::kPaper, c.eps = 0.1;
  return c;
}

// Variations that keep different things in the state.
std::vector<Case> kinds() {
  std::vector<Case> cases(6, small_case());
  cases[1].normalizer = Normalizer::kNone;
  cases[2].den = true, cases[2].per_head = true;
  cases[3].extend = true, cases[3].rows = 3;
  cases[4].feature_map = FeatureMap::kElu1, cases[4].dtype = DType::kBF16;
  cases[5].extend = true, cases[5].rows = 1, cases[5].dtype = DType::kF16;
  return cases;
}

StreamingState load_copy(const StreamingState& state) { return StreamingState::load(state.views(), state.metadata()); }

// Tokens [t, end) one call after the other, compared with `want`.
void expect_goes_on(const Case& c, const CaseInputs& inputs, StreamingState& state, std::int64_t t, const Tensor& want,
                    const std::string& what) {
  Tensor out = want.clone();
  for (std::int64_t index = t * c.H * c.E; index < out.numel(); ++index) out.set(index, std::nan(""));
  for (std::int64_t length = 1; t < c.N; t += length, length = length % 5 + 1) {
    length = std::min(length, c.N - t);
    append(c, inputs, {&state}, t, length, 0, out);
  }
  EXPECT_TRUE(out.same_bits(want)) << what << " " << c.name() << ": " << worst_element(out, want);
}

TEST(StreamingState, ForkAndRestore) {
  for (const std::string_view candidate : kCandidates) {
    for (const Case& c : kinds()) {
      const CaseInputs inputs(c);
      const Tensor want = one_pass(c, inputs, candidate);
      for (const std::int64_t cut : {0, 1, 7, 8, 9, 30, 32, 50}) {
        StreamingState state(config_of(c), inputs.mix, candidate);
        Tensor out(c.dtype, {c.B, c.N, c.H, c.E});
        append(c, inputs, {&state}, 0, cut, 0, out);
        const StreamingState snapshot = state;
        StreamingState fork = state;
        expect_goes_on(c, inputs, state, cut, want, "the original after a fork");
        expect_goes_on(c, inputs, fork, cut, want, "a fork");
        state = snapshot;
        EXPECT_EQ(state.position(), cut);
        expect_goes_on(c, inputs, state, cut, want, "a restored state");
        state.reset();
        EXPECT_EQ(state.position(), 0);
        expect_goes_on(c, inputs, state, 0, want, "a reset state");
      }
    }
  }
}

TEST(StreamingState, RestoreOfAnotherConfiguration) {
  const Case c = small_case();
  Case other = c;
  other.D = 7, other.layout = Layout::line(16);
  const CaseInputs inputs(c), other_inputs(other);
  StreamingState state(config_of(other), other_inputs.mix, "simd");
  state = StreamingState(config_of(c), inputs.mix, "simd");
  const StreamingState snapshot(config_of(c), inputs.mix, "simd");
  StreamingState target(config_of(other), other_inputs.mix, "simd");
  target = snapshot;
  expect_goes_on(c, inputs, target, 0, one_pass(c, inputs, "simd"), "a state of another configuration");
}

// Tokens that are taken back were NaN: nothing of them may stay.
TEST(StreamingState, RollbackLeavesNoTrace) {
  for (const std::string_view candidate : kCandidates) {
    for (Case c : kinds()) {
      c.N = 50;
      const CaseInputs inputs(c);
      Case poisoned = c;
      poisoned.N = 24;
      CaseInputs poison(poisoned);
      for (Tensor& tensor : poison.memory) {
        if (tensor.shape() != std::vector<std::int64_t>{c.H, c.mix_rows(), c.mix_rows()} &&
            tensor.shape() != std::vector<std::int64_t>{c.mix_rows(), c.mix_rows()}) {
          tensor.fill(std::numeric_limits<double>::quiet_NaN());
        }
      }
      const Tensor want = one_pass(c, inputs, candidate);
      for (const std::int64_t R : {1, 5, 8, 20}) {
        for (const std::int64_t cut : {0, 3, 8, 15, 16, 17, 26}) {
          StreamingConfig config = config_of(c);
          config.rollback = R;
          if (!c.extend && cut + R > c.N) continue;
          StreamingState state(config, inputs.mix, candidate);
          Tensor out(c.dtype, {c.B, c.N, c.H, c.E}), lost(c.dtype, {c.B, poisoned.N, c.H, c.E});
          append(c, inputs, {&state}, 0, cut, 0, out);
          append(poisoned, poison, {&state}, 0, R, 0, lost);
          EXPECT_EQ(state.rollback_limit(), std::min(cut + R, R));
          state.rollback(R / 2);
          state.rollback(R - R / 2);
          EXPECT_EQ(state.position(), cut);
          EXPECT_EQ(state.rollback_limit(), 0) << "counted from the furthest position";
          expect_goes_on(c, inputs, state, cut, want, str("after a rollback of ", R, " to ", cut));
        }
      }
    }
  }
}

// A random life: appends, rollbacks, forks, saves, in any order. One in four has chunks of several chains.
TEST(StreamingState, RandomLives) {
  Random random(7);
  for (int round = 0; round < 80; ++round) {
    Case c = kinds()[static_cast<std::size_t>(round) % kinds().size()];
    const bool long_chunks = round % 4 == 3;
    c.N = 120, c.layout = Layout::line(1 + random.below(12)), c.seed = static_cast<std::uint64_t>(round) + 1;
    if (long_chunks) c.N = 400, c.layout = Layout::line(kChainTokens + random.below(120));
    if (c.extend) c.rows = 1 + random.below(7);
    const std::string_view candidate = kCandidates[round % 5 == 0 ? 1 : 0];
    const CaseInputs inputs(c);
    const Tensor want = one_pass(c, inputs, candidate);
    StreamingConfig config = config_of(c);
    config.rollback = random.below(long_chunks ? 150 : 30);
    StreamingState state(config, inputs.mix, candidate);
    Tensor out(c.dtype, {c.B, c.N, c.H, c.E});
    std::string life;
    while (state.position() < c.N) {
      switch (random.below(4)) {
        case 0: {
          const std::int64_t back = random.below(state.rollback_limit() + 1);
          state.rollback(back);
          life += str(" -", back);
          break;
        }
        case 1: state = load_copy(state), life += " load"; break;
        default: {
          const std::int64_t length = std::min(c.N - state.position(), 1 + random.below(25));
          append(c, inputs, {&state}, state.position(), length, 0, out);
          life += str(" +", length);
        }
      }
    }
    EXPECT_TRUE(out.same_bits(want)) << candidate << " " << c.name() << ":" << life << "\n" << worst_element(out, want);
  }
}

TEST(StreamingState, SaveAndLoad) {
  for (const std::string_view candidate : kCandidates) {
    for (const Case& c : kinds()) {
      const CaseInputs inputs(c);
      const Tensor want = one_pass(c, inputs, candidate);
      for (const std::int64_t cut : {0, 1, 8, 13, 63, 64}) {
        StreamingState state(config_of(c), inputs.mix, candidate);
        Tensor out(c.dtype, {c.B, c.N, c.H, c.E});
        append(c, inputs, {&state}, 0, cut, 0, out);
        StreamingState loaded = load_copy(state);
        EXPECT_EQ(loaded.position(), cut);
        EXPECT_EQ(loaded.candidate(), candidate);
        EXPECT_EQ(loaded.metadata(), state.metadata());
        EXPECT_EQ(loaded.bytes(), state.bytes());
        expect_goes_on(c, inputs, loaded, cut, want, "a loaded state");
      }
    }
  }
}

// A state saved where vectors are shorter: summaries are rearranged, their values stay.
TEST(StreamingState, LoadFromOtherLanes) {
  for (const std::int64_t lanes : {1, 4, 8, 16}) {
    for (const std::int64_t E : {3, 20, 33, 44, 70}) {
      Case c = small_case();
      c.E = E;
      const CaseInputs inputs(c);
      const Tensor want = one_pass(c, inputs, "simd");
      StreamingState state(config_of(c), inputs.mix, "simd");
      Tensor out(c.dtype, {c.B, c.N, c.H, c.E});
      append(c, inputs, {&state}, 0, 37, 0, out);

      std::vector<NamedView> views = state.views();
      std::map<std::string, std::string> metadata = state.metadata();
      const SummaryLayout from = state.impl().layout;
      SummaryLayout to = from;
      to.lanes = lanes;
      metadata["lanes"] = str(lanes);
      NamedView& summaries =
          *std::find_if(views.begin(), views.end(), [](const auto& v) { return v.name == "summaries"; });
      const std::int64_t rows = summaries.view.shape[0] * c.Hkv;
      std::vector<float> moved(static_cast<std::size_t>(rows * to.stride()), std::nanf(""));
      for (std::int64_t row = 0; row < rows; ++row) {
        const float* source = data_as<float>(summaries.view) + row * from.stride();
        float* target = moved.data() + row * to.stride();
        for (std::int64_t d = 0; d < c.D; ++d) {
          for (std::int64_t e = 0; e < c.E; ++e) target[to.index(d, e)] = source[from.index(d, e)];
          target[to.z_offset() + d] = source[from.z_offset() + d];
        }
      }
      summaries.view = ConstView(moved.data(), DType::kF32, {summaries.view.shape[0], c.Hkv, to.stride()});
      StreamingState loaded = StreamingState::load(views, metadata);
      expect_goes_on(c, inputs, loaded, 37, want, str("saved with ", lanes, " lanes"));
    }
  }
}

// A state that was saved on one instruction set goes on on another, with its rounding.
TEST(StreamingState, OtherInstructionSet) {
  const Case c = small_case();
  const CaseInputs inputs(c);
  const Tensor want = one_pass(c, inputs, "ref");
  const std::vector<std::string> targets = simd_targets();
  for (const std::string& from : targets) {
    use_simd_target(from);
    StreamingState state(config_of(c), inputs.mix, "simd");
    Tensor out(c.dtype, {c.B, c.N, c.H, c.E});
    append(c, inputs, {&state}, 0, 37, 0, out);
    const std::map<std::string, std::string> metadata = state.metadata();
    EXPECT_EQ(metadata.at("instruction_set"), from);
    for (const std::string& to : targets) {
      use_simd_target(to);
      StreamingState loaded = StreamingState::load(state.views(), metadata);
      append(c, inputs, {&loaded}, 37, c.N - 37, 0, out);
      EXPECT_LE(rms_error(out, want), 1e-6) << from << " to " << to;
      if (loaded.impl().layout.lanes == state.impl().layout.lanes) continue;
      try {
        append(c, inputs, {&state}, 37, 1, 0, out);
        ADD_FAILURE() << "a state of " << from << " ran on " << to;
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("save and load it"), std::string::npos) << error.what();
      }
    }
  }
  use_simd_target("");
}

// Every S[d][e] has a place of its own inside the summary.
TEST(SummaryLayout, PlacesAreDistinct) {
  for (const std::int64_t lanes : {0, 1, 4, 8, 16}) {
    for (std::int64_t E = 1; E <= 70; ++E) {
      const SummaryLayout layout{.D = 5, .E = E, .lanes = lanes, .normalized = true};
      std::vector<bool> taken(static_cast<std::size_t>(layout.size()), false);
      for (std::int64_t d = 0; d < layout.D; ++d) {
        for (std::int64_t e = 0; e < E; ++e) {
          const auto index = static_cast<std::size_t>(layout.index(d, e));
          ASSERT_LT(index, static_cast<std::size_t>(layout.z_offset())) << lanes << " " << E;
          ASSERT_FALSE(taken[index]) << lanes << " " << E;
          taken[index] = true;
        }
      }
      EXPECT_GE(layout.stride(), layout.size());
      EXPECT_EQ(layout.stride() / 16 % 2, 1);
    }
  }
}

// O(M D E) per head plus raw k and v of C + R tokens, whatever the position.
TEST(StreamingState, Memory) {
  Case c = small_case();
  c.normalizer = Normalizer::kNone, c.N = 640, c.layout = Layout::line(20), c.D = 64, c.E = 96;
  const CaseInputs inputs(c);
  StreamingConfig config = config_of(c);
  config.rollback = 12;
  StreamingState state(config, inputs.mix, "simd");
  const std::int64_t L = 32, DE = c.D * c.E, summary = 4 * c.Hkv * DE;
  // L - 1 summaries, two prefixes, the rings, mix
  const std::int64_t want = (L + 1) * summary + 4 * c.Hkv * (20 + 12) * (c.D + c.E) + 4 * L * L;
  EXPECT_GE(state.bytes(), want);
  EXPECT_LE(state.bytes(), want + want / 50);
  const std::int64_t before = state.bytes();
  Tensor out(c.dtype, {c.B, c.N, c.H, c.E});
  append(c, inputs, {&state}, 0, c.N, 0, out);
  EXPECT_EQ(state.bytes(), before);

  config.beyond_mix = BeyondMix::kExtend;  // L + 1 summaries and their sum, however long the stream
  EXPECT_LE(StreamingState(config, inputs.mix, "simd").bytes(), want + 3 * summary + want / 50);
}

TEST(StreamingState, Positions) {
  const Case c = small_case();
  const CaseInputs inputs(c);
  StreamingState state(config_of(c), inputs.mix);
  EXPECT_EQ(state.candidate(), "simd");
  EXPECT_EQ(state.capacity(), 64);
  EXPECT_EQ(state.position(), 0);
  EXPECT_EQ(state.rollback_limit(), 0);
  EXPECT_EQ(state.config().rollback, 8);
  EXPECT_EQ(state.config().scale, 1.0);
  Tensor out(c.dtype, {c.B, c.N, c.H, c.E});
  append(c, inputs, {&state}, 0, 3, 0, out);
  EXPECT_EQ(state.rollback_limit(), 3);
  append(c, inputs, {&state}, 3, 20, 0, out);
  EXPECT_EQ(state.position(), 23);
  EXPECT_EQ(state.rollback_limit(), 8);
  state.rollback(2);
  EXPECT_EQ(state.rollback_limit(), 6);
  Case endless = c;
  endless.extend = true;
  EXPECT_EQ(StreamingState(config_of(endless), inputs.mix).capacity(), INT64_MAX);
}

// What a decode step has to do besides its output is spread over the chunk.
TEST(StreamingState, WorkIsSpread) {
  for (const std::int64_t C : {1, 2, 3, 8, 64, 100}) {
    const std::int64_t size = 128 * 256;
    std::int64_t before = 0;
    for (std::int64_t tokens = 1; tokens < C; ++tokens) {
      const std::int64_t columns = mix_target(tokens, C, size);
      EXPECT_GE(columns, before);
      EXPECT_LE(columns, size);
      if (C == 64) {
        EXPECT_LE(columns - before, size / 16 + 128);
      }
      if (tokens % kMixStep != 2) {
        EXPECT_EQ(columns, before) << "tokens " << tokens << " of " << C;
      }
      EXPECT_LE(fold_target(tokens), tokens);
      EXPECT_LT(tokens - fold_target(tokens), kFoldStep);
      before = columns;
    }
    if (C > 2) {
      EXPECT_EQ(before, size) << C;
    }
  }
}

}  // namespace
}  // namespace mhla
