// Runs a chosen candidate: sizes its workspace by a counting run, then carves it from the caller's
// memory or from an allocation of the call. Shared by the entry points of the forms. For tensors on a CUDA device the
// memory is that device's, allocated and freed in the order of the problem's stream, and the device is the current
// one while the candidate runs.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "mhla/core/view.h"
#include "mhla/kernels/common/options.h"
#include "mhla/kernels/common/problem.h"
// problem.h first: candidate.h names Executor
#include "mhla/kernels/common/candidate.h"

namespace mhla {

template <class P>
std::vector<std::string_view> names_of(std::span<const Candidate<P>> list) {
  std::vector<std::string_view> names;
  for (const Candidate<P>& candidate : list) names.emplace_back(candidate.name);
  return names;
}

// The caller's executor, or the default one kept alive for the duration of the call. A call on a device only launches:
// it starts no pool.
struct CallExecutor {
  CallExecutor(const RunOptions& run, int device)
      : owned(run.maybe_executor ? nullptr : default_for(device)),
        executor(run.maybe_executor ? *run.maybe_executor : *owned) {}
  static std::shared_ptr<Executor> default_for(int device) {
    if (device == kCpu) return default_executor();
    return std::make_shared<InlineExecutor>();
  }
  std::shared_ptr<Executor> owned;
  Executor& executor;
};

// choose() of candidate.h. With MHLA_LOG=1 in the environment one line on stderr says which candidate runs the call and
// why those before it in the list step aside.
const Candidate<Problem>& choose_candidate(std::span<const Candidate<Problem>> list, const Problem& problem,
                                           std::string_view name);

// A call without tokens: nothing to run, dmix is zeroed where wanted. True when that was all.
bool finish_empty(const Problem& problem);

std::int64_t count_workspace(const Candidate<Problem>& candidate, const Problem& problem, const RunOptions& run);
void run_candidate(const Candidate<Problem>& candidate, const Problem& problem, const RunOptions& run);

}  // namespace mhla
