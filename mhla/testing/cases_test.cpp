// The text form of a case brings it back, and the inputs are what the case says.
#include "mhla/testing/cases.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>

#include "mhla/core/error.h"
#include "mhla/testing/case_gen.h"

namespace mhla {
namespace {

const bool kSeeded = fix_seed();

RC_GTEST_PROP(Cases, NameBringsTheCaseBack, ()) {
  Case c = *any_case(*rc::gen::element(Form::kBidirectional, Form::kCausal));
  c.dtype = *rc::gen::element(DType::kF32, DType::kBF16, DType::kF16, DType::kF64);
  c.fused = *rc::gen::arbitrary<bool>();
  const Case back = parse_case(c.name());
  RC_ASSERT(back.name() == c.name());
  RC_ASSERT(back.cu_seqlens == c.cu_seqlens);
  RC_ASSERT(back.scale == c.scale);
  RC_ASSERT(back.layout.grid == c.layout.grid);
}

TEST(Cases, UnknownWordsAreRefused) {
  for (const char* name : {"sideways", "N=", "N=3x", "N=1e3", "layout=1d", "layout=2d:4x4", "layout=2d:4/2", "cu=0,,3",
                           "map=gelu", "eps=small", "color=red", "f8"}) {
    EXPECT_THROW(parse_case(name), Error) << name;
  }
}

TEST(Cases, SameSeedSameInputs) {
  Case c;
  c.N = 20;
  const CaseInputs a(c), b(c);
  EXPECT_TRUE(contiguous(a.q).same_bits(contiguous(b.q)));
  c.seed = 2;
  EXPECT_FALSE(contiguous(a.q).same_bits(contiguous(CaseInputs(c).q)));
}

TEST(Cases, FusedInputsAreSlicesOfOneTensor) {
  Case c;
  c.B = 2, c.N = 5, c.H = 4, c.Hkv = 2, c.D = 3, c.E = 2;
  const CaseInputs apart(c);
  c.fused = true;
  const CaseInputs fused(c);
  EXPECT_EQ(fused.q.stride[1], 4 * 3 + 2 * 3 + 2 * 2 + 3);
  EXPECT_EQ(fused.k.stride[1], fused.q.stride[1]);
  EXPECT_TRUE(contiguous(fused.q).same_bits(contiguous(apart.q)));
  EXPECT_TRUE(contiguous(fused.k).same_bits(contiguous(apart.k)));
  EXPECT_TRUE(contiguous(fused.v).same_bits(contiguous(apart.v)));
}

TEST(Cases, BroadcastInputsHaveStrideZero) {
  Case c;
  c.B = 3, c.N = 4, c.broadcast = true;
  const CaseInputs inputs(c);
  EXPECT_EQ(inputs.k.stride[0], 0);
  EXPECT_EQ(inputs.k.shape[0], 3);
  EXPECT_NE(inputs.q.stride[0], 0);
}

TEST(Cases, EntriesOfMixThatMayNotBeReadAreNan) {
  Case c;
  c.form = Form::kCausal, c.N = 40, c.rows = 5;  // three chunks of 16
  const CaseInputs inputs(c);
  for (std::int64_t index = 0; index < 25; ++index) {
    const std::int64_t i = index / 5, b = index % 5;
    EXPECT_EQ(std::isnan(CaseInputs::get(inputs.mix, index)), i >= 3 || b > i) << i << " " << b;
  }
}

TEST(Cases, ListsHaveWhatPeopleForget) {
  for (const Form form : {Form::kBidirectional, Form::kCausal}) {
    bool no_token = false, no_batch = false, packed = false, strided = false, grouped = false;
    for (const Case& c : forgotten_shapes(form)) {
      no_token |= c.N == 0, no_batch |= c.B == 0, packed |= !c.cu_seqlens.empty(), strided |= c.fused;
      grouped |= c.H != c.Hkv;
    }
    EXPECT_TRUE(no_token && no_batch && packed && strided && grouped);
  }
}

}  // namespace
}  // namespace mhla
