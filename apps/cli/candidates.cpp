#include "apps/cli/candidates.h"

#include "mhla/core/cuda.h"
#include "mhla/core/error.h"
#include "mhla/kernels/bidirectional/bidirectional.h"
#include "mhla/kernels/chunkwise/chunkwise.h"
#include "mhla/kernels/streaming/streaming.h"
#include "mhla/testing/tensor.h"

namespace mhla::apps {
namespace {

constexpr std::int64_t kTokens = 32, kBlock = 16, kSize = 64;

// One head of 32 tokens in two blocks: every candidate that exists takes it. Only sizes are looked at, so the views of
// a device may point to host memory.
std::vector<Support> probe(OpForm form, DType dtype, int device) {
  Tensor q(dtype, {1, kTokens, 1, kSize});
  Tensor mix(dtype == DType::kF64 ? DType::kF64 : DType::kF32, {2, 2});
  View tokens = q.view(), weights = mix.view();
  tokens.device = weights.device = device;
  if (form == OpForm::kBidirectional) {
    BidirectionalParams params;
    params.q = params.k = params.v = tokens;
    params.mix = weights;
    params.layout = Layout::line(kBlock);
    return bidirectional_forward_support(params, tokens);
  }
  if (form == OpForm::kCausal) {
    ChunkwiseParams params;
    params.q = params.k = params.v = tokens;
    params.mix = weights;
    params.chunk = kBlock;
    return chunkwise_forward_support(params, tokens);
  }
  StreamingConfig config{.H = 1, .Hkv = 1, .D = kSize, .E = kSize, .chunk = kBlock, .dtype = dtype};
  config.device = device;
  return streaming_support(config);
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
  const std::string missing = cuda_missing();
  const std::vector<Support> on_host = probe(form, dtype, kCpu);
  const std::vector<Support> on_card = missing.empty() ? probe(form, dtype, 0) : on_host;
  std::vector<CandidateFact> facts;
  for (std::size_t i = 0; i < on_host.size(); ++i) {
    const Support& one = on_host[i].on_device ? on_card[i] : on_host[i];
    facts.push_back({one.name, one.on_device && !missing.empty() ? missing : one.reason});
  }
  return facts;
}

std::vector<std::string> available_candidates(OpForm form, DType dtype) {
  std::vector<std::string> names;
  for (const CandidateFact& fact : candidate_facts(form, dtype))
    if (fact.reason.empty()) names.push_back(fact.name);
  return names;
}

void require_available(const std::string& name, OpForm form, DType dtype, const std::string& command) {
  std::string available, reason = "no candidate of that name";
  for (const CandidateFact& fact : candidate_facts(form, dtype)) {
    if (fact.name == name && fact.reason.empty()) return;
    if (fact.name == name) reason = fact.reason;
    if (fact.reason.empty()) available += (available.empty() ? "" : ", ") + fact.name;
  }
  fail(command, ": --backend is '", name, "': ", reason, "; available for ", name_of(form), " in ", name_of(dtype),
       ": ", available);
}

}  // namespace mhla::apps
