#include "mhla/kernels/common/problem.h"

#include <algorithm>
#include <cmath>

#include "mhla/core/cuda.h"
#include "mhla/core/error.h"

namespace mhla {
namespace {

std::string device_text(int device) { return device == kCpu ? std::string("cpu") : str("cuda:", device); }

// Whether there is such a device. Candidates need not ask again.
void check_device(int device, const char* entry) {
  if (device == kCpu) return;
  if (device < kCpu)
    fail(entry, ": q is on device ", device, ", expected ", kCpu, " for host memory or a CUDA ordinal");
  if (const std::string missing = cuda_missing(); !missing.empty())
    fail(entry, ": q is on ", device_text(device), ", but there is none: ", missing);
  if (device >= cuda_device_count())
    fail(entry, ": q is on ", device_text(device), ", expected a device below cuda:", cuda_device_count());
}

struct Checker {
  const char* entry;

  template <class V>
  void tensor(const V& view, const char* name, std::initializer_list<std::int64_t> shape, DType dtype,
              int device) const {
    const std::vector<std::int64_t> want(shape);
    const std::vector<std::int64_t> got(view.shape.begin(), view.shape.begin() + view.rank);
    if (!view.given()) fail(entry, ": ", name, " is not given, expected shape ", shape_text(want));
    for (const std::int64_t size : got) {
      if (size < 0) fail(entry, ": ", name, " has shape ", shape_text(got), " with a negative size");
    }
    if (got != want) fail(entry, ": ", name, " has shape ", shape_text(got), ", expected ", shape_text(want));
    if (view.dtype != dtype) fail(entry, ": ", name, " has dtype ", name_of(view.dtype), ", expected ", name_of(dtype));
    if (view.device != device) {
      fail(entry, ": ", name, " is on ", device_text(view.device), ", expected ", device_text(device), " like q");
    }
    memory(view, name);
  }

  template <class V>
  void memory(const V& view, const char* name) const {
    std::int64_t total = 1;
    bool empty = false;
    for (int axis = 0; axis < view.rank; ++axis) {
      const std::int64_t size = view.shape[axis];
      empty = empty || size == 0;
      if (__builtin_mul_overflow(total, std::max<std::int64_t>(size, 1), &total) || total > (INT64_MAX >> 4)) {
        fail(entry, ": ", name, " has shape ", shape_text(ConstView(view)), ", whose number of bytes overflows");
      }
    }
    if (empty) return;
    std::int64_t reach = 0;
    for (int axis = 0; axis < view.rank; ++axis) {
      std::int64_t step = 0;
      if (__builtin_mul_overflow(view.shape[axis] - 1, view.stride[axis], &step) ||
          __builtin_add_overflow(reach, std::abs(step), &reach) || reach > (INT64_MAX >> 4)) {
        fail(entry, ": ", name, " has stride ", view.stride[axis], " on axis ", axis, ", whose offsets overflow");
      }
    }
    if (view.data == nullptr)
      fail(entry, ": ", name, " has null data, expected ", shape_text(ConstView(view)), " elements");
    const int last = view.rank - 1;
    if (view.shape[last] > 1 && view.stride[last] != 1) {
      fail(entry, ": ", name, " has last stride ", view.stride[last], ", expected 1");
    }
  }

