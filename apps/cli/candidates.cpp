#include "apps/cli/candidates.h"

#include "mhla/core/error.h"
#include "mhla/kernels/bidirectional/bidirectional.h"
#include "mhla/kernels/chunkwise/chunkwise.h"
#include "mhla/kernels/streaming/streaming.h"
#include "mhla/testing/run_case.h"

namespace mhla::apps {
namespace {

constexpr std::int64_t kTokens = 32, kBlock = 16, kSize = 64;

// One head of 32 tokens in two blocks: every candidate that exists takes it. Only sizes are looked at, so the views of
// a device may point to host memory.
void probe(OpForm form, const std::string& candidate, DType dtype) {
  Tensor q(dtype, {1, kTokens, 1, kSize});
  Tensor mix(dtype == DType::kF64 ? DType::kF64 : DType::kF32, {2, 2});
  mix.fill(1.0);
  View tokens = q.view(), weights = mix.view();
  tokens.device = weights.device = on_device(candidate) ? 0 : kCpu;
  const RunOptions run{.candidate = candidate};
  if (form == OpForm::kBidirectional) {
    BidirectionalParams params;
    params.q = params.k = params.v = tokens;
    params.mix = weights;
    params.layout = Layout::line(kBlock);
    (void)bidirectional_forward_workspace(params, tokens, run);
  } else if (form == OpForm::kCausal) {
    ChunkwiseParams params;
    params.q = params.k = params.v = tokens;
    params.mix = weights;
    params.chunk = kBlock;
    (void)chunkwise_forward_workspace(params, tokens, run);
  } else {
    StreamingConfig config{.H = 1, .Hkv = 1, .D = kSize, .E = kSize, .chunk = kBlock, .dtype = dtype};
    config.device = on_device(candidate) ? 0 : kCpu;
    StreamingState(config, mix.view(), candidate);
  }
}

// The library's message lists every candidate it asked, "...\n  simd: dtype f64"; the reason stands behind the name.
std::string reason_of(const std::string& message, const std::string& candidate) {
  if (message.find("no candidate is called") != std::string::npos) return "no such kernels for this form";
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
  for (const char* name : {"sm90", "cuda", "simd", "ref"}) {
    // Whether there is a device or not: states have no kernels of their own for Hopper.
    const bool exists = form != OpForm::kDecode || std::string(name) != "sm90";
    CandidateFact fact{name, exists ? missing_here(name) : "no such kernels for this form"};
    if (fact.reason.empty()) {
      try {
        probe(form, name, dtype);
      } catch (const Error& error) {
        fact.reason = reason_of(error.what(), name);
      }
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
