// Which kernel candidates this build has: the support of a tiny problem, asked of the library in the memory that each
// candidate works on.
#pragma once

#include <string>
#include <vector>

#include "mhla/core/dtype.h"

namespace mhla::apps {

enum class OpForm { kBidirectional, kCausal, kDecode };
const char* name_of(OpForm form);            // "bidirectional", "causal", "decode"
OpForm parse_form(const std::string& name);  // throws mhla::Error

struct CandidateFact {
  std::string name;    // "sm90", "sm80", "cuda", "simd", "ref": fastest first
  std::string reason;  // empty: available; else why not
};

// For problems of `dtype`, each candidate in the memory it works on: the host's, or that of CUDA device 0.
std::vector<CandidateFact> candidate_facts(OpForm form, DType dtype = DType::kF32);

// The names that are available, fastest first.
std::vector<std::string> available_candidates(OpForm form, DType dtype = DType::kF32);

// Throws mhla::Error, "verify: --backend is 'cuda': no CUDA device; available are simd, ref", unless `name` is
// available.
void require_available(const std::string& name, OpForm form, DType dtype, const std::string& command);

}  // namespace mhla::apps