  // Outputs may be strided but no two elements may share memory: sorted by stride, each axis must step over the one
  // below.
  void output(const View& view, const char* name, std::initializer_list<std::int64_t> shape, DType dtype,
              int device) const {
    tensor(view, name, shape, dtype, device);
    std::vector<std::pair<std::int64_t, std::int64_t>> axes;  // |stride|, size
    for (int axis = 0; axis < view.rank; ++axis) {
      if (view.shape[axis] == 0) return;
      if (view.shape[axis] > 1) axes.emplace_back(std::abs(view.stride[axis]), view.shape[axis]);
    }
    std::sort(axes.begin(), axes.end());
    std::int64_t span = 1;
    for (const auto& [stride, size] : axes) {
      if (stride < span)
        fail(entry, ": ", name, " overlaps itself (stride ", stride, " inside a span of ", span, " elements)");
      span = stride * (size - 1) + span;
    }
  }
};

void check_mix(Problem& p, const Checker& check, DType mix_dtype) {
  const ConstView given = p.mix;
  if (given.rank != 2 && given.rank != 3) {
    fail(p.entry, ": mix has shape ", shape_text(given), ", expected [M, M] or [H, M, M]");
  }
  if (given.rank == 2) {
    p.mix.rank = 3;
    p.mix.shape = {1, given.shape[0], given.shape[1]};
    p.mix.stride = {0, given.stride[0], given.stride[1]};
  }
  p.Hm = p.mix.shape[0];
  p.L = p.mix.shape[1];
  const bool grows = p.layout.rank == 1;
  const bool square = p.mix.shape[1] == p.mix.shape[2];
  const bool heads = given.rank == 2 || p.Hm == p.H;
  const bool large = grows ? (p.L >= p.M || (p.extend && p.L >= 1)) : p.L == p.M;
  if (!square || !heads || !large) {
    const std::int64_t want = p.extend ? 1 : p.M;
    std::vector<std::int64_t> expected;
    if (given.rank == 3) expected.push_back(p.H);
    expected.insert(expected.end(), {want, want});
    fail(p.entry, ": mix has shape ", shape_text(given), ", expected ", grows ? "at least " : "", shape_text(expected),
         " (N = ", p.N, p.layout.rank == 1 ? str(", C = ", p.layout.block_size) : str(", ", describe(p.layout)), ")");
  }
  check.tensor(p.mix, "mix", {p.Hm, p.L, p.L}, mix_dtype, p.q.device);
  if (p.dmix.given()) {
    if (p.dmix.rank == 2) {
      p.dmix.rank = 3;
      p.dmix.shape = {1, p.dmix.shape[0], p.dmix.shape[1]};
      p.dmix.stride = {p.dmix.stride[0] * std::max<std::int64_t>(1, p.dmix.shape[1]), p.dmix.stride[0],
                       p.dmix.stride[1]};
    }
    check.output(p.dmix, "dmix", {p.Hm, p.L, p.L}, mix_dtype, p.q.device);
  }
}

std::int64_t cu_value(const ConstView& cu, std::int64_t index) {
  return cu.dtype == DType::kI32 ? data_as<std::int32_t>(cu)[index * cu.stride[0]]
                                 : data_as<std::int64_t>(cu)[index * cu.stride[0]];
}

void find_sequences(Problem& p) {
  p.sequences.clear();
  if (!p.maybe_cu_seqlens.given()) {
    for (std::int64_t b = 0; b < p.B && p.N > 0; ++b) p.sequences.push_back({b, 0, p.N});
    return;
  }
  const ConstView& cu = p.maybe_cu_seqlens;
  if (cu.dtype != DType::kI32 && cu.dtype != DType::kI64)
    fail(p.entry, ": cu_seqlens has dtype ", name_of(cu.dtype), ", expected i32 or i64");
  if (cu.rank != 1 || cu.shape[0] < 1)
    fail(p.entry, ": cu_seqlens has shape ", shape_text(cu), ", expected [S + 1] with S >= 0");
  if (cu.data == nullptr) fail(p.entry, ": cu_seqlens has null data, expected ", cu.shape[0], " values");
  if (cu.device != kCpu) fail(p.entry, ": cu_seqlens is on ", device_text(cu.device), ", expected host memory");
  if (p.B != 1) fail(p.entry, ": B is ", p.B, ", expected 1 with cu_seqlens");
  if (p.layout.rank != 1) fail(p.entry, ": cu_seqlens with a ", p.layout.rank, "D layout, expected a 1D layout");
  if (cu_value(cu, 0) != 0) fail(p.entry, ": cu_seqlens starts at ", cu_value(cu, 0), ", expected 0");
  for (std::int64_t s = 0; s + 1 < cu.shape[0]; ++s) {
    const std::int64_t begin = cu_value(cu, s), end = cu_value(cu, s + 1);
    if (end < begin) fail(p.entry, ": cu_seqlens decreases from ", begin, " to ", end, " at index ", s + 1);
    if (end > p.N) break;
    p.sequences.push_back({0, begin, end - begin});
  }
  const std::int64_t last = cu_value(cu, cu.shape[0] - 1);
  if (last != p.N) fail(p.entry, ": cu_seqlens ends at ", last, ", expected N = ", p.N);
}

// The local blocks and the number of their tokens.
void check_part(const Problem& p) {
  const Part& part = p.part;
  if (part.first < 0 || part.blocks < 0 || part.blocks > p.M || part.first > p.M - part.blocks) {
    fail(p.entry, ": blocks ", part.first, " to ", part.first + part.blocks, " are asked for, expected blocks of 0 to ",
         p.M);
  }
  const BlockMap map(p.layout, part.tokens);
  std::int64_t tokens = 0;
  for (std::int64_t b = part.first; b < part.first + part.blocks; ++b) tokens += map.size(b);
  if (tokens != p.N) {
    fail(p.entry, ": q has ", p.N, " tokens, expected ", tokens, ", those of blocks ", part.first, " to ",
         part.first + part.blocks, " of ", p.M);
  }
}

void check_part_tensors(const Problem& p, const Checker& check) {
  const Part& part = p.part;
  const std::int64_t X = p.summary_size();
  const DType dtype = p.mix.dtype;
  const auto dense = [&](const auto& view, const char* name) {
    if (!view.contiguous()) fail(p.entry, ": ", name, " is not contiguous");
  };
  const bool terms = p.causal && p.normalized();
  if (part.phase == Phase::kSummaries) {
    check.output(part.own, "summaries", {part.blocks, p.B, p.Hkv, X}, dtype, p.q.device);
    dense(part.own, "summaries");
    return;
  }
  const bool keys = part.phase == Phase::kKeys;
  const char* gathered = keys ? "dP" : "summaries";
  check.tensor(part.gathered, gathered, {p.M, p.B, keys ? p.gradient_heads() : p.Hkv, X}, dtype, p.q.device);
  dense(part.gathered, gathered);
  if (part.phase == Phase::kQueries) {
    check.output(part.own, "dP", {part.blocks, p.B, p.gradient_heads(), X}, dtype, p.q.device);
    dense(part.own, "dP");
    if (terms) check.output(part.own_terms, "terms", {p.B, p.N, p.H, 2}, dtype, p.q.device);
    if (terms) dense(part.own_terms, "terms");
  }
  if (keys && terms) {
    check.tensor(part.terms, "terms", {p.B, p.N, p.H, 2}, dtype, p.q.device);
    dense(part.terms, "terms");
  }
}

}  // namespace

std::string Problem::describe() const {
  return str(name_of(dtype()), " B=", B, " N=", N, " H=", H, " Hkv=", Hkv, " D=", D, " E=", E, " M=", M, " on ",
             device_text(q.device));
}

void check_problem(Problem& p) {
  const Checker check{p.entry};
  if (p.q.rank != 4) fail(p.entry, ": q has shape ", shape_text(p.q), ", expected [B, N, H, D]");
  if (p.v.rank != 4) fail(p.entry, ": v has shape ", shape_text(p.v), ", expected [B, N, Hkv, E]");
  if (p.k.rank != 4) fail(p.entry, ": k has shape ", shape_text(p.k), ", expected [B, N, Hkv, D]");
  p.B = p.q.shape[0], p.N = p.q.shape[1], p.H = p.q.shape[2], p.D = p.q.shape[3];
  p.Hkv = p.k.shape[2], p.E = p.v.shape[3];
  check_device(p.q.device, p.entry);
  if (!is_float(p.q.dtype)) fail(p.entry, ": q has dtype ", name_of(p.q.dtype), ", expected f32, bf16, f16 or f64");
  for (const auto& [size, name] : {std::pair{p.B, "B"}, {p.N, "N"}}) {
    if (size < 0) fail(p.entry, ": ", name, " is ", size, ", expected at least 0");
  }
  for (const auto& [size, name] : {std::pair{p.H, "H"}, {p.Hkv, "Hkv"}, {p.D, "D"}, {p.E, "E"}}) {
    if (size < 1) fail(p.entry, ": ", name, " is ", size, ", expected at least 1");
  }
  if (p.H % p.Hkv != 0) fail(p.entry, ": k has ", p.Hkv, " heads, expected a divisor of H = ", p.H);
  const DType dtype = p.q.dtype;
  const int device = p.q.device;
  check.tensor(p.q, "q", {p.B, p.N, p.H, p.D}, dtype, device);
  check.tensor(p.k, "k", {p.B, p.N, p.Hkv, p.D}, dtype, device);
  check.tensor(p.v, "v", {p.B, p.N, p.Hkv, p.E}, dtype, device);
  if (p.maybe_q_den.given() != p.maybe_k_den.given()) {
    fail(p.entry, ": only ", p.maybe_q_den.given() ? "q_den" : "k_den", " is given, expected q_den and k_den together");
  }
  if (p.has_den()) {
    if (!p.normalized())
      fail(p.entry, ": q_den and k_den are given with normalizer none, expected paper", p.causal ? "" : " or official");
    check.tensor(p.maybe_q_den, "q_den", {p.B, p.N, p.H, p.D}, dtype, device);
    check.tensor(p.maybe_k_den, "k_den", {p.B, p.N, p.Hkv, p.D}, dtype, device);
  }
  if (!std::isfinite(p.eps)) fail(p.entry, ": eps is ", p.eps, ", expected a finite number");
  if (!std::isfinite(p.scale)) fail(p.entry, ": scale is ", p.scale, ", expected a finite number");
  if (p.causal && p.layout.block_size < 1) fail(p.entry, ": chunk is ", p.layout.block_size, ", expected at least 1");
  const std::int64_t whole = p.part.given() ? p.part.tokens : p.N;
  check_layout(p.layout, whole, p.entry);
  find_sequences(p);
  p.M = p.C = 0;
  const auto measure = [&p](std::int64_t length) {
    const BlockMap map(p.layout, length);
    p.M = std::max(p.M, map.blocks());
    p.C = std::max(p.C, map.largest());
  };
  if (!p.maybe_cu_seqlens.given()) measure(whole);  // an empty batch needs the same mix as a full one
  for (const Sequence& s : p.sequences) measure(p.part.given() ? whole : s.length);
  if (p.part.given()) check_part(p);
  if (p.normalizer == Normalizer::kOfficial) {
    if (p.causal) fail(p.entry, ": normalizer is official, expected none or paper in the causal form");
    for (const Sequence& s : p.sequences) {
      const BlockMap map(p.layout, s.length);
      if (!map.equal_blocks()) {
        fail(p.entry, ": normalizer official needs blocks of equal size, got ", describe(p.layout), " over ", s.length,
             " tokens");
      }
    }
  }
  check_mix(p, check, dtype == DType::kF64 ? DType::kF64 : DType::kF32);
  if (p.part.given()) check_part_tensors(p, check);
  if (p.part.phase == Phase::kSummaries) return;
  if (!p.backward) {
    check.output(p.out, "out", {p.B, p.N, p.H, p.E}, dtype, device);
    return;
  }
  check.tensor(p.dout, "dout", {p.B, p.N, p.H, p.E}, dtype, device);
  if (p.dq.given()) check.output(p.dq, "dq", {p.B, p.N, p.H, p.D}, dtype, device);
  if (p.dk.given()) check.output(p.dk, "dk", {p.B, p.N, p.Hkv, p.D}, dtype, device);
  if (p.dv.given()) check.output(p.dv, "dv", {p.B, p.N, p.Hkv, p.E}, dtype, device);
  if (!p.has_den() && (p.maybe_dq_den.given() || p.maybe_dk_den.given()))
    fail(p.entry, ": dq_den or dk_den is given without q_den and k_den");
  if (p.maybe_dq_den.given()) check.output(p.maybe_dq_den, "dq_den", {p.B, p.N, p.H, p.D}, dtype, device);
  if (p.maybe_dk_den.given()) check.output(p.maybe_dk_den, "dk_den", {p.B, p.N, p.Hkv, p.D}, dtype, device);
}

void refuse_without_cuda(const Problem& problem, const char* candidate) {
  fail(problem.entry, ": candidate ", candidate, ": built without CUDA");
}

}  // namespace mhla
