// The candidates that smoke.cpp is built without: they step aside, so nothing calls their passes.
#include "mhla/core/error.h"
#include "mhla/kernels/bidirectional/bidirectional_candidates.h"
#include "mhla/kernels/chunkwise/chunkwise_candidates.h"

namespace mhla {

std::string bidirectional_fit_simd(const Problem& /*problem*/) { return "not in this program"; }
void bidirectional_forward_simd(const Problem& p, Workspace&, Executor&) { fail(p.entry, ": not in this program"); }
void bidirectional_backward_simd(const Problem& p, Workspace&, Executor&) { fail(p.entry, ": not in this program"); }
std::string chunkwise_fit_simd(const Problem& /*problem*/) { return "not in this program"; }
void chunkwise_forward_simd(const Problem& p, Workspace&, Executor&) { fail(p.entry, ": not in this program"); }
void chunkwise_backward_simd(const Problem& p, Workspace&, Executor&) { fail(p.entry, ": not in this program"); }

}  // namespace mhla
