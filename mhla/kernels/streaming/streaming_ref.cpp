// The definition of streaming: plain loops in f64, token by token, in the order of chunkwise_ref.cpp, so that the two
// agree bit for bit. Rows of summaries are plain [D][E], every token is folded at once.
#include <algorithm>

#include "mhla/kernels/common/problem.h"
#include "mhla/kernels/common/reference.h"
#include "mhla/kernels/streaming/streaming_state.h"

namespace mhla {
namespace {

using Impl = StreamingState::Impl;
using reference::Array;
using reference::zeros;

class RefHead {
 public:
  RefHead(Impl& state, std::int64_t kv_head) : at(state.at), state_(state), c_(state.config), head_(kv_head) {}

  StreamingCounters at;

  void append(const StreamingAppend& a, std::int64_t b) {
    for (std::int64_t t = 0; t < a.T; ++t) {
      keep(a.k, b, t, state_.k, c_.D);
      keep(a.v, b, t, state_.v, c_.E);
      if (c_.den_features) keep(a.maybe_k_den, b, t, state_.k_den, c_.D);
      const std::int64_t chunk = at.position / c_.chunk;
      fold(chunk, at.position);
      for (std::int64_t h = head_ * state_.group(); h < (head_ + 1) * state_.group(); ++h) output(a, b, t, h, chunk);
      ++at.position;
      at.furthest = std::max(at.furthest, at.position);
      if (at.position % c_.chunk == 0) open(chunk + 1);
    }
  }

  void rebuild() {
    const std::int64_t chunk = at.position / c_.chunk;
    open(chunk);
    for (std::int64_t t = chunk * c_.chunk; t < at.position; ++t) fold(chunk, t);
  }

 private:
  double* summary(std::int64_t b) const {
    return Impl::as<double>(state_.summaries) + (b % state_.slots * c_.Hkv + head_) * state_.layout.stride();
  }
  double* prefix(std::int64_t h) const {
    return Impl::as<double>(state_.prefix[0]) + (state_.Hm > 1 ? h : head_) * state_.layout.stride();
  }
  double* ksum() const { return Impl::as<double>(state_.ksum) + head_ * state_.ksum_stride(); }

  double mix(std::int64_t h, std::int64_t i, std::int64_t b) const {
    const MixIndex entry = mix_index(i, b, state_.L);
    const std::int64_t m = state_.Hm > 1 ? h : 0;
    return load_f64(state_.mix, c_.dtype == DType::kF64 ? DType::kF64 : DType::kF32,
                    (m * state_.L + entry.row) * state_.L + entry.column);
  }

  void keep(const ConstView& x, std::int64_t b, std::int64_t t, std::byte* ring, std::int64_t size) const {
    const std::int64_t bytes = size * size_of(x.dtype);
    const std::int64_t from = b * x.stride[0] + t * x.stride[1] + head_ * x.stride[2];
    std::copy_n(static_cast<const std::byte*>(x.data) + from * size_of(x.dtype), bytes,
                ring + (at.position % state_.ring * c_.Hkv + head_) * bytes);
  }
  Array row(const std::byte* ring, std::int64_t token, std::int64_t size, bool features) const {
    Array x = zeros(size);
    const std::int64_t first = (token % state_.ring * c_.Hkv + head_) * size;
    for (std::int64_t j = 0; j < size; ++j) x[j] = load_f64(ring, c_.dtype, first + j);
    return features ? reference::map_features(c_.feature_map, x) : x;
  }
  Array query(const ConstView& x, std::int64_t b, std::int64_t t, std::int64_t h) const {
    Array q = zeros(c_.D);
    const std::int64_t first = b * x.stride[0] + t * x.stride[1] + h * x.stride[2];
    for (std::int64_t j = 0; j < c_.D; ++j) q[j] = load_f64(x.data, x.dtype, first + j);
    return reference::map_features(c_.feature_map, q);
  }

  void fold(std::int64_t chunk, std::int64_t token) {
    const Array k = row(state_.k, token, c_.D, true), v = row(state_.v, token, c_.E, false);
    if (state_.normalized()) {
      const Array k_den = c_.den_features ? row(state_.k_den, token, c_.D, true) : k;
      reference::add_scaled(ksum(), k_den.data(), 1.0, c_.D);
    }
    if (!state_.has_row(chunk + 1)) return;  // no later chunk will read this summary
    double* S = summary(chunk);
    reference::add_outer(S, k.data(), c_.D, v.data(), c_.E);
    if (state_.normalized()) std::copy_n(ksum(), c_.D, S + state_.layout.z_offset());
  }

