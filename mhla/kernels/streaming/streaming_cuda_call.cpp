#include "mhla/kernels/streaming/streaming_cuda_call.h"

#include <map>
#include <mutex>
#include <utility>

#include "mhla/core/error.h"

namespace mhla::cuda {

using Impl = StreamingState::Impl;

PrefixLayout prefix_layout(const Impl& state) {
  const StreamingConfig& c = state.config;
  return PrefixLayout::of(c.dtype, c.D, c.E, state.normalized(), state.layout.stride());
}

StreamShape shape_of(const Impl& state) {
  const StreamingConfig& c = state.config;
  const auto small = [](std::int64_t value) { return static_cast<std::int32_t>(value); };
  const auto offset = [&](const std::byte* part) {
    return part == nullptr ? std::int64_t{0} : part - state.bytes().data();
  };
  StreamShape s;
  s.C = small(c.chunk), s.D = small(c.D), s.E = small(c.E), s.Hkv = small(c.Hkv), s.group = small(state.group());
  s.L = small(state.L), s.slots = small(state.slots), s.ring = small(state.ring);
  s.columns = small(state.layout.size());
  s.per_head = state.Hm > 1, s.extend = state.extend(), s.normalized = state.normalized(), s.has_den = c.den_features;
  s.feature_map = c.feature_map;
  s.eps = static_cast<float>(c.eps), s.scale = static_cast<float>(*c.scale);
  s.stride = state.layout.stride();
  s.layout = prefix_layout(state);
  s.mix = offset(state.mix), s.summaries = offset(state.summaries), s.sum = offset(state.sum);
  s.prefix[0] = offset(state.prefix[0]), s.prefix[1] = offset(state.prefix[1]);
  s.k = offset(state.k), s.v = offset(state.v), s.k_den = offset(state.k_den);
  return s;
}

StreamSequence sequence_of(const Impl& state, const StreamingCounters& at, std::int64_t T, std::int64_t piece,
                           std::int64_t index) {
  PieceRange range = piece_range(at.position, T, state.config.chunk, piece, index);
  if (!state.extend()) range.closed = std::clamp<std::int64_t>(state.L - 1 - range.first, 0, range.closed);
  StreamSequence s;
  s.state = state.bytes().data(), s.start = at.position;
  s.first = static_cast<std::int32_t>(range.first), s.chunks = static_cast<std::int32_t>(range.chunks);
  s.closed = static_cast<std::int32_t>(range.closed), s.open = at.open;
  s.base = s.next_base = static_cast<std::int32_t>(at.base);
  if (state.extend() && range.closed > 0) {
    const std::int64_t base = oldest_block(range.first + range.closed, state.L, state.back);
    s.next_base = static_cast<std::int32_t>(std::max(at.base, base));
  }
  return s;
}

DecodeSequence decode_sequence(const Impl& state) {
  const std::int64_t C = state.config.chunk, chunk = state.at.position / C;
  const auto small = [](std::int64_t value) { return static_cast<std::int32_t>(value); };
  return {state.bytes().data(), small(chunk), small(state.at.position - chunk * C), small(chunk * C % state.ring),
          state.at.open};
}

void expect_chunks(const Impl& state, std::int64_t T, std::int64_t number) {
  if ((state.at.position + T) / state.config.chunk >= kMostChunks)
    fail("streaming_append: state ", number, " would hold more than ", kMostChunks,
         " chunks, the most of candidate cuda");
}

CallNumber next_call(int device, void* stream) {
  static std::mutex mutex;
  static std::map<std::pair<int, void*>, std::uint64_t> last;
  static std::uint64_t count = 0;
  constexpr std::uintptr_t kPerThread = 2;  // cudaStreamPerThread
  const std::lock_guard lock(mutex);
  CallNumber call{.own = ++count};
  if (reinterpret_cast<std::uintptr_t>(stream) != kPerThread)
    call.before = std::exchange(last[{device, stream}], call.own);
  return call;
}

}  // namespace mhla::cuda
