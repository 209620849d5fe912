// Which kernel candidates this build has, found by asking the public entry points: a tiny problem is sized with
// every name the library knows, and a refusal is the reason.
#pragma once

#include <string>
#include <vector>

#include "mhla/core/dtype.h"

namespace mhla::apps {

enum class OpForm { kBidirectional, kCausal, kDecode };
const char* name_of(OpForm form);            // "bidirectional", "causal", "decode"
OpForm parse_form(const std::string& name);  // throws mhla::Error

struct CandidateFact {
  std::string name;    // "sm90", "cuda", "simd", "ref": fastest first
  std::string reason;  // empty: available; else why not
};

// For problems of `dtype` on the CPU.
std::vector<CandidateFact> candidate_facts(OpForm form, DType dtype = DType::kF32);

// The names that are available, fastest first.
std::vector<std::string> available_candidates(OpForm form, DType dtype = DType::kF32);

}  // namespace mhla::apps
