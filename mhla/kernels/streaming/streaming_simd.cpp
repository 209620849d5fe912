// Streaming on CPU vectors. Few tokens go through streaming_decode-inl.h one by one, many through the chunks of
// chunkwise_simd-inl.h; both give the bits of one chunkwise pass. A unit is one kv head of one state; decode uses the
// stack only, so that it never allocates.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mhla/kernels/streaming/streaming_simd.cpp"
#include "hwy/foreach_target.h"
// foreach_target.h first: it includes this file once per instruction set
#include "mhla/core/error.h"
#include "mhla/kernels/common/schedule.h"
#include "mhla/kernels/streaming/streaming_head-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mhla {
namespace HWY_NAMESPACE {
namespace {

using Impl = StreamingState::Impl;

// Calls of up to this many tokens read the prefix once per token instead of packing the open chunk.
constexpr std::int64_t kDecodeTokens = 3;
// Bytes a decode call reads at least before it is worth handing half of them to another thread.
constexpr std::int64_t kParallelBytes = std::int64_t{1} << 18;

CausalSizes sizes_of(const Impl& state) {
  const StreamingConfig& c = state.config;
  return causal_sizes(c.D, c.E, c.chunk, state.L, state.normalized(), c.den_features, c.feature_map, c.eps, *c.scale);
}

// f(unit) for every unit. A worker takes a run of neighbours, the same run in every call as long as it is not late:
// what it read for the last token is still in its cache.
template <class F>
void for_each_unit(Executor& executor, std::int64_t units, bool parallel, F&& f) {
  const std::int64_t parts = parallel ? HWY_MIN(units, executor.concurrency()) : 1;
  const auto part = [&](std::int64_t p, int) HWY_ATTR {
    for (std::int64_t unit = p * units / parts; unit < (p + 1) * units / parts; ++unit) f(unit);
  };
  if (parts > 1) {
    executor.run(parts, part);
  } else {
    part(0, 0);
  }
}

// Bytes that a decode call reads: prefixes, and half a chunk of keys and values.
std::int64_t decode_bytes(const StreamingAppend& a, const CausalSizes& s) {
  const Impl& state = a.state(0);
  const StreamingConfig& c = state.config;
  const std::int64_t rows = c.Hkv * (c.D * size_of(state.key_dtype) + c.E * size_of(c.dtype));
  return a.B * a.T * (state.prefixes() * s.size * 4 + c.chunk / 2 * rows);
}

template <class Tk, class T>
void append(const StreamingAppend& a, Workspace& workspace, Executor& executor) {
  const Impl& any = a.state(0);
  const CausalSizes s = sizes_of(any);
  const std::int64_t Hkv = any.config.Hkv, units = a.B * Hkv;
  const int workers = executor.concurrency();
  // Heads of one state start from the same counters; head 0 says where the state stands afterwards.
  const auto finish = [&](const StreamingHead<Tk, T>& head, std::int64_t unit) {
    if (unit % Hkv == 0) a.state(unit / Hkv).next = head.at;
  };
  if (a.T <= kDecodeTokens) {
    if (workspace.counting()) return;
    const bool parallel = decode_bytes(a, s) >= kParallelBytes;
    for_each_unit(executor, units, parallel, [&](std::int64_t unit) HWY_ATTR {
      StreamingHead<Tk, T> head(a.state(unit / Hkv), s, unit % Hkv);
      head.decode(a, unit / Hkv);
      finish(head, unit);
    });
  } else {
    const bool unit_tasks = units >= workers;
    const std::int64_t prefixes = any.Hm > 1 ? any.group() : 1, chunks = a.T / s.C;
    const std::int64_t group = HWY_MIN(chunks, HWY_MAX(4, (unit_tasks ? 16 : 64) / prefixes));
    std::int64_t longest = 0;  // chunks that any state has seen after the call
    for (std::int64_t b = 0; b < a.B; ++b) longest = HWY_MAX(longest, (a.state(b).at.position + a.T) / s.C + 1);
    std::vector<CausalUnit<T>> unit_memory(static_cast<std::size_t>(unit_tasks ? workers : 1));
    for (CausalUnit<T>& unit : unit_memory) {
      unit.prefixes = prefixes;
      if (chunks > 0) take_unit(workspace, s, group, longest, any.extend(), unit);
    }
    std::vector<CausalScratch> scratch;
    for (int worker = 0; worker < workers; ++worker) {
      scratch.push_back(take_scratch(workspace, s, chunks > 0 ? group_strip_size(longest, s.L, group, any.back) : 0));
    }
    if (workspace.counting()) return;
    const auto run_unit = [&](std::int64_t unit, CausalUnit<T>& memory, Executor& inner, CausalScratch* x) HWY_ATTR {
      StreamingHead<Tk, T> head(a.state(unit / Hkv), s, unit % Hkv);
      head.append(a, unit / Hkv, memory, inner, x);
      finish(head, unit);
    };
    if (unit_tasks) {
      executor.run(units, [&](std::int64_t unit, int worker) HWY_ATTR {
        InlineExecutor inner;
        run_unit(unit, unit_memory[static_cast<std::size_t>(worker)], inner,
                 &scratch[static_cast<std::size_t>(worker)]);
      });
    } else {
      for (std::int64_t unit = 0; unit < units; ++unit) run_unit(unit, unit_memory[0], executor, scratch.data());
    }
  }
  for (std::int64_t b = 0; b < a.B; ++b) a.state(b).at = a.state(b).next;
}

template <class Tk, class T>
void rebuild(Impl& state, bool same_chunk) {
  const CausalSizes s = sizes_of(state);
  for (std::int64_t head = 0; head < state.config.Hkv; ++head) {
    StreamingHead<Tk, T> rebuilt(state, s, head);
    rebuilt.rebuild(same_chunk);
    if (head == 0) state.next = rebuilt.at;
  }
  state.at = state.next;
}

// f<Tk, T>() for the types of a state.
template <class F>
void with_types(const Impl& state, F&& f) {
  const bool features = state.key_dtype != state.config.dtype;
  switch (state.config.dtype) {
    case DType::kBF16: return features ? f(float{}, bf16{}) : f(bf16{}, bf16{});
    case DType::kF16: return features ? f(float{}, f16{}) : f(f16{}, f16{});
    default: return f(float{}, float{});
  }
}

void append_any(const StreamingAppend& a, Workspace& workspace, Executor& executor) {
  with_types(a.state(0),
             [&](auto key, auto value) HWY_ATTR { append<decltype(key), decltype(value)>(a, workspace, executor); });
}

void rebuild_any(Impl& state, bool same_chunk) {
  with_types(state, [&](auto key, auto value) HWY_ATTR { rebuild<decltype(key), decltype(value)>(state, same_chunk); });
}

std::int64_t lanes_any() { return kLanes; }
const char* target_any() { return hwy::TargetName(HWY_TARGET); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace mhla
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mhla {
namespace {

HWY_EXPORT(append_any);
HWY_EXPORT(rebuild_any);
HWY_EXPORT(lanes_any);
HWY_EXPORT(target_any);

std::string fit_simd(const StreamingConfig& c) {
  if (c.dtype == DType::kF64) return "dtype f64";
  if (c.D > kMaxSimdHeadSize) return str("D = ", c.D, ", at most ", kMaxSimdHeadSize);
  if (c.E > kMaxSimdHeadSize) return str("E = ", c.E, ", at most ", kMaxSimdHeadSize);
  return "";
}

}  // namespace

const StreamingCandidate kStreamingSimd = {
    .name = "simd",
    .on_device = false,
    .fit = fit_simd,
    .element = DType::kF32,
    .keeps_features = true,
    .extra_slots = 0,
    .lanes = [] { return HWY_DYNAMIC_DISPATCH(lanes_any)(); },
    .instruction_set = [] { return std::string(HWY_DYNAMIC_DISPATCH(target_any)()); },
    .append =
        [](const StreamingAppend& a, Workspace& w, Executor& e) {
          HWY_DYNAMIC_DISPATCH(append_any)
          (a, w, e);
        },
    .rebuild =
        [](StreamingState::Impl& s, bool same_chunk) {
          HWY_DYNAMIC_DISPATCH(rebuild_any)
          (s, same_chunk);
        },
};

}  // namespace mhla
#endif
