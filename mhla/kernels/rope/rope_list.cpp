// The entry points: check once, choose from the ordered list, run.
#include "mhla/core/cuda.h"
#include "mhla/core/error.h"
#include "mhla/core/threads.h"
#include "mhla/kernels/rope/rope_problem.h"

namespace mhla {
namespace {

std::string place_of(int device) { return device == kCpu ? std::string("the CPU") : str("cuda:", device); }

std::string fit_cuda(const RopeProblem& p) {
  if (!cuda_built()) return "built without CUDA";
  if (p.device == kCpu) return "memory is on the CPU";
  return p.is_f64() ? "dtype f64" : "";
}
std::string fit_simd(const RopeProblem& p) {
  if (p.device != kCpu) return str("memory is on ", place_of(p.device));
  return p.is_f64() ? "dtype f64" : "";
}
std::string fit_ref(const RopeProblem& p) {
  return p.device == kCpu ? std::string() : str("memory is on ", place_of(p.device));
}

constexpr Candidate<RopeProblem> kList[] = {
    {"cuda", fit_cuda, rope_cuda},
    {"simd", fit_simd, rope_simd},
    {"ref", fit_ref, rope_ref},  // the definition: by name, and for f64
};

void expect_dense(const ConstView& view, const char* entry, const char* name) {
  const auto last = static_cast<std::size_t>(view.rank - 1);
  if (view.shape[last] > 1 && view.stride[last] != 1)
    fail(entry, ": ", name, " has last stride ", view.stride[last], ", expected 1");
}

void expect_like(const ConstView& view, const ConstView& like, const char* entry, const char* name,
                 const char* like_name) {
  if (view.dtype != like.dtype)
    fail(entry, ": ", name, " is ", name_of(view.dtype), ", expected ", name_of(like.dtype), " like ", like_name);
  if (view.device != like.device)
    fail(entry, ": ", name, " is on ", place_of(view.device), ", expected ", place_of(like.device), " like ",
         like_name);
  expect_dense(view, entry, name);
}

void expect_same(const ConstView& view, const ConstView& like, const char* entry, const char* name,
                 const char* like_name) {
  bool same = view.rank == like.rank;
  for (std::size_t axis = 0; same && axis < static_cast<std::size_t>(like.rank); ++axis)
    same = view.shape[axis] == like.shape[axis];
  if (!same)
    fail(entry, ": ", name, " has shape ", shape_text(view), ", expected ", shape_text(like), " like ", like_name);
  expect_like(view, like, entry, name, like_name);
}

void expect_table(const ConstView& view, const ConstView& q, const char* entry, const char* name) {
  const std::int64_t B = q.shape[0], N = q.shape[1], pairs = q.shape[3] / 2;
  const bool shared = view.rank == 2 && view.shape[0] == N && view.shape[1] == pairs;
  const bool own = view.rank == 3 && view.shape[0] == B && view.shape[1] == N && view.shape[2] == pairs;
  if (!shared && !own)
    fail(entry, ": ", name, " has shape ", shape_text(view), ", expected [", N, ", ", pairs, "] or [", B, ", ", N, ", ",
         pairs, "]");
  const DType dtype = q.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  if (view.dtype != dtype)
    fail(entry, ": ", name, " is ", name_of(view.dtype), ", expected ", name_of(dtype), " beside q in ",
         name_of(q.dtype));
  if (view.device != q.device)
    fail(entry, ": ", name, " is on ", place_of(view.device), ", expected ", place_of(q.device), " like q");
  expect_dense(view, entry, name);
}

// q and k, or what stands for them.
void expect_heads(const ConstView& q, const ConstView& k, const char* entry, const char* q_name, const char* k_name) {
  if (q.rank != 4) fail(entry, ": ", q_name, " has shape ", shape_text(q), ", expected [B, N, H, D]");
  if (!is_float(q.dtype)) fail(entry, ": ", q_name, " is ", name_of(q.dtype), ", expected f32, bf16, f16 or f64");
  if (q.shape[3] % 2 != 0) fail(entry, ": ", q_name, " has ", q.shape[3], " channels, expected an even number");
  expect_dense(q, entry, q_name);
  if (!k.given()) return;
  if (k.rank != 4 || k.shape[0] != q.shape[0] || k.shape[1] != q.shape[1] || k.shape[3] != q.shape[3])
    fail(entry, ": ", k_name, " has shape ", shape_text(k), ", expected [", q.shape[0], ", ", q.shape[1], ", Hkv, ",
         q.shape[3], "]");
  expect_like(k, q, entry, k_name, q_name);
}

// Axes of one element may have any stride.
template <class V>
RopeRows rows_of(const V& view, bool batched = true) {
  RopeRows rows;
  rows.data = const_cast<void*>(static_cast<const void*>(view.data));
  for (std::size_t axis = 0; axis + 1 < static_cast<std::size_t>(view.rank); ++axis)
    rows.stride[batched ? axis : axis + 1] = view.shape[axis] > 1 ? view.stride[axis] : 0;
  return rows;
}

bool on_16_bytes(const RopeRows& rows, DType dtype) {
  bool all = reinterpret_cast<std::uintptr_t>(rows.data) % 16 == 0;
  for (const std::int64_t stride : rows.stride) all = all && stride * size_of(dtype) % 16 == 0;
  return all;
}

RopeProblem problem_of(const RopeParams& p, const ConstView& q, const RunOptions& run) {
  RopeProblem problem;
  problem.cos = rows_of(p.cos, p.cos.rank == 3), problem.sin = rows_of(p.sin, p.sin.rank == 3);
  problem.B = q.shape[0], problem.N = q.shape[1], problem.D = q.shape[3];
  problem.dtype = q.dtype, problem.map = p.feature_map, problem.halves = p.halves;
  problem.device = q.device, problem.stream = run.stream;
  return problem;
}

void run_problem(RopeProblem& p, const RunOptions& run, const char* entry) {
  const auto& candidate = choose(kList, p, run.candidate, entry);
  if (p.B == 0 || p.N == 0 || p.D == 0 || p.heads() == 0) return;
  p.aligned =
      p.D / 2 * size_of(p.dtype) % 16 == 0 && on_16_bytes(p.cos, DType::kF32) && on_16_bytes(p.sin, DType::kF32);
  for (const RopePart& part : p.part) {
    if (part.heads == 0) continue;
    for (const RopeRows& rows : {part.from, part.to, part.slope}) p.aligned = p.aligned && on_16_bytes(rows, p.dtype);
  }
  const DeviceGuard guard(p.device);
  Workspace nothing;
  InlineExecutor launches;  // a call on a device starts no pool
  std::shared_ptr<Executor> own;
  if (run.maybe_executor == nullptr && p.device == kCpu) own = default_executor();
  Executor& executor = run.maybe_executor != nullptr ? *run.maybe_executor : own ? *own : launches;
  candidate.run(p, nothing, executor);
}

void check_inputs(const RopeParams& p, const char* entry) {
  expect_heads(p.q, p.maybe_k, entry, "q", "k");
  expect_table(p.cos, p.q, entry, "cos"), expect_table(p.sin, p.q, entry, "sin");
}

}  // namespace

std::string RopeProblem::describe() const { return str(name_of(dtype), " on ", place_of(device)); }

std::vector<std::string_view> rope_candidates() { return names_of(kList); }

void check_rope(const RopeParams& params) { check_inputs(params, "rope"); }

void rope(const RopeParams& p, const View& q_out, const View& maybe_k_out, const RunOptions& run) {
  constexpr const char* kEntry = "rope";
  check_inputs(p, kEntry);
  expect_same(q_out, p.q, kEntry, "q_out", "q");
  if (p.maybe_k.given() != maybe_k_out.given()) fail(kEntry, ": k and k_out go together");
  if (p.maybe_k.given()) expect_same(maybe_k_out, p.maybe_k, kEntry, "k_out", "k");
  RopeProblem problem = problem_of(p, p.q, run);
  problem.part[0] = {rows_of(p.q), rows_of(q_out), {}, p.q.shape[2]};
  if (p.maybe_k.given()) problem.part[1] = {rows_of(p.maybe_k), rows_of(maybe_k_out), {}, p.maybe_k.shape[2]};
  run_problem(problem, run, kEntry);
}

void rope_backward(const RopeParams& p, const RopeGrads& g, const RunOptions& run) {
  constexpr const char* kEntry = "rope_backward";
  expect_heads(g.dq_out, g.maybe_dk_out, kEntry, "dq_out", "dk_out");
  expect_table(p.cos, g.dq_out, kEntry, "cos"), expect_table(p.sin, g.dq_out, kEntry, "sin");
  expect_same(g.dq, g.dq_out, kEntry, "dq", "dq_out");
  const bool with_k = g.maybe_dk_out.given(), slopes = p.feature_map != FeatureMap::kIdentity;
  if (with_k != g.maybe_dk.given()) fail(kEntry, ": dk_out and dk go together");
  if (with_k) expect_same(g.maybe_dk, g.maybe_dk_out, kEntry, "dk", "dk_out");
  RopeProblem problem = problem_of(p, g.dq_out, run);
  problem.backward = true;
  problem.part[0] = {rows_of(g.dq_out), rows_of(g.dq), {}, g.dq_out.shape[2]};
  if (with_k) problem.part[1] = {rows_of(g.maybe_dk_out), rows_of(g.maybe_dk), {}, g.maybe_dk_out.shape[2]};
  if (slopes) {
    expect_same(p.q, g.dq_out, kEntry, "q", "dq_out");
    problem.part[0].slope = rows_of(p.q);
    if (with_k)
      expect_same(p.maybe_k, g.maybe_dk_out, kEntry, "k", "dk_out"), problem.part[1].slope = rows_of(p.maybe_k);
  }
  run_problem(problem, run, kEntry);
}

}  // namespace mhla
