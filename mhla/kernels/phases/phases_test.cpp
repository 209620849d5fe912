// The phases of P processes against one call of the operator: the same bits for out, dq, dk, dv and the sum of dmix,
// for every layout, ragged or not; the reference against the reference of the forms in f64; what is refused.
#include <gtest/gtest.h>

#include "mhla/core/error.h"
#include "mhla/core/threads.h"
#include "mhla/kernels/bidirectional/bidirectional_plan.h"
#include "mhla/kernels/phases/phases_fixture.h"
#include "mhla/testing/accuracy.h"
#include "mhla/testing/messages.h"
#include "mhla/testing/plain.h"

namespace mhla {
namespace {

// The lists of the forms without what has no phases, and layouts that P processes cut in odd places.
std::vector<Case> phase_cases(Form form) {
  std::vector<Case> all = forgotten_shapes(form);
  for (const Case& c : option_combinations(form)) all.push_back(c);
  Case c;
  c.form = form;
  if (form == Form::kCausal) c.normalizer = Normalizer::kNone;
  c.B = 2, c.H = 4, c.Hkv = 2, c.D = 24, c.E = 40;
  c.N = 1000, c.layout = Layout::line(96), all.push_back(c);  // 11 blocks, the last of 40 tokens
  c.per_head = true, all.push_back(c);
  c.normalizer = Normalizer::kPaper, all.push_back(c);
  c.per_head = false, all.push_back(c);
  c.den = true, all.push_back(c);
  c.N = 1153, c.Hkv = 4, c.layout = Layout::line(128), all.push_back(c);  // the last block has one token
  if (form == Form::kBidirectional) {
    c.den = false;
    c.N = 23 * 19, c.layout = Layout::grid2d(23, 19, 4, 5), all.push_back(c);  // ragged both ways
    c.Hkv = 2, c.per_head = true, all.push_back(c);
    c.N = 7 * 9 * 11, c.layout = Layout::grid3d({7, 9, 11}, {3, 2, 3}), all.push_back(c);
    c.per_head = false, c.normalizer = Normalizer::kNone, all.push_back(c);
  }
  std::vector<Case> kept;
  for (const Case& one : all) {
    const bool packed = !one.cu_seqlens.empty(), official = one.normalizer == Normalizer::kOfficial;
    if (!packed && !official && !one.extend && one.N > 0 && one.B > 0) kept.push_back(one);
  }
  return kept;
}

std::string difference(const CaseResult& got, const CaseResult& want, bool with_out) {
  std::string wrong;
  for (const ResultField& field : kResultFields) {
    const Tensor &a = got.*field.tensor, &b = want.*field.tensor;
    if (!b.given() || (!with_out && !field.gradient)) continue;
    if (!a.same_bits(b)) wrong += str(" ", field.name, " (", worst_element(a, b), ")");
  }
  return wrong;
}

// Short sequences go another way in one call, without summaries: there P processes have the bits of one that goes
// phase by phase.
bool by_summaries(const Case& c) {
  if (c.form == Form::kCausal) return true;
  return bidirectional_way(c.N, c.blocks(), c.D, c.E, c.normalizer) == BidirectionalWay::kSummaries;
}

class Phases : public testing::TestWithParam<Form> {};

TEST_P(Phases, HaveTheBitsOfOneCall) {
  int cuts = 0, whole = 0;
  for (Case c : phase_cases(GetParam())) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      if (dtype == DType::kBF16 && c.N > 600) continue;
      c.dtype = dtype;
      const CaseInputs in(c);
      const CaseResult one = run_in_parts(c, in, 1), call = run_case(c, in, {.candidate = "simd"});
      EXPECT_EQ(difference(one, call, by_summaries(c)), "") << "P = 1 " << c.name();
      whole += by_summaries(c);
      for (const std::int64_t P : {2, 3, 4, 8}) {
        if (P > c.blocks()) continue;
        ++cuts;
        EXPECT_EQ(difference(run_in_parts(c, in, P), one, true), "") << "P = " << P << " " << c.name();
      }
    }
  }
  EXPECT_GT(cuts, 100);
  EXPECT_GT(whole, 30);
}

TEST_P(Phases, AreAsAccurateAsOneCall) {
  for (Case c : phase_cases(GetParam())) {
    if (c.N < 100) continue;  // the error of a handful of elements is luck
    const CaseInputs in(c);
    const CaseResult want = reference_case(c, in), plain = plain_case(c, in);
    const CaseResult got = run_in_parts(c, in, std::min<std::int64_t>(3, c.blocks()));
    for (const ResultField& field : kResultFields) {
      if (!(want.*field.tensor).given()) continue;
      const Accuracy a = measure_accuracy(got.*field.tensor, plain.*field.tensor, want.*field.tensor, field.gradient);
      EXPECT_TRUE(a.holds()) << field.name << " rms " << a.rms << " bound " << a.rms_bound << " " << c.name();
    }
  }
}

// Two implementations in f64 from the formulas: they agree up to the order of their sums.
TEST_P(Phases, AgreeWithTheReferenceOfTheForm) {
  for (Case c : phase_cases(GetParam())) {
    if (c.N > 500) continue;
    c.dtype = DType::kF64;
    const CaseInputs in(c);
    const CaseResult want = run_case(c, in);
    const CaseResult got = run_in_parts(c, in, std::min<std::int64_t>(4, c.blocks()));
    for (const ResultField& field : kResultFields) {
      if (!(want.*field.tensor).given()) continue;
      EXPECT_LE(rms_error(got.*field.tensor, want.*field.tensor), 1e-12) << field.name << " " << c.name();
    }
  }
}

