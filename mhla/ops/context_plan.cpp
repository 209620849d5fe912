#include <algorithm>

#include "mhla/core/error.h"
#include "mhla/ops/context_parallel.h"

namespace mhla::ops {
namespace {

constexpr ContextMethod kMethods[] = {ContextMethod::kAuto, ContextMethod::kSummaries, ContextMethod::kHeads};

}  // namespace

const char* name_of(ContextMethod method) {
  if (method == ContextMethod::kAuto) return "auto";
  return method == ContextMethod::kHeads ? "heads" : "summaries";
}

ContextMethod parse_context_method(const std::string& name) {
  for (const ContextMethod method : kMethods)
    if (name == name_of(method)) return method;
  fail("context_method is '", name, "', expected auto, summaries or heads");
}

ContextPlan plan_context(const ContextShape& s, const PhaseOptions& whole, std::int64_t P, ContextMethod asked) {
  const BlockMap map(whole.layout, whole.tokens);
  std::int64_t fewest = 0, M = 0, forward = 0, backward = 0, both = 0;
  bool in_slices = true;  // of the first axis
  const std::int64_t to_heads = s.B * ((s.H + s.Hkv) * s.D * (s.den ? 2 : 1) + s.Hkv * s.E) / P,
                     to_tokens = s.B * s.H * s.E / P;  // numbers of a token that go to one other process
  for (std::int64_t rank = 0; rank < P; ++rank) {
    const BlockRange range = blocks_of_rank(whole.layout, whole.tokens, P, rank);
    const std::vector<std::int64_t> tokens = tokens_of_blocks(map, range.first, range.blocks);
    const auto held = static_cast<std::int64_t>(tokens.size());
    in_slices = in_slices && tokens.back() - tokens.front() + 1 == held;
    fewest = rank == 0 ? range.blocks : std::min(fewest, range.blocks), M += range.blocks;
    const std::int64_t there = (whole.tokens - held) * to_heads + (P - 1) * held * to_tokens,
                       back = (whole.tokens - held) * to_tokens + (P - 1) * held * to_heads;
    forward = std::max(forward, there), backward = std::max(backward, back), both = std::max(both, there + back);
  }
  const std::int64_t row = s.B * (s.D * s.E + (whole.normalizer == Normalizer::kNone ? 0 : s.D));
  const std::int64_t rows = (M - fewest) * s.Hkv * row, gradients = (M - fewest) * (s.mix_per_head ? s.H : s.Hkv) * row;
  const std::int64_t wide = s.element == 8 ? 8 : 4, by_summaries = (rows + gradients) * wide,
                     by_heads = both * s.element;

  std::string no_heads, no_summaries;
  if (s.H % P != 0 || s.Hkv % P != 0)
    no_heads = s.H == s.Hkv ? str(P, " processes do not divide ", s.H, " heads")
                            : str(P, " processes do not divide ", s.H, " and ", s.Hkv, " heads");
  if (!s.on_cpu && s.element == 8) no_summaries = "the phases of the operator take f64 on the CPU only";
  if (!s.on_cpu && !in_slices)
    no_summaries = str("on a GPU processes hold whole slices of the first axis, and there are fewer than ", P);
  if (whole.normalizer == Normalizer::kOfficial)
    no_summaries = "the official normaliser reads the queries of every block";
  const bool heads = asked == ContextMethod::kHeads;
  if (asked != ContextMethod::kAuto && !(heads ? no_heads : no_summaries).empty())
    fail("context_method is ", name_of(asked), ", but ", heads ? no_heads : no_summaries, ", expected auto or ",
         heads ? "summaries" : "heads");
  if (!no_heads.empty() && !no_summaries.empty())
    fail("context_parallel is ", P, ": no method fits. summaries: ", no_summaries, " | heads: ", no_heads);

  ContextPlan plan;
  plan.method = asked;
  if (asked != ContextMethod::kAuto) {
    plan.reason = "asked for";
  } else if (!no_heads.empty() || !no_summaries.empty()) {
    plan.method = no_heads.empty() ? ContextMethod::kHeads : ContextMethod::kSummaries;
    plan.reason = no_heads.empty() ? no_summaries : no_heads;
  } else if (!s.on_cpu) {
    plan.method = ContextMethod::kHeads;
    plan.reason = "on a GPU whole sequences of a few heads run through faster kernels";
  } else {
    plan.method = by_summaries <= by_heads ? ContextMethod::kSummaries : ContextMethod::kHeads;
    plan.reason = str(by_summaries, " bytes by summaries, ", by_heads, " by heads");
  }
  const bool summaries = plan.method == ContextMethod::kSummaries;
  plan.values = summaries ? rows : forward, plan.values_backward = summaries ? gradients : backward;
  plan.bytes = summaries ? by_summaries : by_heads;
  return plan;
}

}  // namespace mhla::ops
