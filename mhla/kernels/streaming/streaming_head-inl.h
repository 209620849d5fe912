// One kv head of one streaming state on CPU vectors: the life of its tokens. They are kept raw in rings, read by the
// outputs of their chunk, folded into its summary, and the prefix of the next chunk is mixed while this one is open.
#include "mhla/kernels/streaming/streaming_decode-inl.h"
#include "mhla/kernels/streaming/streaming_state.h"

#if defined(MHLA_KERNELS_STREAMING_STREAMING_HEAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHLA_KERNELS_STREAMING_STREAMING_HEAD_INL_H_
#undef MHLA_KERNELS_STREAMING_STREAMING_HEAD_INL_H_
#else
#define MHLA_KERNELS_STREAMING_STREAMING_HEAD_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace mhla {
namespace HWY_NAMESPACE {

// Counters are a copy: every head makes the same moves, the state takes over one result.
template <class Tk, class T>
class StreamingHead {
  using Impl = StreamingState::Impl;

 public:
  StreamingHead(Impl& state, const CausalSizes& sizes, std::int64_t kv_head)
      : at(state.at), state_(state), s_(sizes), head_(kv_head), stride_(sizes.stride) {
    store_.slots = Impl::as<float>(state.summaries) + kv_head * stride_;
    store_.slot_stride = state.config.Hkv * stride_;
    store_.count = state.slots;
    store_.maybe_sum = state.extend() ? Impl::as<float>(state.sum) + kv_head * stride_ : nullptr;
    store_.base = at.base;
    ksum_ = s_.normalized ? Impl::as<float>(state.ksum) + kv_head * state.ksum_stride() : nullptr;
    part_ = state.part ? Impl::as<float>(state.part) + kv_head * stride_ : nullptr;
    own_mix_ = state.Hm > 1;
  }

  StreamingCounters at;

  // Tokens of call `a` for state b, one after the other.
  void decode(const StreamingAppend& a, std::int64_t b) {
    for (std::int64_t t = 0; t < a.T; ++t) {
      keep(a, b, t, 1);
      decode_token(a, b, t);
      const std::int64_t chunk = at.position / s_.C, tokens = at.position % s_.C + 1;
      moved(1);
      settle_on_stack(chunk, tokens);
    }
  }

  // Any number of tokens.
  void append(const StreamingAppend& a, std::int64_t b, CausalUnit<T>& unit, Executor& inner, CausalScratch* scratch) {
    const std::int64_t C = s_.C, inside = at.position % C;
    std::int64_t done = 0;
    if (inside > 0 || a.T < C) {
      done = HWY_MIN(a.T, C - inside);
      open_chunk(a, b, 0, done, scratch[0]);
    }
    const std::int64_t full = (a.T - done) / C;
    if (full > 0) {
      whole_chunks(a, b, done, full, unit, inner, scratch);
      const std::int64_t from = HWY_MAX(done, a.T - state_.ring);
      done += full * C;
      if (from < done) keep_at(a, b, from, done - from, at.position - (done - from));
    }
    if (done < a.T) open_chunk(a, b, done, a.T - done, scratch[0]);
  }

  void rebuild(bool same_chunk) {
    const std::int64_t chunk = at.position / s_.C, tokens = at.position % s_.C;
    if (!same_chunk) {
      at.mixed = 0;
      for (std::int64_t m = 0; chunk > 0 && state_.has_row(chunk) && m < prefixes(); ++m) {
        mix_row(store_, mix_of(m), chunk, chunk, 0, s_.size, prefix(at.open, m));
      }
    }
    if (ksum_) {
      HWY_ALIGN float row[kRow];
      set_zero(ksum_, state_.ksum_stride());
      const KeyRows<Tk, T> rows = ring_rows(chunk);
      for (std::int64_t t = 0; t < tokens; ++t) {
        pack_source(rows.map, s_.has_den ? rows.k_den : rows.k, t, 1, s_.D, row);
        add_keys(row, t, 1, s_.Dp, ksum_);
      }
    }
    if (!same_chunk || at.folded > tokens) at.folded = 0;
    if (tokens > 0) settle_on_stack(chunk, tokens);
  }

