#include "mhla/kernels/common/call.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "mhla/core/cuda.h"
#include "mhla/core/error.h"

namespace mhla {
namespace {

std::int64_t count(const Candidate<Problem>& candidate, const Problem& problem, Executor& executor) {
  Workspace counting;
  candidate.run(problem, counting, executor);
  return counting.used();
}

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

std::int64_t count_workspace(const Candidate<Problem>& candidate, const Problem& problem, const RunOptions& run) {
  if (empty(problem)) return 0;
  const CallExecutor call(run, problem.device());
  return count(candidate, problem, call.executor);
}

void run_candidate(const Candidate<Problem>& candidate, const Problem& problem, const RunOptions& run) {
  const DeviceGuard guard(problem.device());
  const CallExecutor call(run, problem.device());
  const std::int64_t bytes = count(candidate, problem, call.executor);
  std::span<std::byte> memory = run.workspace;
  AlignedBuffer owned;
  DeviceBuffer device_owned;
  if (memory.empty() && problem.device() != kCpu) {
    device_owned = DeviceBuffer(bytes, problem.device(), problem.stream);
    memory = device_owned.bytes();
  } else if (memory.empty()) {
    owned = AlignedBuffer::for_workspace(bytes);
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
