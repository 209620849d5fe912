// What to do with a causal sequence of more chunks than the matrix has rows.
#include <iterator>

#include "mhla/core/error.h"
#include "mhla/kernels/common/problem.h"
#include "mhla/kernels/mixing/mix_matrix.h"
#include "mhla/kernels/mixing/mixing.h"

namespace mhla {
namespace {

constexpr std::string_view kPolicyNames[] = {"error", "truncate_left", "rechunk", "extend"};

// How many parts of `part` make up `whole`, the last one cut.
constexpr std::int64_t parts_of(std::int64_t whole, std::int64_t part) { return whole / part + (whole % part != 0); }

}  // namespace

std::string_view name_of(LengthPolicy policy) { return kPolicyNames[static_cast<int>(policy)]; }

LengthPolicy parse_length_policy(std::string_view name) {
  for (std::size_t i = 0; i < std::size(kPolicyNames); ++i) {
    if (kPolicyNames[i] == name) return static_cast<LengthPolicy>(i);
  }
  fail("length policy '", name, "' is unknown, expected one of error, truncate_left, rechunk, extend");
}

LengthPlan plan_length(std::int64_t stored_rows, std::int64_t chunk, std::int64_t tokens, LengthPolicy policy) {
  if (stored_rows < 1) fail("plan_length: stored_rows is ", stored_rows, ", expected at least 1");
  if (chunk < 1) fail("plan_length: chunk is ", chunk, ", expected at least 1");
  if (tokens < 0) fail("plan_length: tokens is ", tokens, ", expected at least 0");

  LengthPlan plan{.policy = policy, .tokens = tokens, .chunk = chunk, .rows = parts_of(tokens, chunk)};
  if (plan.rows <= stored_rows) return plan;

  plan.applied = true;
  const std::int64_t capacity = stored_rows * chunk;  // below tokens, so it cannot overflow
  switch (policy) {
    case LengthPolicy::kError:
      fail("plan_length: ", tokens, " tokens need ", plan.rows, " chunks of ", chunk, ", mix has ", stored_rows,
           " rows: expected at most ", capacity, " tokens, or a length policy truncate_left, rechunk or extend");
    case LengthPolicy::kTruncateLeft:
      plan.first = tokens - capacity;
      plan.tokens = capacity;
      plan.rows = stored_rows;
      return plan;
    case LengthPolicy::kRechunk:
      plan.chunk = parts_of(tokens, stored_rows);
      plan.rows = parts_of(tokens, plan.chunk);
      return plan;
    case LengthPolicy::kExtend: return plan;
  }
  fail("plan_length: policy ", static_cast<int>(policy), " is unknown");
}

std::string describe(const LengthPlan& plan) {
  const std::string chunks = str(plan.rows, plan.rows == 1 ? " chunk of " : " chunks of ", plan.chunk);
  if (!plan.applied) return str("fits: ", plan.tokens, " tokens, ", chunks);
  return str(name_of(plan.policy), ": tokens ", plan.first, " to ", plan.first + plan.tokens - 1, ", ", chunks);
}

void extend_mix(ConstView mix, View out) {
  const MixSize size = check_mix_output(out, "extend_mix", "out");
  const MixMatrix stored = load_mix(mix, "extend_mix", "mix");
  if (stored.rows < 1) fail("extend_mix: mix has shape ", shape_text(mix), ", expected at least one row");
  if (stored.heads != size.heads) {
    fail("extend_mix: out has ", size.heads, " heads, expected ", stored.heads, " as mix has");
  }
  MixMatrix result(size.heads, size.rows);
  for (std::int64_t h = 0; h < size.heads; ++h) {
    for (std::int64_t i = 0; i < size.rows; ++i) {
      for (std::int64_t b = 0; b <= i; ++b) {
        const MixIndex index = mix_index(i, b, stored.rows);
        result.row(h, i)[b] = stored.row(h, index.row)[index.column];
      }
    }
  }
  store_mix(result, out);
}

}  // namespace mhla
