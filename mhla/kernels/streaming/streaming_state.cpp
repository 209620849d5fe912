// The memory of a streaming state: sizes, one allocation, copies. Everything is zeroed at construction, so that no page
// is touched for the first time while decoding, and a copy reads nothing that was never written.
#include "mhla/kernels/streaming/streaming_state.h"

#include <algorithm>
#include <cstring>

#include "mhla/core/error.h"

namespace mhla {
namespace {

using Impl = StreamingState::Impl;

// Carves the buffers; over a counting workspace: their size.
void carve(Impl& state, Workspace& w) {
  const StreamingConfig& c = state.config;
  const std::int64_t element = size_of(state.element), stride = state.layout.stride();
  const auto take = [&](std::initializer_list<std::int64_t> sizes, std::int64_t size, const char* name) {
    return w.take<std::byte>(checked_product(sizes, name) * size, name);
  };
  state.mix = take({state.Hm, state.L, state.L}, c.dtype == DType::kF64 ? 8 : 4, "mix");
  state.summaries = take({state.slots, c.Hkv, stride}, element, "summaries");
  if (state.extend()) state.sum = take({c.Hkv, stride}, element, "sum of old summaries");
  const std::int64_t prefix_bytes =
      state.candidate->prefix_bytes ? state.candidate->prefix_bytes(state) : stride * element;
  for (std::byte*& prefix : state.prefix) prefix = take({state.prefixes(), prefix_bytes}, 1, "prefix");
  if (state.layout.lanes > 0 && c.chunk > kChainTokens) state.part = take({c.Hkv, stride}, element, "open chain");
  if (state.normalized()) state.ksum = take({c.Hkv, state.ksum_stride()}, element, "running k");
  state.k = take({state.ring, c.Hkv, c.D}, size_of(state.key_dtype), "k");
  state.v = take({state.ring, c.Hkv, c.E}, size_of(c.dtype), "v");
  if (c.den_features) state.k_den = take({state.ring, c.Hkv, c.D}, size_of(state.key_dtype), "k_den");
}

}  // namespace

StreamingState::Impl::Impl(const StreamingConfig& checked, const StreamingCandidate& chosen, std::int64_t mix_heads,
                           std::int64_t mix_rows)
    : config(checked), candidate(&chosen), element(chosen.element), Hm(mix_heads), L(mix_rows) {
  const bool features = chosen.keeps_features && is_costly(config.feature_map);
  key_dtype = features ? DType::kF32 : config.dtype;
  key_map = features ? FeatureMap::kIdentity : config.feature_map;
  ring = config.chunk + *config.rollback;
  back = std::max<std::int64_t>(1, (*config.rollback + config.chunk - 1) / config.chunk);
  slots = extend() ? most_blocks(L, back) + chosen.extra_slots : std::max<std::int64_t>(1, L - 1);
  layout = {.D = config.D, .E = config.E, .lanes = chosen.lanes(), .normalized = normalized()};
  Workspace counting;
  carve(*this, counting);
  if (on_device()) {
    device_memory = DeviceBuffer(counting.used(), config.device);
    device_fill(device_memory.data(), 0, device_memory.size(), config.device);
    device_synchronize(config.device);  // the first call may come on any stream
    at.stale = true;
  } else {
    memory = AlignedBuffer::for_workspace(counting.used());
    std::memset(memory.bytes().data(), 0, memory.bytes().size());
  }
  Workspace real(bytes());
  carve(*this, real);
}

StreamingState::Impl::~Impl() {
  if (device_memory.data() == nullptr) return;
  try {  // calls may still be under way, on whatever stream
    device_wait(config.device);
  } catch (const Error&) {  // the device has failed: nobody uses its memory any more
  }
}

std::int64_t StreamingState::Impl::blocks_kept() const {
  return std::min(slots, (extend() ? at.furthest : at.position) / config.chunk);
}

void StreamingState::Impl::copy_from(const Impl& other) {
  // Summaries of chunks that have not come yet are the largest part and hold nothing.
  const auto begin = static_cast<std::size_t>(summaries - bytes().data());
  const std::int64_t per_slot = config.Hkv * layout.stride() * size_of(element);
  const std::int64_t used = std::min(slots, other.at.position / config.chunk + 1);
  const auto kept = begin + static_cast<std::size_t>((other.extend() ? slots : used) * per_slot);
  const auto end = begin + static_cast<std::size_t>(slots * per_slot);
  const std::byte* from = other.bytes().data();
  std::byte* to = bytes().data();
  if (on_device()) {
    device_wait(config.device);
    device_copy(to, from, static_cast<std::int64_t>(kept), config.device);
    device_copy(to + end, from + end, static_cast<std::int64_t>(bytes().size() - end), config.device);
    device_synchronize(config.device);
    last_call = 0;
  } else {
    std::memcpy(to, from, kept);
    std::memcpy(to + end, from + end, bytes().size() - end);
  }
  at = other.at;
}

void StreamingState::Impl::clear() {
  at = {};
  if (sum && !on_device())
    std::memset(sum, 0, static_cast<std::size_t>(config.Hkv * layout.stride() * size_of(element)));
  candidate->rebuild(*this, /*same_chunk=*/false);
}

}  // namespace mhla
