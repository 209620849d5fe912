// Runs a chosen candidate: sizes its workspace by a counting run, then carves it from the caller's
// memory or from an allocation of the call. Shared by the entry points of the forms. For tensors on a CUDA device the
// memory is that device's, allocated and freed in the order of the problem's stream, and the device is the current
// one while the candidate runs.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "mhla/core/threads.h"
#include "mhla/core/view.h"
#include "mhla/kernels/common/options.h"
#include "mhla/kernels/common/problem.h"
// problem.h first: candidate.h names Executor
#include "mhla/kernels/common/candidate.h"

namespace mhla {

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

// Runs `work` twice: over a counting workspace, then over one carved from the caller's memory or from an allocation of
// the call. The device is the current one meanwhile. Errors open with `entry`.
using Work = std::function<void(Workspace&, Executor&)>;
void run_in_workspace(const char* entry, int device, const RunOptions& run, const Work& work);
std::int64_t count_workspace(int device, const RunOptions& run, const Work& work);

// A checked problem through its list: the whole call, or the bytes of scratch memory that it will use.
void run_call(std::span<const Candidate<Problem>> list, const Problem& problem, const RunOptions& run);
std::int64_t workspace_of(std::span<const Candidate<Problem>> list, const Problem& problem, const RunOptions& run);
// Bytes that a forward problem keeps for backward: at most as many as q, k, v and out have, else none.
std::int64_t kept_of(std::span<const Candidate<Problem>> list, const Problem& problem, const RunOptions& run);

// What the params and gradients of every form have in common.
template <class Params>
Problem problem_from(const Params& params, const char* entry, const RunOptions& run) {
  Problem p;
  p.entry = entry;
  p.stream = run.stream;
  p.q = params.q, p.k = params.k, p.v = params.v;
  p.maybe_q_den = params.maybe_q_den, p.maybe_k_den = params.maybe_k_den;
  p.mix = params.mix;
  p.maybe_cu_seqlens = params.maybe_cu_seqlens;
  p.feature_map = params.feature_map;
  p.normalizer = params.normalizer;
  p.eps = params.eps;
  return p;
}

template <class Grads>
void set_gradients(const Grads& grads, Problem& p) {
  p.backward = true;
  p.dout = grads.dout;
  p.dq = grads.dq, p.dk = grads.dk, p.dv = grads.dv, p.dmix = grads.dmix;
  p.maybe_dq_den = grads.maybe_dq_den, p.maybe_dk_den = grads.maybe_dk_den;
}

}  // namespace mhla