 private:
  [[nodiscard]] std::int64_t prefixes() const { return own_mix_ ? state_.group() : 1; }
  // Query head j of the group; with a shared mix all are the same.
  [[nodiscard]] MixView mix_of(std::int64_t j) const {
    const std::int64_t h = own_mix_ ? head_ * state_.group() + j : 0;
    return {Impl::as<float>(state_.mix) + h * state_.L * state_.L, state_.L, 1, state_.L};
  }
  [[nodiscard]] float* prefix(int buffer, std::int64_t j) const {
    const std::int64_t index = own_mix_ ? head_ * state_.group() + j : head_;
    return Impl::as<float>(state_.prefix[buffer]) + index * stride_;
  }

  // Tokens of a chunk as they lie in the rings.
  [[nodiscard]] KeyRows<Tk, T> ring_rows(std::int64_t chunk) const {
    const StreamingConfig& c = state_.config;
    const std::int64_t start = chunk * c.chunk % state_.ring, wrap = state_.ring - start;
    KeyRows<Tk, T> rows;
    rows.k = {Impl::as<Tk>(state_.k) + head_ * c.D, c.Hkv * c.D, start, wrap};
    rows.v = {Impl::as<T>(state_.v) + head_ * c.E, c.Hkv * c.E, start, wrap};
    if (s_.has_den) rows.k_den = {Impl::as<Tk>(state_.k_den) + head_ * c.D, c.Hkv * c.D, start, wrap};
    rows.map = state_.key_map;
    return rows;
  }

  static RowSource<T> input(const ConstView& x, std::int64_t b, std::int64_t head, std::int64_t start) {
    if (!x.given()) return {};
    return {data_as<T>(x) + b * x.stride[0] + head * x.stride[2], x.stride[1], start};
  }

  // Raw k and v (features where an expensive map would be applied again and again) of tokens [t, t + count).
  void keep(const StreamingAppend& a, std::int64_t b, std::int64_t t, std::int64_t count) {
    keep_at(a, b, t, count, at.position);
  }
  void keep_at(const StreamingAppend& a, std::int64_t b, std::int64_t t, std::int64_t count, std::int64_t position) {
    const StreamingConfig& c = state_.config;
    for (std::int64_t n = 0; n < count; ++n) {
      const std::int64_t row = (position + n) % state_.ring * c.Hkv + head_;
      keep_key(input(a.k, b, head_, t)(n), Impl::as<Tk>(state_.k) + row * c.D);
      if (s_.has_den) keep_key(input(a.maybe_k_den, b, head_, t)(n), Impl::as<Tk>(state_.k_den) + row * c.D);
      std::copy_n(input(a.v, b, head_, t)(n), c.E, Impl::as<T>(state_.v) + row * c.E);
    }
  }
  void keep_key(const T* from, Tk* to) const {
    if constexpr (std::is_same_v<T, Tk>) {
      if (state_.key_map == s_.map) {
        std::copy_n(from, s_.D, to);
        return;
      }
    }
    if constexpr (std::is_same_v<Tk, float>) {
      HWY_ALIGN float row[kRow];
      pack_source(s_.map, RowSource<T>{from, s_.D}, 0, 1, s_.D, row);
      std::copy_n(row, s_.D, to);
    }
  }

  // R heads from j on that share their prefix and keys.
  template <int R>
  void decode_heads(const StreamingAppend& a, std::int64_t b, std::int64_t t, std::int64_t j, const float* k_den) {
    HWY_ALIGN float q[R * kRow], num[R * kRow];
    const std::int64_t chunk = at.position / s_.C, tokens = at.position % s_.C + 1;
    const float* P = chunk > 0 ? prefix(at.open, j) : nullptr;
    float diagonals[R], factors[R];
    for (int r = 0; r < R; ++r) {
      const std::int64_t h = head_ * state_.group() + j + r;
      diagonals[r] = mix_of(j + r)(chunk, chunk);
      factors[r] = s_.scale;
      pack_source(s_.map, input(a.q, b, h, t), 0, 1, s_.D, q + r * kRow);
      if (!s_.normalized) continue;
      HWY_ALIGN float q_den[kRow], ksum[2 * kRow];
      const float* features = q + r * kRow;
      if (s_.has_den) pack_source(s_.map, input(a.maybe_q_den, b, h, t), 0, 1, s_.D, q_den), features = q_den;
      std::copy_n(ksum_, 2 * s_.Dp, ksum);
      causal_factors(features, k_den, tokens - 1, 1, s_.Dp, P ? P + s_.z : nullptr, diagonals[r], s_.eps, s_.scale,
                     ksum, &factors[r]);
    }
    decode_rows<R>(s_, q, ring_rows(chunk), tokens, diagonals, P, num);
    for (int r = 0; r < R; ++r) {
      const std::int64_t h = head_ * state_.group() + j + r;
      T* out = data_as<T>(a.out) + b * a.out.stride[0] + t * a.out.stride[1] + h * a.out.stride[2];
      const auto factor = hn::Set(Full(), factors[r]);
      store_row(out, s_.E,
                [&](std::int64_t c) HWY_ATTR { return hn::Mul(hn::LoadU(Full(), num + r * kRow + c), factor); });
    }
  }

