// The kernels of `sm80` and `sm90` in the emulator, against the reference: one case or two for every way they have
// through a problem, small ones. What the hardware leaves open (order of threads, when copies arrive and products read)
// is turned both ways: not a bit may change.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "mhla/testing/accuracy.h"
#include "mhla/testing/messages.h"
#include "tests/gpu/emulator/modes.h"
#include "tests/gpu/emulator/previous.h"

namespace mhla {
namespace {

struct Way {
  const char *name, *text;
  enum { kNotNan, kNan, kNanOnHopper } nan = kNotNan;  // also with NaN in one sequence; where only sm90 is special
};

// bf16, with the default map and normaliser unless given.
constexpr Way kWays[] = {
    {"pairs of tokens, short kernels of heads of 64", "bidirectional B=1 N=180 H=2 Hkv=1 D=64 E=64 layout=2d:12x15/2x3",
     Way::kNan},
    {"pairs, whole tiles", "bidirectional B=1 N=192 H=2 Hkv=2 D=64 E=64 layout=2d:12x16/3x4 per_head"},
    {"pairs in boxes", "bidirectional B=1 N=256 H=3 Hkv=3 D=64 E=64 layout=2d:16x16/4x4 per_head"},
    {"pairs in boxes, 13 tiles", "bidirectional B=3 N=208 H=2 Hkv=1 D=48 E=40 layout=1d:16 map=elu1",
     Way::kNanOnHopper},
    {"pairs, heads of 32", "bidirectional B=1 N=100 H=1 Hkv=1 D=32 E=24 layout=1d:30"},
    {"one fused kernel", "bidirectional B=3 N=220 H=2 Hkv=1 D=40 E=40 layout=1d:20", Way::kNan},
    {"boxes of 8 x 2 tokens, heads share", "bidirectional B=1 N=384 H=2 Hkv=1 D=72 E=72 layout=2d:16x24/2x3",
     Way::kNanOnHopper},
    {"boxes of a line, ragged heads", "bidirectional B=2 N=512 H=2 Hkv=2 D=32 E=24 layout=1d:64 map=elu1 per_head"},
    {"boxes, more blocks than a tile", "bidirectional B=1 N=384 H=2 Hkv=2 D=32 E=24 layout=2d:16x24/4x6 norm=none"},
    {"panels of 64", "bidirectional B=2 N=640 H=1 Hkv=1 D=64 E=64 layout=1d:200", Way::kNan},
    {"panels of 128", "bidirectional B=1 N=540 H=2 Hkv=1 D=128 E=120 layout=2d:18x30/2x2 map=elu1"},
    {"panels of 128, own denominators", "bidirectional B=1 N=210 H=1 Hkv=1 D=128 E=128 layout=1d:150 den"},
    {"panels, own denominators, padded rows", "bidirectional B=1 N=300 H=1 Hkv=1 D=60 E=53 layout=1d:100 den"},
    {"summaries mixed on panels", "bidirectional B=1 N=560 H=1 Hkv=1 D=64 E=64 layout=1d:7 map=relu"},
    {"summaries of more blocks", "bidirectional B=1 N=540 H=1 Hkv=1 D=64 E=40 layout=1d:4"},
    {"mixed on panels, a mix for each head", "bidirectional B=2 N=560 H=2 Hkv=2 D=40 E=40 layout=1d:8 per_head"},
    {"small blocks, many heads share, summaries kept",
     "bidirectional B=1 N=560 H=5 Hkv=1 D=40 E=40 layout=1d:8 map=elu1"},
    {"causal panels of 64", "causal B=1 N=300 H=2 Hkv=1 D=64 E=64 layout=1d:128", Way::kNan},
    {"causal panels of 128", "causal B=1 N=200 H=1 Hkv=1 D=128 E=128 layout=1d:128 map=identity norm=none"},
    {"causal panels, ragged heads", "causal B=2 N=170 H=1 Hkv=1 D=48 E=100 layout=1d:96 map=elu1"},
    {"causal slices", "causal B=1 N=700 H=1 Hkv=1 D=128 E=64 layout=1d:64 norm=none map=identity"},
    {"causal slices, heads share", "causal B=2 N=150 H=2 Hkv=1 D=128 E=96 layout=1d:64 norm=none map=relu", Way::kNan},
    {"causal phases", "causal B=1 N=200 H=2 Hkv=2 D=40 E=72 layout=1d:64 per_head"},
    {"causal, beyond the rows of mix", "causal B=1 N=300 H=1 Hkv=1 D=64 E=64 layout=1d:66 rows=3 extend"},
    {"causal, packed", "causal B=1 N=260 H=1 Hkv=1 D=64 E=64 layout=1d:70 cu=0,60,60,260"},
    {"causal, mixed both ways at once", "causal B=2 N=200 H=2 Hkv=2 D=128 E=256 layout=1d:64 norm=none map=identity",
     Way::kNanOnHopper},
    {"causal, both at once, heads share", "causal B=2 N=230 H=4 Hkv=2 D=96 E=160 layout=1d:64 norm=none map=relu_eps"},
    {"causal, both at once, a mix for each head",
     "causal B=2 N=230 H=2 Hkv=2 D=128 E=128 layout=1d:64 norm=none map=elu1 per_head"},
    {"causal, both at once in squares",
     "causal B=1 N=330 H=1 Hkv=1 D=64 E=64 layout=1d:64 rows=70 norm=none map=identity"},
    {"causal, dmix in squares", "causal B=1 N=1040 H=1 Hkv=1 D=40 E=40 layout=1d:8"},
    {"causal, wide, a normaliser", "causal B=1 N=260 H=2 Hkv=1 D=128 E=200 layout=1d:192", Way::kNanOnHopper},
    {"causal, packed, wide",
     "causal B=1 N=460 H=1 Hkv=1 D=128 E=256 layout=1d:70 cu=0,90,90,260,460 norm=none map=identity"},
    {"causal, long chunks, heads share", "causal B=1 N=300 H=2 Hkv=1 D=128 E=160 layout=1d:130 norm=none map=relu_eps",
     Way::kNanOnHopper},
    {"causal, long chunks, many rows", "causal B=1 N=250 H=1 Hkv=1 D=96 E=128 layout=1d:200 rows=140 norm=none"},
};

Case case_of(const Way& way) {
  Case c = parse_case(way.text);
  c.dtype = DType::kBF16;
  return c;
}

class TensorCores : public testing::TestWithParam<std::string_view> {};

TEST_P(TensorCores, Accuracy) {
  for (const Way& way : kWays) {
    ASSERT_EQ(steps_aside(case_of(way), GetParam(), true), "") << way.name;
    EXPECT_EQ(check_accuracy(case_of(way), GetParam()), "") << way.name;
  }
  std::printf("%s", accuracy_summary().c_str());
}

TEST_P(TensorCores, SameBitsInEveryOrderAndWithKeptSummaries) {
  RunOptions run;
  run.candidate = GetParam();
  int keep = 0;
  for (const Way& way : kWays) {
    const Case c = case_of(way);
    const CaseInputs inputs(c);
    const CaseResult want = run_case(c, inputs, run);
    const emulator::Modes restored;
    for (const emulator::Order order : {emulator::Order::kBackward, emulator::Order::kShuffled}) {
      emulator::order = order, emulator::multiprocessors = order == emulator::Order::kBackward ? 1 : 3;
      emulator::late_copies = emulator::late_sums = order == emulator::Order::kShuffled;
      std::int64_t kept = 0;
      const CaseResult got =
          run_case(c, inputs, run, kAllResults, order == emulator::Order::kShuffled ? &kept : nullptr);
      keep += kept > 0 ? 1 : 0;
      for (const ResultField& field : kResultFields) {
        const Tensor &one = want.*field.tensor, &other = got.*field.tensor;
        if (!one.given()) continue;
        EXPECT_TRUE(one.same_bits(other)) << way.name << ", " << field.name << ": " << worst_element(other, one);
      }
    }
  }
  EXPECT_EQ(keep, GetParam() == "sm80" ? 15 : 13);  // blocks are large enough; `sm90` takes two of these over slices
}

// Host memory as that of a device.
template <class V>
V placed(V view) {
  view.device = 0;
  return view;
}
ChunkwiseParams placed_params(const Case& c, const CaseInputs& in) {
  ChunkwiseParams params = chunkwise_params(c, in);
  for (ConstView* view : {&params.q, &params.k, &params.v, &params.mix}) *view = placed(*view);
  return params;
}
Tensor tensor_like(const ConstView& view) { return {view.dtype, {view.shape.begin(), view.shape.begin() + view.rank}}; }
Case causal_case(const char* text) {
  Case c = parse_case(text);
  c.dtype = DType::kBF16;
  return c;
}

// The first launch of a backward pass may begin before the kernel that makes its inputs has ended: it reads k and v, or
// q and dout where forward kept summaries.
TEST(TensorCoresOfHopper, BackwardWaitsForWhatItReadsFirst) {
  const emulator::Modes restored;
  emulator::late_copies = false;
  const auto bytes_of = [](const ConstView& view) {
    return std::span(static_cast<std::byte*>(const_cast<void*>(view.data)),
                     static_cast<std::size_t>(view.numel() * size_of(view.dtype)));
  };
  for (const char* text : {"causal B=1 N=200 H=1 Hkv=1 D=128 E=128 layout=1d:128 map=identity norm=none",
                           "causal B=1 N=330 H=1 Hkv=1 D=128 E=128 layout=1d:128 cu=0,130,330 map=relu norm=none"}) {
    const Case c = causal_case(text);
    const CaseInputs in(c);
    const ChunkwiseParams params = placed_params(c, in);
    Tensor out = tensor_like(in.dout);
    for (const bool keep : {false, true}) {
      RunOptions run;
      run.candidate = "sm90";
      const AlignedBuffer kept(keep ? chunkwise_kept(params, placed(out.view()), run) : 0);
      EXPECT_EQ(kept.bytes().empty(), !keep);
      run.kept = kept.bytes();
      chunkwise_forward(params, placed(out.view()), run);
      const auto gradients = [&](const std::vector<std::span<std::byte>>& of_previous) {
        std::vector<Tensor> to;
        for (const ConstView& view : {in.q, in.k, in.v, in.mix}) to.push_back(tensor_like(view));
        ChunkwiseGrads grads;
        grads.dout = placed(in.dout);
        grads.dq = placed(to[0].view()), grads.dk = placed(to[1].view());
        grads.dv = placed(to[2].view()), grads.dmix = placed(to[3].view());
        const emulator::PreviousKernel previous(of_previous);
        chunkwise_backward(params, grads, run);
        return to;
      };
      const std::vector<Tensor> want = gradients({});
      const std::vector<Tensor> got =
          keep ? gradients({bytes_of(in.q), bytes_of(in.dout)}) : gradients({bytes_of(in.k), bytes_of(in.v)});
      for (std::size_t i = 0; i < want.size(); ++i)
        EXPECT_TRUE(got[i].same_bits(want[i])) << text << ", " << (keep ? "kept, " : "") << i;
    }
  }
}

// Forward over slices keeps nothing, and backward would take what is there for summaries.
TEST(TensorCoresOfHopper, KeptMemoryIsAsLargeAsForwardSays) {
  const AlignedBuffer memory(1 << 20);
  RunOptions run;
  run.candidate = "sm90", run.kept = memory.bytes();
  for (const char* text : {"causal B=1 N=200 H=1 Hkv=1 D=128 E=128 layout=1d:128 map=identity norm=none",
                           "causal B=1 N=130 H=1 Hkv=1 D=128 E=64 layout=1d:64 norm=none map=identity"}) {
    const Case c = causal_case(text);
    const CaseInputs in(c);
    const ChunkwiseParams params = placed_params(c, in);
    Tensor out = tensor_like(in.dout);
    const std::int64_t wanted = chunkwise_kept(params, placed(out.view()), {.candidate = "sm90"});
    EXPECT_EQ(wanted == 0, c.E == 64) << text;
    EXPECT_EQ(message_of([&] { chunkwise_forward(params, placed(out.view()), run); }),
              str("chunkwise_forward: kept has ", 1 << 20, " bytes, expected ", wanted));
  }
}

TEST_P(TensorCores, NanStaysInItsSequence) {
  for (const Way& way : kWays) {
    const bool wanted = way.nan == Way::kNan || (way.nan == Way::kNanOnHopper && GetParam() == "sm90");
    if (wanted) EXPECT_EQ(check_nan_stays(case_of(way), GetParam()), "") << way.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Candidates, TensorCores, testing::Values("sm80", "sm90"),
                         [](const auto& candidate) { return std::string(candidate.param); });

}  // namespace
}  // namespace mhla