TEST_P(Phases, DoNotDependOnThreads) {
  Case c = phase_cases(GetParam()).back();
  const CaseInputs in(c);
  const CaseResult want = run_in_parts(c, in, 2);
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    EXPECT_EQ(difference(run_in_parts(c, in, 2, {.maybe_executor = &pool}), want, true), "") << threads;
  }
}

// On a card: as accurate as one call, and mostly with its bits, which no test promises.
TEST_P(Phases, RunOnACard) {
  const RunOptions cuda{.candidate = "cuda"};
  if (const std::string missing = missing_here("cuda"); !missing.empty()) GTEST_SKIP() << missing;
  int runs = 0, same = 0;
  for (Case c : phase_cases(GetParam())) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      c.dtype = dtype;
      const CaseInputs in(c);
      const CaseResult want = reference_case(c, in), plain = plain_case(c, in), one = run_case(c, in, cuda);
      const std::int64_t slices = c.layout.rank == 1 ? c.blocks() : c.layout.blocks[3 - c.layout.rank];
      for (const std::int64_t P : {1, 2, 3, 8}) {
        if (P > slices) continue;
        const CaseResult got = run_in_parts(c, in, P, cuda);
        ++runs, same += difference(got, one, true).empty();
        for (const ResultField& field : kResultFields) {
          if (!(want.*field.tensor).given() || c.N < 100) continue;
          const Accuracy a =
              measure_accuracy(got.*field.tensor, plain.*field.tensor, want.*field.tensor, field.gradient);
          EXPECT_TRUE(a.holds()) << field.name << " rms " << a.rms << " bound " << a.rms_bound << " P = " << P << " "
                                 << c.name();
        }
      }
    }
  }
  std::printf("%d of %d runs have all bits of one call\n", same, runs);
  EXPECT_GT(runs, 100);
}

// (1 - 1/P) B M Hkv (D E + D) values arrive at a process in each exchange: all rows but its own.
TEST_P(Phases, SendWhatTheFormulaSays) {
  Case c;
  c.form = GetParam(), c.B = 2, c.N = 128, c.H = 4, c.Hkv = 2, c.D = 8, c.E = 12, c.layout = Layout::line(16);
  PhaseTraffic traffic;
  run_in_parts(c, CaseInputs(c), 4, {}, &traffic);
  const std::int64_t formula = c.B * 8 * c.Hkv * (c.D * c.E + c.D);
  EXPECT_EQ(traffic.rows, formula);
  EXPECT_EQ(traffic.gradients, formula);
}

INSTANTIATE_TEST_SUITE_P(Forms, Phases, testing::Values(Form::kBidirectional, Form::kCausal),
                         [](const auto& form) { return form.param == Form::kCausal ? "causal" : "bidirectional"; });

TEST(BlocksOfRank, CoverAllBlocksInOrder) {
  const auto cut = [](const Layout& layout, std::int64_t N, std::int64_t P) {
    std::vector<std::int64_t> sizes;
    std::int64_t next = 0;
    for (std::int64_t r = 0; r < P; ++r) {
      const BlockRange range = blocks_of_rank(layout, N, P, r);
      EXPECT_EQ(range.first, next);
      next += range.blocks;
      sizes.push_back(range.blocks);
    }
    EXPECT_EQ(next, BlockMap(layout, N).blocks());
    return sizes;
  };
  EXPECT_EQ(cut(Layout::line(10), 101, 4), (std::vector<std::int64_t>{2, 3, 3, 3}));
  EXPECT_EQ(cut(Layout::grid2d(16, 16, 4, 4), 256, 3), (std::vector<std::int64_t>{4, 4, 8}));  // whole rows
  EXPECT_EQ(cut(Layout::grid2d(16, 16, 4, 4), 256, 8), std::vector<std::int64_t>(8, 2));
  EXPECT_THROW(blocks_of_rank(Layout::line(10), 101, 12, 0), Error);
}

TEST(TokensOfBlocks, AreConsecutiveForWholeSlices) {
  const BlockMap map(Layout::grid2d(5, 6, 3, 2), 30);  // 2 x 3 tokens a block, the last row of blocks has one row
  EXPECT_EQ(tokens_of_blocks(map, 4, 2), (std::vector<std::int64_t>{24, 25, 26, 27, 28, 29}));
  EXPECT_EQ(tokens_of_blocks(map, 1, 2), (std::vector<std::int64_t>{3, 4, 5, 9, 10, 11, 12, 13, 14, 18, 19, 20}));
}

TEST(PhaseErrors, NameWhatIsWrong) {
  Case c;
  c.N = 64, c.layout = Layout::line(16);
  const CaseInputs in(c);
  const auto message = [&](auto change) {
    PhaseRank r = phase_rank(c, in, {1, 2});
    change(r.params);
    Tensor rows(DType::kF32, {2, 1, 1, 72});
    return message_of([&] { phase_summaries(r.params, rows.view()); });
  };
  EXPECT_EQ(message([](PhaseParams&) {}), "nothing was thrown");
  EXPECT_EQ(
      message([](PhaseParams& p) { p.normalizer = Normalizer::kOfficial; }),
      "phase_summaries: normalizer is official, whose denominators read queries of every block; expected paper or "
      "none");
  EXPECT_EQ(message([](PhaseParams& p) { p.local_blocks = 4; }),
            "phase_summaries: blocks 1 to 5 are asked for, expected blocks of 0 to 4");
  EXPECT_EQ(message([](PhaseParams& p) { p.local_blocks = 1; }),
            "phase_summaries: q has 32 tokens, expected 16, those of blocks 1 to 2 of 4");
  EXPECT_EQ(message([](PhaseParams& p) { p.normalizer = Normalizer::kNone; }),
            "phase_summaries: summaries has shape [2, 1, 1, 72], expected [2, 1, 1, 64]");
}

}  // namespace
}  // namespace mhla