  void decode_token(const StreamingAppend& a, std::int64_t b, std::int64_t t) {
    HWY_ALIGN float k_den[kRow];
    if (s_.normalized) {
      pack_source(s_.map, input(s_.has_den ? a.maybe_k_den : a.k, b, head_, t), 0, 1, s_.D, k_den);
    }
    const std::int64_t group = state_.group();
    std::int64_t j = 0;
    for (; !own_mix_ && j + 4 <= group; j += 4) decode_heads<4>(a, b, t, j, k_den);
    for (; !own_mix_ && j + 2 <= group; j += 2) decode_heads<2>(a, b, t, j, k_den);
    for (; j < group; ++j) decode_heads<1>(a, b, t, j, k_den);
    if (s_.normalized) add_keys(k_den, at.position % s_.C, 1, s_.Dp, ksum_);
  }

  // Tokens [t, t + count) of the call, all in the open chunk.
  void open_chunk(const StreamingAppend& a, std::int64_t b, std::int64_t t, std::int64_t count, CausalScratch& x) {
    keep(a, b, t, count);
    const std::int64_t chunk = at.position / s_.C, inside = at.position % s_.C, group = state_.group();
    std::vector<QueryRows<T>> heads;
    std::vector<float> diagonals;
    std::vector<const float*> P;
    for (std::int64_t j = 0; j < group; ++j) {
      const std::int64_t h = head_ * group + j;
      heads.push_back({input(a.q, b, h, t - inside), input(a.maybe_q_den, b, h, t - inside),
                       data_as<T>(a.out) + b * a.out.stride[0] + h * a.out.stride[2], a.out.stride[1], t - inside});
      diagonals.push_back(mix_of(j)(chunk, chunk));
      P.push_back(chunk > 0 ? prefix(at.open, j) : nullptr);
    }
    const KeyRows<Tk, T> rows = ring_rows(chunk);
    NextRows none;
    chunk_outputs(s_, rows, heads, inside, inside + count, diagonals.data(), P.data(), ksum_, x, none);
    for (std::int64_t n = inside; ksum_ && n < inside + count; n += kTokens) {
      const std::int64_t tokens = HWY_MIN(kTokens, inside + count - n);
      pack_source(rows.map, s_.has_den ? rows.k_den : rows.k, n, tokens, s_.D, x.k);
      add_keys(x.k, n, tokens, s_.Dp, ksum_);
    }
    moved(count);
    settle(chunk, inside + count, x, kTokens);
  }

  // `full` whole chunks from token t of the call on; the state stands at the start of the first.
  void whole_chunks(const StreamingAppend& a, std::int64_t b, std::int64_t t, std::int64_t full, CausalUnit<T>& unit,
                    Executor& inner, CausalScratch* scratch) {
    unit.keys = {input(a.k, b, head_, 0).from(t), input(a.v, b, head_, 0).from(t), {}, s_.map};
    if (s_.has_den) unit.keys.k_den = input(a.maybe_k_den, b, head_, 0).from(t);
    unit.heads.clear(), unit.mixes.clear();
    for (std::int64_t j = 0; j < state_.group(); ++j) {
      const std::int64_t h = head_ * state_.group() + j;
      QueryRows<T> head{input(a.q, b, h, 0).from(t),
                        {},
                        data_as<T>(a.out) + b * a.out.stride[0] + t * a.out.stride[1] + h * a.out.stride[2],
                        a.out.stride[1]};
      if (s_.has_den) head.q_den = input(a.maybe_q_den, b, h, 0).from(t);
      unit.heads.push_back(head);
      unit.mixes.push_back(mix_of(j));
    }
    unit.first = at.position / s_.C, unit.end = unit.first + full, unit.tokens = full * s_.C;
    unit.goes_on = state_.has_row(unit.end);
    unit.back = state_.back;
    unit.maybe_first_P = unit.first > 0 ? prefix(at.open, 0) : nullptr;
    float* maybe_group = unit.store.maybe_group;
    const std::int64_t group_stride = unit.store.group_stride;
    unit.store = store_;
    unit.store.maybe_group = maybe_group, unit.store.group_stride = group_stride;
    run_chunks(s_, unit, inner, scratch);
    for (std::int64_t m = 0; unit.goes_on && m < prefixes(); ++m) {
      std::copy_n(prefix_of(s_, unit, unit.end, m), s_.size, prefix(at.open, m));
    }
    store_.base = at.base = unit.store.base;
    moved(full * s_.C);
    at.folded = at.mixed = 0;
    if (ksum_) set_zero(ksum_, state_.ksum_stride());
  }

