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

// Which results are asked for, a bit per entry of kResultFields. Without out forward is not run, without a gradient
// backward is not.
inline constexpr unsigned kAllResults = ~0u, kOnlyOut = 1u;

// Results have the dtype of the inputs and are given where they were wanted; gradients are not given for a candidate
// without a backward pass. Candidates that work on a CUDA device get their tensors and workspace there, device 0, on
// run.stream. `maybe_kept`: forward keeps summaries for backward, and this many bytes. Throws mhla::Error when a guard
// band, a gap, an input or, by backward, what is kept was written.
CaseResult run_case(const Case& c, const CaseInputs& inputs, const RunOptions& run = {}, unsigned wanted = kAllResults,
                    std::int64_t* maybe_kept = nullptr);

// The reference on the f64 values of the inputs: what every candidate is measured against.
CaseResult reference_case(const Case& c, const CaseInputs& inputs);

std::vector<std::string_view> candidates_of(Form form);
bool has_backward(Form form, std::string_view candidate);  // empty name: true

bool on_device(std::string_view candidate);  // "cuda", "sm80", "sm90": works on the memory of a CUDA device
// Empty, or why no case can be run by this candidate on this machine: "built without CUDA", "no CUDA device".
std::string missing_here(std::string_view candidate);
// Empty, or why the candidate does not take this case; a candidate for one kind of card may, the others never.
std::string steps_aside(const Case& c, std::string_view candidate, bool backward = false);

// One sequence of the inputs as inputs of their own: tokens [start, start + length) of batch element `batch`.
// Memory stays with `inputs`, which must outlive the result.
struct CaseSlice {
  Case c;
  CaseInputs inputs;
};
CaseSlice slice_case(const Case& c, const CaseInputs& inputs, std::int64_t batch, std::int64_t start,
                     std::int64_t length);

}  // namespace mhla
