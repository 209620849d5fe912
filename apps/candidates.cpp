#include "apps/candidates.h"

#include "mhla/core/error.h"
#include "mhla/kernels/bidirectional/bidirectional.h"
#include "mhla/kernels/chunkwise/chunkwise.h"
#include "mhla/kernels/streaming/streaming.h"
#include "mhla/testing/tensor.h"

namespace mhla::apps {
namespace {

constexpr std::int64_t kTokens = 4, kSize = 4;

// One head of 4 tokens in two blocks: every candidate that exists takes it.
void probe(OpForm form, const std::string& candidate, DType dtype) {
  Tensor q(dtype, {1, kTokens, 1, kSize});
  Tensor out(dtype, {1, kTokens, 1, kSize});
  Tensor mix(dtype == DType::kF64 ? DType::kF64 : DType::kF32, {2, 2});
  mix.fill(1.0);
  const RunOptions run{.candidate = candidate};
  const ConstView tokens = q.view();
  if (form == OpForm::kBidirectional) {
    BidirectionalParams params;
    params.q = params.k = params.v = tokens;
    params.mix = mix.view();
    params.layout = Layout::line(2);
    (void)bidirectional_forward_workspace(params, out.view(), run);
  } else if (form == OpForm::kCausal) {
    ChunkwiseParams params;
    params.q = params.k = params.v = tokens;
    params.mix = mix.view();
    params.chunk = 2;
    (void)chunkwise_forward_workspace(params, out.view(), run);
  } else {
    const StreamingConfig config{.H = 1, .Hkv = 1, .D = kSize, .E = kSize, .chunk = 2, .dtype = dtype};
    StreamingState(config, mix.view(), candidate);
  }
}

// The library's message lists every candidate it asked, "...\n  simd: dtype f64"; the reason stands behind the name.
std::string reason_of(const std::string& message, const std::string& candidate) {
  if (message.find("no candidate is called") != std::string::npos) return "not part of this build";
  const std::string head = "\n  " + candidate + ": ";
  const std::size_t found = message.find(head);
  return found == std::string::npos ? message : message.substr(found + head.size());
}

}  // namespace

const char* name_of(OpForm form) {
  switch (form) {
    case OpForm::kBidirectional: return "bidirectional";
    case OpForm::kCausal: return "causal";
    case OpForm::kDecode: return "decode";
  }
  return "";
}

OpForm parse_form(const std::string& name) {
  for (const OpForm form : {OpForm::kBidirectional, OpForm::kCausal, OpForm::kDecode})
    if (name == name_of(form)) return form;
  fail("--form is '", name, "', expected bidirectional, causal or decode");
}

std::vector<CandidateFact> candidate_facts(OpForm form, DType dtype) {
  std::vector<CandidateFact> facts;
  facts.push_back({"sm90", "this build has no CUDA kernels"});
  facts.push_back({"cuda", "this build has no CUDA kernels"});
  for (const char* name : {"simd", "ref"}) {
    CandidateFact fact{name, ""};
    try {
      probe(form, name, dtype);
    } catch (const Error& error) {
      fact.reason = reason_of(error.what(), name);
    }
    facts.push_back(fact);
  }
  return facts;
}

std::vector<std::string> available_candidates(OpForm form, DType dtype) {
  std::vector<std::string> names;
  for (const CandidateFact& fact : candidate_facts(form, dtype))
    if (fact.reason.empty()) names.push_back(fact.name);
  return names;
}

}  // namespace mhla::apps
