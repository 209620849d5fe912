// Judges the reference of the bidirectional form: the O(N^2) token view, and identities that hold
// whatever the code looks like. Everything in f64.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "mhla/testing/case_gen.h"
#include "mhla/testing/run_case.h"
#include "mhla/testing/token_view.h"

namespace mhla {
namespace {

constexpr Form kForm = Form::kBidirectional;
const bool kSeeded = fix_seed();

Case small(std::int64_t N, std::int64_t block) {
  Case c;
  c.dtype = DType::kF64;
  c.B = 2, c.N = N, c.H = 2, c.Hkv = 2, c.D = 5, c.E = 3, c.layout = Layout::line(block), c.eps = 0;
  return c;
}

void fill_mix(const CaseInputs& inputs, double (*value)(std::int64_t i, std::int64_t b)) {
  const std::int64_t L = inputs.mix.shape[inputs.mix.rank - 1];
  for (std::int64_t index = 0; index < inputs.mix.numel(); ++index) {
    CaseInputs::set(inputs.mix, index, value(index / L % L, index % L));
  }
}

Tensor forward(const Case& c, const CaseInputs& inputs) {
  Tensor out(DType::kF64, {c.B, c.N, c.H, c.E});
  bidirectional_forward(bidirectional_params(c, inputs), out.view());
  return out;
}

void expect_same(const Tensor& got, const Tensor& want, double tolerance = 1e-12) {
  EXPECT_LE(max_error(got, want), tolerance) << worst_element(got, want);
}

// Linear attention over all tokens, without blocks.
Tensor linear_attention(const Case& c, const CaseInputs& inputs) {
  Case one = c;
  one.layout = Layout::line(c.N), one.rows = 1;
  CaseInputs whole = inputs.to(DType::kF64);
  const double coefficient = 1;
  whole.mix = ConstView(&coefficient, DType::kF64, {1, 1});
  return token_view(one, whole);
}

TEST(BidirectionalIdentity, TokenView) {
  for (const auto& cases : {option_combinations(kForm), forgotten_shapes(kForm)}) {
    for (Case c : cases) {
      c.dtype = DType::kF64, c.D = std::min<std::int64_t>(c.D, 17), c.E = std::min<std::int64_t>(c.E, 17);
      const CaseInputs inputs(c);
      const Tensor want = token_view(c, inputs.to(DType::kF64)), got = reference_case(c, inputs).out;
      EXPECT_LE(max_error(got, want), 1e-11) << worst_element(got, want) << "\n  MHLA_CASE='" << c.name() << "'";
    }
  }
}

RC_GTEST_PROP(BidirectionalIdentity, TokenViewOfRandomShapes, ()) {
  Case c = *any_case(kForm);
  c.dtype = DType::kF64;
  const CaseInputs inputs(c);
  RC_ASSERT(max_error(reference_case(c, inputs).out, token_view(c, inputs)) <= 1e-11);
}

TEST(BidirectionalIdentity, ConstantValueComesBack) {
  const Case c = small(22, 5);
  const CaseInputs inputs(c);
  for (std::int64_t index = 0; index < inputs.v.numel(); ++index) CaseInputs::set(inputs.v, index, 1 + index % c.E);
  const Tensor out = forward(c, inputs);
  for (std::int64_t index = 0; index < out.numel(); ++index) EXPECT_NEAR(out.at(index), 1 + index % c.E, 1e-12);
}

// The official normaliser is not an average: its weights do not sum to 1.
TEST(BidirectionalIdentity, ConstantValueDoesNotComeBackFromOfficial) {
  Case c = small(20, 5);
  c.normalizer = Normalizer::kOfficial;
  const CaseInputs inputs(c);
  for (std::int64_t index = 0; index < inputs.v.numel(); ++index) CaseInputs::set(inputs.v, index, 1);
  const Tensor out = forward(c, inputs);
  double furthest = 0;
  for (std::int64_t index = 0; index < out.numel(); ++index) furthest = std::max(furthest, std::abs(out.at(index) - 1));
  EXPECT_GT(furthest, 0.01);
}

TEST(BidirectionalIdentity, OneBlockIsLinearAttention) {
  const Case c = small(19, 19);
  const CaseInputs inputs(c);
  fill_mix(inputs, [](std::int64_t, std::int64_t) { return 1.0; });
  expect_same(forward(c, inputs), linear_attention(c, inputs));
}

TEST(BidirectionalIdentity, EqualMixIsLinearAttentionForEveryM) {
  for (const std::int64_t block : {1, 2, 5, 7, 18}) {
    const Case c = small(19, block);
    const CaseInputs inputs(c);
    fill_mix(inputs, [](std::int64_t, std::int64_t) { return 0.3; });
    expect_same(forward(c, inputs), linear_attention(c, inputs));
  }
}

TEST(BidirectionalIdentity, IdentityMixKeepsBlocksApart) {
  const Case c = small(19, 6);
  const CaseInputs inputs(c);
  fill_mix(inputs, [](std::int64_t i, std::int64_t b) { return i == b ? 1.0 : 0.0; });
  const Tensor out = forward(c, inputs);
  for (std::int64_t batch = 0; batch < c.B; ++batch) {
    for (std::int64_t start = 0; start < c.N; start += 6) {
      const CaseSlice block = slice_case(c, inputs, batch, start, std::min<std::int64_t>(6, c.N - start));
      const Tensor want = linear_attention(block.c, block.inputs);
      ConstView got = std::as_const(out).view();
      got.data = static_cast<const double*>(got.data) + (batch * c.N + start) * c.H * c.E;
      got.shape[0] = 1, got.shape[1] = block.c.N;
      expect_same(contiguous(got), want);
    }
  }
}

TEST(BidirectionalIdentity, RowsOfMixMayBeScaled) {
  const Case c = small(19, 6);
  const CaseInputs inputs(c);
  const Tensor want = forward(c, inputs);
  const std::int64_t L = c.mix_rows();
  for (std::int64_t index = 0; index < inputs.mix.numel(); ++index) {
    CaseInputs::set(inputs.mix, index, CaseInputs::get(inputs.mix, index) * static_cast<double>(1 + index / L % L));
  }
  expect_same(forward(c, inputs), want);
}

// Blocks in another order, with the rows and columns of mix: the outputs move along.
TEST(BidirectionalIdentity, BlocksMayBePermuted) {
  constexpr std::int64_t kOrder[] = {2, 0, 3, 1};  // block i of the second run is block kOrder[i] of the first
  const Case c = small(20, 5);
  const CaseInputs inputs(c), moved(c);
  const auto from = [&](std::int64_t index, std::int64_t row) {  // of element `index` of a [B, N, row] tensor
    const std::int64_t token = index / row % c.N, source = kOrder[token / 5] * 5 + token % 5;
    return index + (source - token) * row;
  };
  for (const auto& [to, view] : {std::pair{&moved.q, &inputs.q}, {&moved.k, &inputs.k}, {&moved.v, &inputs.v}}) {
    for (std::int64_t index = 0; index < to->numel(); ++index) {
      CaseInputs::set(*to, index, CaseInputs::get(*view, from(index, to->shape[2] * to->shape[3])));
    }
  }
  for (std::int64_t i = 0; i < 4; ++i) {
    for (std::int64_t b = 0; b < 4; ++b)
      CaseInputs::set(moved.mix, i * 4 + b, CaseInputs::get(inputs.mix, kOrder[i] * 4 + kOrder[b]));
  }
  const Tensor before = forward(c, inputs), after = forward(c, moved);
  for (std::int64_t index = 0; index < after.numel(); ++index) {
    EXPECT_NEAR(after.at(index), before.at(from(index, c.H * c.E)), 1e-12) << index;
  }
}

TEST(BidirectionalIdentity, AFlatGridIsALine) {
  Case c = small(20, 5);
  const CaseInputs inputs(c);
  const Tensor want = forward(c, inputs);
  for (const Layout& flat : {Layout::grid2d(1, 20, 1, 4), Layout::grid2d(20, 1, 4, 1),
                             Layout::grid3d({1, 1, 20}, {1, 1, 4}), Layout::grid3d({20, 1, 1}, {4, 1, 1})}) {
    c.layout = flat;
    expect_same(forward(c, inputs), want, 0);
  }
}

// A lower-triangular mix sees at the last token of each block what the causal form sees there.
TEST(BidirectionalIdentity, LowerTriangularAgreesWithCausalAtTheEndOfBlocks) {
  for (const Normalizer normalizer : {Normalizer::kPaper, Normalizer::kNone}) {
    Case c = small(23, 5);
    c.normalizer = normalizer, c.scale = 0.8;
    const CaseInputs inputs(c);
    const std::int64_t L = c.mix_rows();
    for (std::int64_t index = 0; index < L * L; ++index) {
      if (index % L > index / L) CaseInputs::set(inputs.mix, index, 0);
    }
    const Tensor want = forward(c, inputs);
    Tensor got(DType::kF64, want.shape());
    chunkwise_forward(chunkwise_params(c, inputs), got.view());
    const std::int64_t row = c.H * c.E;
    for (std::int64_t index = 0; index < got.numel(); ++index) {
      const std::int64_t token = index / row % c.N;
      if (token % 5 != 4 && token != c.N - 1) continue;
      EXPECT_NEAR(got.at(index), want.at(index), 1e-12) << index;
    }
  }
}

TEST(BidirectionalIdentity, EqualMatricesPerHeadAreASharedOne) {
  Case c = small(19, 6), per_head = c;
  per_head.per_head = true;
  const CaseInputs inputs(c), copies(per_head);
  for (std::int64_t index = 0; index < copies.mix.numel(); ++index) {
    CaseInputs::set(copies.mix, index, CaseInputs::get(inputs.mix, index % inputs.mix.numel()));
  }
  const CaseResult shared = reference_case(c, inputs), apart = reference_case(per_head, copies);
  expect_same(apart.out, shared.out, 0);
  for (std::int64_t index = 0; index < shared.dmix.numel(); ++index) {
    EXPECT_NEAR(apart.dmix.at(index) + apart.dmix.at(index + shared.dmix.numel()), shared.dmix.at(index), 1e-12);
  }
}

TEST(BidirectionalIdentity, GroupedQueriesAreRepeatedKeys) {
  Case grouped = small(19, 6), repeated = grouped;
  grouped.H = repeated.H = repeated.Hkv = 6, grouped.Hkv = 2;
  const CaseInputs inputs(grouped), copies(repeated);
  for (std::int64_t index = 0; index < copies.mix.numel(); ++index)
    CaseInputs::set(copies.mix, index, CaseInputs::get(inputs.mix, index));
  for (const auto& [to, from] : {std::pair{&copies.q, &inputs.q},
                                 {&copies.k, &inputs.k},
                                 {&copies.v, &inputs.v},
                                 {&copies.dout, &inputs.dout}}) {
    const std::int64_t size = to->shape[3], repeat = 6 / from->shape[2];
    for (std::int64_t index = 0; index < to->numel(); ++index) {
      const std::int64_t token = index / (6 * size), head = index / size % 6;
      CaseInputs::set(*to, index,
                      CaseInputs::get(*from, (token * from->shape[2] + head / repeat) * size + index % size));
    }
  }
  const CaseResult a = reference_case(grouped, inputs), b = reference_case(repeated, copies);
  expect_same(a.out, b.out, 0);
  expect_same(a.dq, b.dq, 0);
  for (const auto& [sum, parts] : {std::pair{&a.dk, &b.dk}, {&a.dv, &b.dv}}) {
    const std::int64_t size = sum->shape()[3];
    for (std::int64_t index = 0; index < sum->numel(); ++index) {
      const std::int64_t token = index / (2 * size), head = index / size % 2;
      double want = 0;
      for (std::int64_t g = 0; g < 3; ++g) want += parts->at((token * 6 + head * 3 + g) * size + index % size);
      EXPECT_NEAR(sum->at(index), want, 1e-12);
    }
  }
}

}  // namespace
}  // namespace mhla
