// Judges the reference of the causal form: the O(N^2) token view, and identities that hold whatever
// the code looks like; then what every candidate promises about tokens it must not see.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "mhla/testing/case_gen.h"
#include "mhla/testing/each_candidate.h"
#include "mhla/testing/token_view.h"

namespace mhla {
namespace {

constexpr Form kForm = Form::kCausal;
const bool kSeeded = fix_seed();

Case small(std::int64_t N, std::int64_t chunk) {
  Case c;
  c.form = kForm;
  c.dtype = DType::kF64;
  c.B = 2, c.N = N, c.H = 2, c.Hkv = 2, c.D = 5, c.E = 3, c.layout = Layout::line(chunk), c.eps = 0.1;
  return c;
}

void expect_same(const Tensor& got, const Tensor& want, double tolerance = 1e-12) {
  EXPECT_LE(max_error(got, want), tolerance) << worst_element(got, want);
}

TEST(ChunkwiseIdentity, TokenView) {
  for (const auto& cases : {option_combinations(kForm), forgotten_shapes(kForm)}) {
    for (Case c : cases) {
      c.dtype = DType::kF64, c.D = std::min<std::int64_t>(c.D, 17), c.E = std::min<std::int64_t>(c.E, 17);
      const CaseInputs inputs(c);
      const Tensor want = token_view(c, inputs.to(DType::kF64)), got = reference_case(c, inputs).out;
      EXPECT_LE(max_error(got, want), 1e-11) << worst_element(got, want) << "\n  MHLA_CASE='" << c.name() << "'";
    }
  }
}

RC_GTEST_PROP(ChunkwiseIdentity, TokenViewOfRandomShapes, ()) {
  Case c = *any_case(kForm);
  c.dtype = DType::kF64;
  const CaseInputs inputs(c);
  RC_ASSERT(max_error(reference_case(c, inputs).out, token_view(c, inputs)) <= 1e-11);
}

// With all coefficients 1 the chunk size is only a way to compute: causal linear attention for every C.
TEST(ChunkwiseIdentity, EqualMixIsCausalLinearAttentionForEveryC) {
  for (const Normalizer normalizer : {Normalizer::kNone, Normalizer::kPaper}) {
    Case whole = small(23, 23);
    whole.normalizer = normalizer;
    const CaseInputs one(whole);
    CaseInputs::set(one.mix, 0, 1);
    const Tensor want = reference_case(whole, one).out;
    for (const std::int64_t chunk : {1, 4, 22, 64}) {
      Case c = whole;
      c.layout = Layout::line(chunk);
      CaseInputs inputs = one.alias();
      const std::int64_t L = c.mix_rows();
      const Tensor ones = std::move(Tensor(DType::kF64, {L, L}).fill(1));
      inputs.mix = ones.view();
      expect_same(reference_case(c, inputs).out, want);
    }
  }
}

// `extend` with L rows is a larger matrix written out: row i >= L reuses the last row by distance.
TEST(ChunkwiseIdentity, ExtendIsALargerMatrix) {
  for (const Normalizer normalizer : {Normalizer::kNone, Normalizer::kPaper}) {
    for (const std::int64_t L : {1, 2, 3, 5}) {
      Case short_mix = small(41, 5), long_mix = short_mix;  // 9 chunks
      short_mix.rows = L, short_mix.extend = true, short_mix.normalizer = normalizer;
      long_mix.normalizer = normalizer;
      const CaseInputs inputs(short_mix);
      CaseInputs written = inputs.alias();
      Tensor large(DType::kF64, {9, 9});
      const auto source = [L](std::int64_t i, std::int64_t b) {
        return i < L ? i * L + b : (L - 1) * L + std::max<std::int64_t>(0, L - 1 - (i - b));
      };
      for (std::int64_t i = 0; i < 9; ++i) {
        for (std::int64_t b = 0; b <= i; ++b) large.set(i * 9 + b, CaseInputs::get(inputs.mix, source(i, b)));
      }
      written.mix = std::as_const(large).view();
      const CaseResult got = reference_case(short_mix, inputs), want = reference_case(long_mix, written);
      for (const auto member : {&CaseResult::out, &CaseResult::dq, &CaseResult::dk, &CaseResult::dv})
        expect_same(got.*member, want.*member);
      Tensor collected(DType::kF64, {L, L});  // what the reused entries receive
      collected.fill(0);
      for (std::int64_t i = 0; i < 9; ++i) {
        for (std::int64_t b = 0; b <= i; ++b)
          collected.set(source(i, b), collected.at(source(i, b)) + want.dmix.at(i * 9 + b));
      }
      expect_same(got.dmix, collected);
    }
  }
}

class ChunkwiseOrder : public CandidateTest {};
INSTANTIATE_TEST_SUITE_P(Candidates, ChunkwiseOrder, each_candidate(kForm), candidate_name);

// Sizes that every candidate takes: of small tiles, of those that warpgroups multiply, and of slices of columns, with a
// matrix of rows enough.
struct OrderSize {
  std::int64_t chunk, D, E, rows;
  std::vector<std::int64_t> lengths;
};
const OrderSize kOrderSizes[] = {{8, 16, 24, 0, {1, 5, 7, 8, 9, 16, 23}},
                                 {80, 64, 56, 70, {1, 63, 64, 65, 79, 80, 81, 150}},
                                 {150, 128, 256, 0, {64, 129, 150, 190}},
                                 {64, 128, 64, 32, {1, 63, 64, 65, 600}}};

// Tokens after a sequence change nothing before them, bit for bit, whatever they hold.
TEST_P(ChunkwiseOrder, RightPaddingChangesNothing) {
  for (const OrderSize& size : kOrderSizes) {
    for (const std::int64_t N : size.lengths) {
      for (const Normalizer normalizer : {Normalizer::kNone, Normalizer::kPaper}) {
        Case c = small(N + size.chunk + 5, size.chunk);
        c.normalizer = normalizer, c.B = 1, c.D = size.D, c.E = size.E;
        c.rows = std::max(size.rows, c.blocks());
        ASSERT_EQ(take(c), "");
        const CaseInputs padded(c);
        const CaseSlice valid = slice_case(c, padded, 0, 0, N);
        const Tensor want = run_case(valid.c, valid.inputs, options(), kOnlyOut).out;
        for (const ConstView* view : {&padded.q, &padded.k, &padded.v}) {
          const std::int64_t row = view->shape[2] * view->shape[3];
          for (std::int64_t index = N * row; index < view->numel(); ++index)
            CaseInputs::set(*view, index, std::numeric_limits<double>::quiet_NaN());
        }
        const Tensor got = run_case(c, padded, options(), kOnlyOut).out;
        ConstView head = got.view();
        head.shape[1] = N;
        EXPECT_TRUE(contiguous(head).same_bits(want)) << "N = " << N << ", chunk = " << size.chunk;
      }
    }
  }
}

// A token never sees a later one: with the future changed, the past keeps its bits.
TEST_P(ChunkwiseOrder, TheFutureIsNotSeen) {
  for (const OrderSize& size : kOrderSizes) {
    Case c = small(3 * size.chunk + 5, size.chunk);
    c.B = 1, c.D = size.D, c.E = size.E, c.rows = std::max(size.rows, c.blocks());
    ASSERT_EQ(take(c), "");
    for (std::int64_t t = 0; t < c.N; t += std::max<std::int64_t>(c.N / 10, 3)) {
      const CaseInputs inputs(c), changed(c);
      for (const ConstView* view : {&changed.q, &changed.k, &changed.v}) {
        const std::int64_t row = view->shape[2] * view->shape[3];
        for (std::int64_t index = (t + 1) * row; index < view->numel(); ++index) CaseInputs::set(*view, index, 3.0);
      }
      const Tensor before = run_case(c, inputs, options(), kOnlyOut).out;
      const Tensor after = run_case(c, changed, options(), kOnlyOut).out;
      ConstView a = before.view(), b = after.view();
      a.shape[1] = b.shape[1] = t + 1;
      EXPECT_TRUE(contiguous(a).same_bits(contiguous(b))) << "t = " << t << ", chunk = " << size.chunk;
    }
  }
}

}  // namespace
}  // namespace mhla
