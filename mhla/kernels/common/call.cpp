#include "mhla/kernels/common/call.h"

#include "mhla/core/error.h"

namespace mhla {
namespace {

// The caller's executor, or the default one kept alive for the duration of the call.
struct CallExecutor {
  explicit CallExecutor(const RunOptions& run)
      : owned(run.maybe_executor ? nullptr : default_executor()),
        executor(run.maybe_executor ? *run.maybe_executor : *owned) {}
  std::shared_ptr<Executor> owned;
  Executor& executor;
};

std::int64_t count(const Candidate<Problem>& candidate, const Problem& problem, Executor& executor) {
  Workspace counting;
  candidate.run(problem, counting, executor);
  return counting.used();
}

bool empty(const Problem& p) { return p.B == 0 || p.N == 0; }

}  // namespace

bool finish_empty(const Problem& p) {
  if (!empty(p)) return false;
  const View& dmix = p.dmix;
  if (!p.backward || !dmix.given()) return true;
  for (std::int64_t m = 0; m < p.Hm; ++m) {
    for (std::int64_t i = 0; i < p.L; ++i) {
      for (std::int64_t b = 0; b < p.L; ++b) {
        store_f64(dmix.data, dmix.dtype, m * dmix.stride[0] + i * dmix.stride[1] + b * dmix.stride[2], 0.0);
      }
    }
  }
  return true;
}

std::int64_t count_workspace(const Candidate<Problem>& candidate, const Problem& problem, const RunOptions& run) {
  if (empty(problem)) return 0;
  const CallExecutor call(run);
  return count(candidate, problem, call.executor);
}

void run_candidate(const Candidate<Problem>& candidate, const Problem& problem, const RunOptions& run) {
  const CallExecutor call(run);
  const std::int64_t bytes = count(candidate, problem, call.executor);
  std::span<std::byte> memory = run.workspace;
  AlignedBuffer owned;
  if (memory.empty()) {
    owned = AlignedBuffer(bytes);
    memory = owned.bytes();
  } else {
    if (static_cast<std::int64_t>(memory.size()) < bytes)
      fail(problem.entry, ": workspace has ", memory.size(), " bytes, expected at least ", bytes);
    if (reinterpret_cast<std::uintptr_t>(memory.data()) % kAlignment != 0)
      fail(problem.entry, ": workspace is not aligned, expected a multiple of ", kAlignment, " bytes");
  }
  Workspace workspace(memory);
  candidate.run(problem, workspace, call.executor);
}

}  // namespace mhla
