// Recorded steps and kernels that start early, on a CUDA device: the bits of one chunkwise pass, whatever was told to
// the table and whoever ran in front. Skipped, saying so, where there is no device; emulator_test runs the same on the
// CPU.
#include <gtest/gtest.h>

#include <tuple>
#include <utility>

#include "mhla/core/cuda.h"
#include "mhla/core/error.h"
#include "mhla/kernels/streaming/streaming_device_fixture.h"
#include "mhla/kernels/streaming/streaming_record.h"

namespace mhla {
namespace {

constexpr std::string_view kCuda = "cuda";

class StreamingRecordCuda : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (const std::string why = cuda_missing(); !why.empty()) GTEST_SKIP() << "cuda: " << why;
  }
};

Tensor wanted(const Case& c, const CaseInputs& inputs) {
  RunOptions run;
  run.candidate = kCuda;
  return run_case(c, inputs, run, kOnlyOut).out;
}

Case some_case(DType dtype) {
  Case c;
  c.form = Form::kCausal, c.dtype = dtype, c.B = 3, c.N = 60, c.layout = Layout::line(8), c.H = 4, c.Hkv = 2;
  c.D = 24, c.E = 72, c.normalizer = Normalizer::kPaper, c.den = true, c.eps = 0.1;
  return c;
}

// One step after the other from a record: told, launched, moved.
class Recorder {
 public:
  explicit Recorder(const std::vector<StreamingState*>& states)
      : states_(states),
        record_(states),
        sequences_(static_cast<std::size_t>(record_.sequences_bytes())),
        closers_(static_cast<std::size_t>(record_.closers_bytes())),
        device_sequences_(record_.sequences_bytes(), 0),
        device_closers_(record_.closers_bytes(), 0) {}

  bool step(const StreamingParams& params) {
    if (!record_.fits(states_)) return false;
    const bool closing = record_.tell(states_, {sequences_, closers_});
    device_copy(device_sequences_.data(), sequences_.data(), record_.sequences_bytes(), 0);
    if (closing) device_copy(device_closers_.data(), closers_.data(), record_.closers_bytes(), 0);
    record_.launch(params, {device_sequences_.bytes(), device_closers_.bytes()}, closing, {});
    StreamingRecord::moved(states_, nullptr);
    closed_ += closing;
    return true;
  }
  [[nodiscard]] int closed() const { return closed_; }

 private:
  std::vector<StreamingState*> states_;
  StreamingRecord record_;
  std::vector<std::byte> sequences_, closers_;
  DeviceBuffer device_sequences_, device_closers_;
  int closed_ = 0;
};

StreamingParams token(const Placed& placed, const std::vector<StreamingState*>& states, std::int64_t t) {
  const auto B = static_cast<std::int64_t>(states.size());
  StreamingParams params;
  params.states = states;
  const CaseInputs& in = placed.inputs();
  params.q = tokens_of(in.q, t, 1, 0, B), params.k = tokens_of(in.k, t, 1, 0, B);
  params.v = tokens_of(in.v, t, 1, 0, B), params.out = tokens_of(placed.out(), t, 1, 0, B);
  params.maybe_q_den = tokens_of(in.maybe_q_den, t, 1, 0, B);
  params.maybe_k_den = tokens_of(in.maybe_k_den, t, 1, 0, B);
  return params;
}

TEST_P(StreamingRecordCuda, StepsHaveTheBitsOfOnePass) {
  for (const bool extend : {false, true}) {
    Case c = some_case(GetParam());
    c.extend = extend;
    if (extend) c.rows = 3;
    const CaseInputs inputs(c);
    const Tensor want = wanted(c, inputs);
    Placed placed(c, inputs, kCuda);
    std::vector<StreamingState> states = states_of(c, inputs, kCuda, c.B);
    const std::vector<StreamingState*> all = pointers(states);
    placed.append(all, 0, 5);
    Recorder recorder(all);
    bool back = false;
    for (std::int64_t t = 5; t < c.N; ++t) {
      if (t == 30 && !std::exchange(back, true)) {  // into the chunk before: the next step cannot be told
        for (StreamingState& state : states) state.rollback(8);
        t = 22;
        EXPECT_FALSE(recorder.step(token(placed, all, t)));
        placed.append(all, t, 1);
        continue;
      }
      if (t == 27) states[1] = StreamingState(states[1]);  // other memory from here on
      ASSERT_TRUE(recorder.step(token(placed, all, t))) << t;
    }
    EXPECT_EQ(states[2].position(), c.N);
    EXPECT_GE(recorder.closed(), 5);
    const Tensor& got = placed.finish();
    EXPECT_TRUE(got.same_bits(want)) << c.name() << ": " << worst_element(got, want);
  }
}

