// An operation is an ordered list of candidates, fastest first. Each takes the problem or gives its
// reason; the first that takes it runs. `ref` runs only by name, and for f64.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "mhla/core/workspace.h"
#include "mhla/kernels/common/support.h"

namespace mhla {

template <class Problem>
struct Candidate {
  const char* name;
  std::string (*fit)(const Problem&);                  // empty: takes it; else the reason why not
  void (*run)(const Problem&, Workspace&, Executor&);  // over a counting workspace: sizes only, touches no data
  bool on_device = false;                              // works on the memory of a CUDA device
};

// A list holds candidates, or pointers to them.
template <class Kind>
const Kind& candidate_in(const Kind& candidate) {
  return candidate;
}
template <class Kind>
const Kind& candidate_in(const Kind* candidate) {
  return *candidate;
}

// Every candidate of the list, whether it takes `problem` and why not.
template <class List, class Problem>
std::vector<Support> support_of(const List& list, const Problem& problem) {
  std::vector<Support> all;
  for (const auto& item : list) {
    const auto& candidate = candidate_in(item);
    all.push_back({candidate.name, candidate.on_device, candidate.fit(problem)});
  }
  return all;
}

template <class List>
std::vector<std::string_view> names_of(const List& list) {
  std::vector<std::string_view> names;
  for (const auto& item : list) names.emplace_back(candidate_in(item).name);
  return names;
}

template <class List>
bool on_device_in(const List& list, std::string_view name) {
  for (const auto& item : list)
    if (name == candidate_in(item).name) return candidate_in(item).on_device;
  return false;
}

// The candidate that runs `problem`: the one called `name`, or the first that fits when `name` is empty.
template <class List, class Problem>
const auto& choose(const List& list, const Problem& problem, std::string_view name, const char* entry) {
  std::vector<Support> asked;
  for (const auto& item : list) {
    const auto& candidate = candidate_in(item);
    if (!name.empty() && name != candidate.name) continue;
    std::string reason = candidate.fit(problem);
    const bool by_name_only = name.empty() && std::string_view(candidate.name) == "ref" && !problem.is_f64();
    if (reason.empty() && !by_name_only) return candidate;
    asked.push_back({candidate.name, candidate.on_device, by_name_only ? "runs only when asked for by name" : reason});
  }
  std::string text;
  const auto add = [&](const char* between, const auto&... parts) {
    text += str(text.empty() ? "" : between, parts...);
  };
  if (asked.empty()) {
    for (const std::string_view known : names_of(list)) add(", ", known);
    throw NoCandidate(str(entry, ": no candidate is called '", name, "', expected one of ", text), {});
  }
  for (const Support& one : asked) add(" | ", one.name, ": ", one.reason);
  throw NoCandidate(str(entry, ": no candidate for ", problem.describe(), "\n  ", text), std::move(asked));
}

}  // namespace mhla
