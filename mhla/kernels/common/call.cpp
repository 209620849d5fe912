#include "mhla/kernels/common/call.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "mhla/core/cuda.h"
#include "mhla/core/error.h"

namespace mhla {
namespace {

bool empty(const Problem& p) { return p.B == 0 || p.N == 0; }

bool log_choices() {
  static const bool on = [] {
    const char* value = std::getenv("MHLA_LOG");
    return value != nullptr && *value != 0 && std::string_view(value) != "0";
  }();
  return on;
}

void set_zero(const View& x, std::int64_t offset, std::int64_t count, void* stream) {
  const std::int64_t size = size_of(x.dtype);
  auto* row = static_cast<std::byte*>(x.data) + offset * size;
  if (x.device == kCpu) {
    std::fill_n(row, count * size, std::byte{0});
  } else {
    device_fill(row, 0, count * size, x.device, stream);
  }
}

// A call without tokens: nothing to run, dmix is zeroed where wanted. True when that was all.
bool finish_empty(const Problem& p) {
  if (!empty(p)) return false;
  const View& dmix = p.dmix;
  if (!p.backward || !dmix.given()) return true;
  if (dmix.contiguous()) {
    set_zero(dmix, 0, dmix.numel(), p.stream);
    return true;
  }
  for (std::int64_t m = 0; m < p.Hm; ++m) {
    for (std::int64_t i = 0; i < p.L; ++i) set_zero(dmix, m * dmix.stride[0] + i * dmix.stride[1], p.L, p.stream);
  }
  return true;
}

// The candidate over the memory that is kept, which is counted or carved anew by every run. It must be as large as
// forward says: backward cannot tell what another forward pass has left. Candidate and problem outlive the result.
Work with_kept(const Candidate<Problem>& candidate, const Problem& problem, std::span<std::byte> kept) {
  return [&candidate, &problem, kept](Workspace& workspace, Executor& executor) {
    if (kept.empty()) return candidate.run(problem, workspace, executor);
    Workspace memory = workspace.counting() ? Workspace() : Workspace(kept);
    Problem keeping = problem;
    keeping.maybe_kept = &memory;
    candidate.run(keeping, workspace, executor);
    const bool ignored = problem.backward && memory.used() == 0;
    if (memory.used() != static_cast<std::int64_t>(kept.size()) && !ignored)
      fail(problem.entry, ": kept has ", kept.size(), " bytes, expected ", memory.used());
  };
}

// Bytes of q, k, v and out.
std::int64_t token_bytes(const Problem& p) {
  return (p.q.numel() + p.k.numel() + p.v.numel() + p.B * p.N * p.H * p.E) * size_of(p.dtype());
}

}  // namespace

const Candidate<Problem>& choose_candidate(std::span<const Candidate<Problem>> list, const Problem& problem,
                                           std::string_view name) {
  const Candidate<Problem>& chosen = choose(list, problem, name, problem.entry);
  if (!log_choices()) return chosen;
  std::string line = str("mhla: ", problem.entry, ": ", chosen.name, " runs ", problem.describe());
  for (const Candidate<Problem>& faster : list) {
    if (&faster == &chosen) break;
    line +=
        str("; ", faster.name, " steps aside: ", name.empty() ? faster.fit(problem) : "another is asked for by name");
  }
  std::fprintf(stderr, "%s\n", line.c_str());
  return chosen;
}

std::int64_t count_workspace(int device, const RunOptions& run, const Work& work) {
  const CallExecutor call(run, device);
  Workspace counting;
  work(counting, call.executor);
  return counting.used();
}

void run_in_workspace(const char* entry, int device, const RunOptions& run, const Work& work) {
  const DeviceGuard guard(device);
  const CallExecutor call(run, device);
  Workspace counting;
  work(counting, call.executor);
  const std::int64_t bytes = counting.used();
  std::span<std::byte> memory = run.workspace;
  AlignedBuffer owned;
  DeviceBuffer device_owned;
  if (memory.empty() && device != kCpu) {
    if (bytes > 0) device_owned = DeviceBuffer(bytes, device, run.stream);
    memory = device_owned.bytes();
  } else if (memory.empty()) {
    owned = AlignedBuffer::for_workspace(bytes);
    memory = owned.bytes();
  } else {
    if (static_cast<std::int64_t>(memory.size()) < bytes)
      fail(entry, ": workspace has ", memory.size(), " bytes, expected at least ", bytes);
    if (reinterpret_cast<std::uintptr_t>(memory.data()) % kAlignment != 0)
      fail(entry, ": workspace is not aligned, expected a multiple of ", kAlignment, " bytes");
  }
  Workspace workspace(memory);
  work(workspace, call.executor);
}

std::int64_t workspace_of(std::span<const Candidate<Problem>> list, const Problem& problem, const RunOptions& run) {
  const auto& candidate = choose(list, problem, run.candidate, problem.entry);
  if (empty(problem)) return 0;
  return count_workspace(problem.device(), run, with_kept(candidate, problem, run.kept));
}

std::int64_t kept_of(std::span<const Candidate<Problem>> list, const Problem& problem, const RunOptions& run) {
  const auto& candidate = choose(list, problem, run.candidate, problem.entry);
  if (empty(problem)) return 0;
  Workspace kept;
  Problem keeping = problem;
  keeping.maybe_kept = &kept;
  count_workspace(problem.device(), run,
                  [&](Workspace& workspace, Executor& executor) { candidate.run(keeping, workspace, executor); });
  return kept.used() <= token_bytes(problem) ? kept.used() : 0;
}

void run_call(std::span<const Candidate<Problem>> list, const Problem& problem, const RunOptions& run) {
  const auto& candidate = choose_candidate(list, problem, run.candidate);
  if (finish_empty(problem)) return;
  if (reinterpret_cast<std::uintptr_t>(run.kept.data()) % kAlignment != 0)
    fail(problem.entry, ": kept is not aligned, expected a multiple of ", kAlignment, " bytes");
  run_in_workspace(problem.entry, problem.device(), run, with_kept(candidate, problem, run.kept));
}

}  // namespace mhla