  void moved(std::int64_t tokens) {
    at.position += tokens;
    at.furthest = HWY_MAX(at.furthest, at.position);
  }

  // Up to `most` more tokens join S, the summary of the open chunk, as chunk_summary would add them: a chain for every
  // kTokens tokens. The first grows in S, later ones in part_ until they are complete, unless they come whole.
  void fold(std::int64_t chunk, std::int64_t most, bool complete, float* S, CausalScratch& x) {
    const std::int64_t inside = at.folded % kTokens, count = HWY_MIN(most, kTokens - inside);
    const bool first = at.folded < kTokens, begins = inside == 0;
    const bool ends = inside + count == kTokens || (complete && at.folded + count == s_.C);
    const bool apart = !first && !(begins && ends);
    const Sum sum = !begins ? Sum::kChain : first || apart ? Sum::kStart : Sum::kAdd;
    NextRows none;
    add_tokens(s_, ring_rows(chunk), at.folded, count, sum, apart ? part_ : S, x, none);
    if (apart && ends) add_scaled(1.0f, part_, s_.z, S);
    at.folded += count;
  }

  // After `tokens` tokens of a chunk: folds what is due and mixes what is due, then opens the next chunk when this one
  // is complete. `step` tokens fit into x.
  void settle(std::int64_t chunk, std::int64_t tokens, CausalScratch& x, std::int64_t step) {
    const bool complete = tokens == s_.C;
    const std::int64_t next = chunk + 1, size = s_.size;
    if (state_.has_row(next)) {
      float* S = store_.slot(chunk);
      for (const std::int64_t end = complete ? tokens : fold_target(tokens); at.folded < end;) {
        fold(chunk, HWY_MIN(step, end - at.folded), complete, S, x);
      }
      // Columns of the next prefix over all finished blocks; not where the open block is part of the sum R.
      const std::int64_t columns = complete ? at.mixed : mix_target(tokens, s_.C, size);
      if (columns > at.mixed && chunk > 0 && (next < s_.L || s_.L > 2)) {
        for (std::int64_t j = 0; j < prefixes(); ++j) {
          mix_row(store_, mix_of(j), next, chunk, at.mixed, columns, prefix(at.open ^ 1, j));
        }
        at.mixed = columns;
      }
      if (complete) {
        if (ksum_) std::copy_n(ksum_, s_.Dp, S + s_.z), add_scaled(1.0f, ksum_ + s_.Dp, s_.Dp, S + s_.z);
        for (std::int64_t j = 0; j < prefixes(); ++j) {
          add_scaled(mix_of(j)(next, chunk), S, at.mixed, prefix(at.open ^ 1, j));
          mix_row(store_, mix_of(j), next, next, at.mixed, size, prefix(at.open ^ 1, j));
        }
        if (state_.extend()) move_base(store_, oldest_block(next, s_.L, state_.back), size);
        at.base = store_.base;
        at.open ^= 1;
      }
    }
    if (complete) {
      at.folded = at.mixed = 0;
      if (ksum_) set_zero(ksum_, state_.ksum_stride());
    }
  }
  void settle_on_stack(std::int64_t chunk, std::int64_t tokens) {
    HWY_ALIGN float k[kFoldStep * kRow], v[kFoldStep * kRow];
    CausalScratch x{};
    x.k = k, x.v = v;
    settle(chunk, tokens, x, kFoldStep);
  }

  Impl& state_;
  const CausalSizes& s_;
  std::int64_t head_, stride_;
  SummaryStore store_;
  float *ksum_ = nullptr, *part_ = nullptr;
  bool own_mix_ = false;
};

}  // namespace HWY_NAMESPACE
}  // namespace mhla
HWY_AFTER_NAMESPACE();

#endif
