// A call of the streaming form on CPU vectors. Few tokens go through streaming_decode-inl.h one by one, many through
// the chunks of chunkwise_simd-inl.h; both give the bits of one chunkwise pass. A unit is one kv head of one state;
// decode uses the stack only, so that it never allocates.
#include "mhla/kernels/streaming/streaming_head-inl.h"

#if defined(MHLA_KERNELS_STREAMING_STREAMING_APPEND_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHLA_KERNELS_STREAMING_STREAMING_APPEND_INL_H_
#undef MHLA_KERNELS_STREAMING_STREAMING_APPEND_INL_H_
#else
#define MHLA_KERNELS_STREAMING_STREAMING_APPEND_INL_H_
#endif

#include "mhla/kernels/common/schedule.h"

HWY_BEFORE_NAMESPACE();
namespace mhla {
namespace HWY_NAMESPACE {

// Calls of up to this many tokens read the prefix once per token instead of packing the open chunk.
constexpr std::int64_t kDecodeTokens = 3;
// Bytes a decode call reads at least before it is worth handing half of them to another thread.
constexpr std::int64_t kParallelBytes = std::int64_t{1} << 18;

inline CausalSizes sizes_of(const StreamingState::Impl& state) {
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
inline std::int64_t decode_bytes(const StreamingAppend& a, const CausalSizes& s) {
  const StreamingState::Impl& state = a.state(0);
  const StreamingConfig& c = state.config;
  const std::int64_t rows = c.Hkv * (c.D * size_of(state.key_dtype) + c.E * size_of(c.dtype));
  return a.B * a.T * (state.prefixes() * s.size * 4 + c.chunk / 2 * rows);
}

template <class Tk, class T>
void append(const StreamingAppend& a, Workspace& workspace, Executor& executor) {
  const StreamingState::Impl& any = a.state(0);
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
void rebuild(StreamingState::Impl& state, bool same_chunk) {
  const CausalSizes s = sizes_of(state);
  for (std::int64_t head = 0; head < state.config.Hkv; ++head) {
    StreamingHead<Tk, T> rebuilt(state, s, head);
    rebuilt.rebuild(same_chunk);
    if (head == 0) state.next = rebuilt.at;
  }
  state.at = state.next;
}

// The types of a state whose tokens are T: its keys are kept as they came, or as features in f32.
template <class T>
void append_of(const StreamingAppend& a, Workspace& workspace, Executor& executor) {
  const bool features = a.state(0).key_dtype != a.state(0).config.dtype;
  features ? append<float, T>(a, workspace, executor) : append<T, T>(a, workspace, executor);
}

template <class T>
void rebuild_of(StreamingState::Impl& state, bool same_chunk) {
  const bool features = state.key_dtype != state.config.dtype;
  features ? rebuild<float, T>(state, same_chunk) : rebuild<T, T>(state, same_chunk);
}

}  // namespace HWY_NAMESPACE
}  // namespace mhla
HWY_AFTER_NAMESPACE();

#endif