  // Prefixes of a chunk that has no token yet, and an empty summary for it.
  void open(std::int64_t chunk) {
    const std::int64_t size = state_.layout.size();
    if (state_.normalized()) std::fill_n(ksum(), c_.D, 0.0);
    if (!state_.has_row(chunk)) return;
    double* sum = state_.extend() ? Impl::as<double>(state_.sum) + head_ * state_.layout.stride() : nullptr;
    for (std::int64_t h = head_ * state_.group(); h < (head_ + 1) * state_.group(); ++h) {
      if (state_.Hm == 1 && h > head_ * state_.group()) break;
      double* P = prefix(h);
      std::fill_n(P, size, 0.0);
      std::int64_t b = 0;
      if (chunk >= state_.L) {  // the blocks that share a coefficient are added up first
        Array old(sum, sum + size);
        const std::int64_t first = std::min(chunk - state_.L + 2, chunk);
        for (b = at.base; b < first; ++b) reference::add_scaled(old.data(), summary(b), 1.0, size);
        reference::add_scaled(P, old.data(), mix(h, chunk, 0), size);
      }
      for (; b < chunk; ++b) reference::add_scaled(P, summary(b), mix(h, chunk, b), size);
    }
    for (const std::int64_t end = state_.extend() ? oldest_block(chunk, state_.L, state_.back) : 0; at.base < end;
         ++at.base) {
      reference::add_scaled(sum, summary(at.base), 1.0, size);
    }
    if (state_.has_row(chunk + 1)) std::fill_n(summary(chunk), size, 0.0);
  }

  void output(const StreamingAppend& a, std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t chunk) const {
    const Array q = query(a.q, b, t, h);
    Array intra = zeros(c_.E), out = zeros(c_.E);
    for (std::int64_t s = chunk * c_.chunk; s <= at.position; ++s) {
      const double score = reference::dot(q.data(), row(state_.k, s, c_.D, true).data(), c_.D);
      reference::add_scaled(intra.data(), row(state_.v, s, c_.E, false).data(), score, c_.E);
    }
    const double diagonal = mix(h, chunk, chunk);
    const double* P = prefix(h);
    reference::add_vector_matrix(out.data(), q.data(), c_.D, P, c_.E);
    reference::add_scaled(out.data(), intra.data(), diagonal, c_.E);
    double den = 1.0;
    if (state_.normalized()) {
      const Array q_den = c_.den_features ? query(a.maybe_q_den, b, t, h) : q;
      den = c_.eps + reference::dot(q_den.data(), P + state_.layout.z_offset(), c_.D) +
            diagonal * reference::dot(q_den.data(), ksum(), c_.D);
    }
    const std::int64_t first = b * a.out.stride[0] + t * a.out.stride[1] + h * a.out.stride[2];
    for (std::int64_t e = 0; e < c_.E; ++e) store_f64(a.out.data, a.out.dtype, first + e, *c_.scale * out[e] / den);
  }

  Impl& state_;
  const StreamingConfig& c_;
  std::int64_t head_;
};

void append_ref(const StreamingAppend& a, Workspace& workspace, Executor& executor) {
  if (workspace.counting()) return;  // uses vectors of its own
  const std::int64_t Hkv = a.state(0).config.Hkv;
  executor.run(a.B * Hkv, [&](std::int64_t unit, int) {
    RefHead head(a.state(unit / Hkv), unit % Hkv);
    head.append(a, unit / Hkv);
    if (unit % Hkv == 0) a.state(unit / Hkv).next = head.at;
  });
  for (std::int64_t b = 0; b < a.B; ++b) a.state(b).at = a.state(b).next;
}

void rebuild_ref(Impl& state, bool /*same_chunk*/) {
  for (std::int64_t head = 0; head < state.config.Hkv; ++head) RefHead(state, head).rebuild();
}

}  // namespace

const StreamingCandidate kStreamingRef = {
    .name = "ref",
    .on_device = false,
    .fit = [](const StreamingConfig&) { return std::string(); },
    .element = DType::kF64,
    .keeps_features = false,
    .extra_slots = 0,
    .lanes = [] { return std::int64_t{0}; },
    .instruction_set = [] { return std::string("any"); },
    .append = append_ref,
    .rebuild = rebuild_ref,
};

}  // namespace mhla
