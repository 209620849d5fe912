// The causal form on CPU vectors, forward (README.md, eq. 1 to 4). A unit is one (sequence, kv head). With as many
// units as workers each unit is one task, its group of prefixes in the worker's cache; with fewer, the phases of a unit
// are cut into tasks. The bits are the same either way: every element is summed in an order that only the chunk fixes.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mhla/kernels/chunkwise/chunkwise_simd.cpp"
#include "hwy/foreach_target.h"
// foreach_target.h first: it includes this file once per instruction set
#include "mhla/core/error.h"
#include "mhla/kernels/chunkwise/chunkwise_candidates.h"
#include "mhla/kernels/chunkwise/chunkwise_simd-inl.h"
#include "mhla/kernels/common/schedule.h"
#include "mhla/kernels/common/simd/plain-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mhla {
namespace HWY_NAMESPACE {
namespace {

template <class T, class V>
auto* row_base(const V& x, const Sequence& sequence, std::int64_t head) {
  return data_as<T>(x) + sequence.batch * x.stride[0] + sequence.start * x.stride[1] + head * x.stride[2];
}

template <class T>
RowSource<T> source_of(const ConstView& x, const Sequence& sequence, std::int64_t head) {
  if (!x.given()) return {};
  return {row_base<T>(x, sequence, head), x.stride[1]};
}

template <class T>
void set_unit(const Problem& p, const Sequence& sequence, std::int64_t kv_head, CausalUnit<T>& unit) {
  unit.keys = {source_of<T>(p.k, sequence, kv_head), source_of<T>(p.v, sequence, kv_head),
               source_of<T>(p.maybe_k_den, sequence, kv_head), p.feature_map};
  unit.heads.clear(), unit.mixes.clear();
  for (std::int64_t h = kv_head * p.group(); h < (kv_head + 1) * p.group(); ++h) {
    unit.heads.push_back({source_of<T>(p.q, sequence, h), source_of<T>(p.maybe_q_den, sequence, h),
                          row_base<T>(p.out, sequence, h), p.out.stride[1]});
    unit.mixes.push_back(
        {data_as<float>(p.mix) + (p.Hm > 1 ? h : 0) * p.mix.stride[0], p.mix.stride[1], p.mix.stride[2], p.L});
  }
  unit.tokens = sequence.length;
  unit.first = p.part.first;
  unit.end = unit.first + (sequence.length + p.layout.block_size - 1) / p.layout.block_size;
}

// A phase of the forward for the local chunks (common/part.h): their summaries, or the output from all summaries, which
// goes on like a stream that is at chunk `first`.
template <class T>
void run_part(const Problem& p, const CausalSizes& s, const Sequence& sequence, std::int64_t kv_head, CausalUnit<T>& u,
              float* first_P, Executor& inner, CausalScratch* x) {
  const PanelRow row{s.D, s.E, s.z, s.normalized ? s.D : 0, s.size, /*transposed=*/false};
  const std::int64_t size = p.summary_size();
  const auto place = [&](std::int64_t b) { return ((b * p.B + sequence.batch) * p.Hkv + kv_head) * size; };
  if (p.part.phase == Phase::kSummaries) {
    inner.run(u.end - u.first, [&](std::int64_t b, int worker) HWY_ATTR {
      float* S = u.store.slot(u.first + b);
      float* z = s.normalized ? S + s.z : nullptr;
      if (z) set_zero(z, s.layout.z_size());
      NextRows none;
      chunk_summary(s, u.keys, b * s.C, HWY_MIN((b + 1) * s.C, u.tokens), S, z, x[worker], none);
      to_plain(row, S, data_as<float>(p.part.own) + place(b));
    });
    return;
  }
  inner.run(u.end - 1, [&](std::int64_t b, int)
                           HWY_ATTR { from_plain(row, data_as<float>(p.part.gathered) + place(b), u.store.slot(b)); });
  u.summarized = true;
  u.maybe_first_P = u.first > 0 ? first_P : nullptr;
  for (std::int64_t m = 0; m < u.prefixes && u.first > 0; ++m) {
    mix_row(u.store, u.mixes[static_cast<std::size_t>(m)], u.first, u.first, 0, s.size, first_P + m * s.stride);
  }
  run_chunks(s, u, inner, x);
}

template <class T>
void forward(const Problem& p, Workspace& workspace, Executor& executor) {
  const CausalSizes s =
      causal_sizes(p.D, p.E, p.layout.block_size, p.L, p.normalized(), p.has_den(), p.feature_map, p.eps, p.scale);
  const auto units = static_cast<std::int64_t>(p.sequences.size()) * p.Hkv;
  const int workers = executor.concurrency();
  const bool unit_tasks = units >= workers;
  const bool extended = p.M > p.L;
  const std::int64_t prefixes = p.Hm > 1 ? p.group() : 1;
  // 16 prefixes of 128 x 256 are 2 MiB. Summaries of all chunks before a group are read once per group.
  const std::int64_t group = HWY_MIN(p.M, HWY_MAX(4, (unit_tasks ? 16 : 64) / prefixes));
  const std::int64_t slots = p.part.given() ? p.M : HWY_MAX(1, HWY_MIN(p.M - 1, extended ? most_blocks(p.L, 1) : p.M));
  std::vector<float*> first_P;
  std::vector<CausalUnit<T>> unit(static_cast<std::size_t>(unit_tasks ? workers : 1));
  for (CausalUnit<T>& u : unit) {
    u.prefixes = prefixes;
    u.store.count = slots;
    u.store.slot_stride = s.stride;
    u.store.slots = workspace.take<float>(slots * s.stride, "summaries");
    if (extended) u.store.maybe_sum = workspace.take<float>(s.stride, "sum of old summaries");
    take_unit(workspace, s, group, p.M, extended, u);
    first_P.push_back(p.part.given() ? workspace.take<float>(prefixes * s.stride, "prefix of the first chunk")
                                     : nullptr);
  }
  std::vector<CausalScratch> scratch;
  for (int worker = 0; worker < workers; ++worker) {
    scratch.push_back(take_scratch(workspace, s, group_strip_size(p.M, p.L, group, 1)));
  }
  if (workspace.counting()) return;

  const auto run_unit = [&](std::int64_t index, CausalUnit<T>& u, Executor& inner, CausalScratch* x) HWY_ATTR {
    const Sequence& sequence = p.sequences[static_cast<std::size_t>(index / p.Hkv)];
    if (sequence.length == 0) return;
    set_unit(p, sequence, index % p.Hkv, u);
    u.store.base = 0;
    if (extended) set_zero(u.store.maybe_sum, s.size);
    if (p.part.given())
      run_part(p, s, sequence, index % p.Hkv, u, first_P[static_cast<std::size_t>(&u - unit.data())], inner, x);
    else
      run_chunks(s, u, inner, x);
  };
  if (unit_tasks) {
    executor.run(units, [&](std::int64_t index, int worker) HWY_ATTR {
      InlineExecutor inner;
      run_unit(index, unit[static_cast<std::size_t>(worker)], inner, &scratch[static_cast<std::size_t>(worker)]);
    });
  } else {
    for (std::int64_t index = 0; index < units; ++index) run_unit(index, unit[0], executor, scratch.data());
  }
}

void forward_any(const Problem& p, Workspace& workspace, Executor& executor) {
  switch (p.dtype()) {
    case DType::kBF16: return forward<bf16>(p, workspace, executor);
    case DType::kF16: return forward<f16>(p, workspace, executor);
    default: return forward<float>(p, workspace, executor);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace mhla
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mhla {

HWY_EXPORT(forward_any);

std::string chunkwise_fit_simd(const Problem& p) {
  if (p.q.device != kCpu) return str("memory is on cuda:", p.q.device);
  if (p.is_f64()) return "dtype f64";
  if (p.D > kMaxSimdHeadSize) return str("D = ", p.D, ", at most ", kMaxSimdHeadSize);
  if (p.E > kMaxSimdHeadSize) return str("E = ", p.E, ", at most ", kMaxSimdHeadSize);
  return "";
}

void chunkwise_forward_simd(const Problem& p, Workspace& workspace, Executor& executor) {
  HWY_DYNAMIC_DISPATCH(forward_any)(p, workspace, executor);
}

}  // namespace mhla
#endif
