// An operation is an ordered list of candidates, fastest first. Each takes the problem or gives its
// reason; the first that takes it runs. `ref` runs only by name, and for f64.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "mhla/core/error.h"
#include "mhla/core/workspace.h"

namespace mhla {

template <class Problem>
struct Candidate {
  const char* name;
  std::string (*fit)(const Problem&);                  // empty: takes it; else the reason why not
  void (*run)(const Problem&, Workspace&, Executor&);  // over a counting workspace: sizes only, touches no data
};

// The candidate that runs `problem`: the one called `name`, or the first that fits when `name` is empty.
template <class Problem>
const Candidate<Problem>& choose(std::span<const Candidate<Problem>> list, const Problem& problem,
                                 std::string_view name, const char* entry) {
  std::string reasons;
  bool known = name.empty();
  for (const Candidate<Problem>& candidate : list) {
    if (!name.empty() && name != candidate.name) continue;
    known = true;
    const std::string reason = candidate.fit(problem);
    const bool by_name_only = name.empty() && std::string_view(candidate.name) == "ref" && !problem.is_f64();
    if (reason.empty() && !by_name_only) return candidate;
    reasons += str(reasons.empty() ? "" : " | ", candidate.name, ": ",
                   reason.empty() ? "runs only when asked for by name" : reason);
  }
  if (!known) {
    std::string names;
    for (const Candidate<Problem>& candidate : list) names += str(names.empty() ? "" : ", ", candidate.name);
    fail(entry, ": no candidate is called '", name, "', expected one of ", names);
  }
  fail(entry, ": no candidate for ", problem.describe(), "\n  ", reasons);
}

}  // namespace mhla
