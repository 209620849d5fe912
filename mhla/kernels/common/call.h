// Runs a chosen candidate: sizes its workspace by a counting run, then carves it from the caller's
// memory or from an allocation of the call. Shared by the entry points of the forms.
#pragma once

#include "mhla/kernels/common/options.h"
#include "mhla/kernels/common/problem.h"
// problem.h first: candidate.h names Executor
#include "mhla/kernels/common/candidate.h"

namespace mhla {

// A call without tokens: nothing to run, dmix is zeroed where wanted. True when that was all.
bool finish_empty(const Problem& problem);

std::int64_t count_workspace(const Candidate<Problem>& candidate, const Problem& problem, const RunOptions& run);
void run_candidate(const Candidate<Problem>& candidate, const Problem& problem, const RunOptions& run);

}  // namespace mhla