TEST_P(StreamingRecordCuda, StatesStandAnywhere) {
  Case c = some_case(GetParam());
  c.normalizer = Normalizer::kNone, c.den = false, c.B = 1;
  const CaseInputs inputs(c);
  const Tensor want = wanted(c, inputs);
  std::vector<StreamingState> states = states_of(c, inputs, kCuda, 3);
  const std::vector<StreamingState*> all = pointers(states);
  const std::int64_t lengths[] = {3, 8, 14};
  Placed prompt(c, inputs, kCuda);
  for (std::size_t b = 0; b < 3; ++b) prompt.append({all[b]}, 0, lengths[b]);
  Recorder recorder(all);
  Case step = c;
  step.B = 3, step.N = 1;
  for (std::int64_t t = 0; t < 20; ++t) {
    const CaseInputs tokens(step);
    const auto gather = [&](const ConstView& from, const ConstView& to) {
      const std::int64_t bytes = from.shape[2] * from.shape[3] * size_of(from.dtype);
      for (std::int64_t b = 0; b < 3; ++b)
        std::copy_n(static_cast<const std::byte*>(tokens_of(from, lengths[b] + t, 1, 0, 1).data), bytes,
                    static_cast<std::byte*>(const_cast<void*>(to.data)) + b * bytes);
    };
    gather(inputs.q, tokens.q), gather(inputs.k, tokens.k), gather(inputs.v, tokens.v);
    Placed one(step, tokens, kCuda);
    ASSERT_TRUE(recorder.step(token(one, all, 0)));
    const Tensor& got = one.finish();
    const std::int64_t row = c.H * c.E;
    for (std::int64_t i = 0; i < got.numel(); ++i)
      ASSERT_EQ(got.at(i), want.at((lengths[i / row] + t) * row + i % row)) << "step " << t << " element " << i;
  }
}

// Head sizes of a model, without normaliser, more tokens in a chunk than are taken at a time: few sequences and many,
// query heads that share a prefix and a mix for each of them; recorded and by calls.
TEST_P(StreamingRecordCuda, HeadsOfAModel) {
  if (device_facts(0).name == "emulator") GTEST_SKIP() << "the emulator takes too long for heads of this size";
  constexpr FeatureMap kNoMap = FeatureMap::kIdentity;
  for (const auto& [B, Hkv, per_head, map] : {std::tuple{3, 4, false, kNoMap},
                                              {40, 4, false, kNoMap},
                                              {3, 2, false, kNoMap},
                                              {3, 2, true, kNoMap},
                                              {40, 4, false, FeatureMap::kReluEps},
                                              {3, 2, false, FeatureMap::kRelu}}) {
    Case c = some_case(GetParam());
    c.B = B, c.N = 100, c.layout = Layout::line(72), c.Hkv = Hkv, c.per_head = per_head, c.D = 128, c.E = 256;
    c.normalizer = Normalizer::kNone, c.den = false, c.feature_map = map;
    const CaseInputs inputs(c);
    const Tensor want = wanted(c, inputs);
    for (const bool recorded : {true, false}) {
      Placed placed(c, inputs, kCuda);
      std::vector<StreamingState> states = states_of(c, inputs, kCuda, c.B);
      const std::vector<StreamingState*> all = pointers(states);
      placed.append(all, 0, 1);
      Recorder recorder(all);
      for (std::int64_t t = 1; t < c.N; ++t) {
        if (recorded)
          ASSERT_TRUE(recorder.step(token(placed, all, t))) << t;
        else
          placed.append(all, t, 1);
      }
      const Tensor& got = placed.finish();
      EXPECT_TRUE(got.same_bits(want)) << c.name() << (recorded ? ", recorded: " : ": ") << worst_element(got, want);
    }
  }
}

// Layers in turns, as a model calls them: with two, a kernel may start before the one in front has ended; with one it
// reads what that one writes.
TEST_P(StreamingRecordCuda, LayersInTurns) {
  for (const std::size_t layers : {1, 2, 3}) {
    Case c = some_case(GetParam());
    c.D = 128, c.E = 256, c.N = 40, c.normalizer = Normalizer::kNone, c.den = false;
    if (device_facts(0).name == "emulator") c.D = 16, c.E = 24;
    std::vector<std::unique_ptr<CaseInputs>> inputs;
    std::vector<std::unique_ptr<Placed>> placed;
    std::vector<std::vector<StreamingState>> states;
    for (std::size_t layer = 0; layer < layers; ++layer) {
      c.seed = layer + 1;
      inputs.push_back(std::make_unique<CaseInputs>(c));
      placed.push_back(std::make_unique<Placed>(c, *inputs.back(), kCuda));
      states.push_back(states_of(c, *inputs.back(), kCuda, c.B));
    }
    for (std::int64_t t = 0; t < c.N; ++t)
      for (std::size_t layer = 0; layer < layers; ++layer) placed[layer]->append(pointers(states[layer]), t, 1);
    for (std::size_t layer = 0; layer < layers; ++layer) {
      c.seed = layer + 1;
      const Tensor& got = placed[layer]->finish();
      const Tensor want = wanted(c, *inputs[layer]);
      EXPECT_TRUE(got.same_bits(want)) << layers << " layers: " << worst_element(got, want);
    }
  }
}

TEST_P(StreamingRecordCuda, RefusesOtherStates) {
  const Case c = some_case(GetParam());
  const CaseInputs inputs(c);
  std::vector<StreamingState> states = states_of(c, inputs, kCuda, c.B);
  const std::vector<StreamingState*> all = pointers(states);
  const StreamingRecord record(all);
  EXPECT_FALSE(record.fits(all)) << "their prefixes are still to be mixed";
  Placed placed(c, inputs, kCuda);
  placed.append(all, 0, 1);
  EXPECT_TRUE(record.fits(all));
  EXPECT_FALSE(record.fits({all.data(), 2}));
  Case other = c;
  other.E = 80;
  const CaseInputs other_inputs(other);
  std::vector<StreamingState> wider = states_of(other, other_inputs, kCuda, c.B);
  EXPECT_FALSE(record.fits(pointers(wider)));
}

INSTANTIATE_TEST_SUITE_P(Dtypes, StreamingRecordCuda, testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

}  // namespace
}  // namespace mhla
