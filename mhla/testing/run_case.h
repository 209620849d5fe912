// Runs a case, forward and backward, the way that catches most mistakes: outputs and workspace start as
// NaN between guard bands, strided outputs have gaps that must stay untouched.
#pragma once

#include <string_view>
#include <vector>

#include "mhla/testing/cases.h"

namespace mhla {

struct CaseResult {
  Tensor out;                         // [B, N, H, E]
  Tensor dq, dk, dv;                  // like q, k, v
  Tensor dmix;                        // like mix
  Tensor maybe_dq_den, maybe_dk_den;  // given when the case has q_den and k_den
};

struct ResultField {
  const char* name;
  Tensor CaseResult::*tensor;
  bool gradient;
};
inline constexpr ResultField kResultFields[] = {{"out", &CaseResult::out, false},
                                                {"dq", &CaseResult::dq, true},
                                                {"dk", &CaseResult::dk, true},
                                                {"dv", &CaseResult::dv, true},
                                                {"dmix", &CaseResult::dmix, true},
                                                {"dq_den", &CaseResult::maybe_dq_den, true},
                                                {"dk_den", &CaseResult::maybe_dk_den, true}};

// Results have the dtype of the inputs; gradients are not given for a candidate without a backward pass. Throws
// mhla::Error when a guard band or a gap was written.
CaseResult run_case(const Case& c, const CaseInputs& inputs, const RunOptions& run = {});

// The reference on the f64 values of the inputs: what every candidate is measured against.
CaseResult reference_case(const Case& c, const CaseInputs& inputs);

std::vector<std::string_view> candidates_of(Form form);
bool has_backward(Form form, std::string_view candidate);  // empty name: true

// One sequence of the inputs as inputs of their own: tokens [start, start + length) of batch element `batch`.
// Memory stays with `inputs`, which must outlive the result.
struct CaseSlice {
  Case c;
  CaseInputs inputs;
};
CaseSlice slice_case(const Case& c, const CaseInputs& inputs, std::int64_t batch, std::int64_t start,
                     std::int64_t length);

}  // namespace mhla
