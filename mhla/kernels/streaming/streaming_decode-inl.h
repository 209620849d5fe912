// One token of the streaming form: num[e] = sum_d q~[d] P[d][e] + sum_s a_s v_s[e] for one query row, or for the rows
// of several heads that share the prefix and the keys. The same chains as causal-inl.h, added up in the same order, but
// reading the prefix once, raw keys and values as they lie in the ring, and eight accumulators side by side: one row
// has no other work to hide the latency of a multiply-add behind, and the prefix comes from memory.
#include "mhla/kernels/chunkwise/chunkwise_simd-inl.h"

#if defined(MHLA_KERNELS_STREAMING_STREAMING_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHLA_KERNELS_STREAMING_STREAMING_DECODE_INL_H_
#undef MHLA_KERNELS_STREAMING_STREAMING_DECODE_INL_H_
#else
#define MHLA_KERNELS_STREAMING_STREAMING_DECODE_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace mhla {
namespace HWY_NAMESPACE {

// scores[r][s] = diagonal[r] (q_r . phi(k_s)) for keys [s0, s0 + count) and R packed queries.
template <int R, FeatureMap kMap, class Tk>
HWY_INLINE void decode_scores(const float* q, const RowSource<Tk>& keys, std::int64_t s0, std::int64_t count,
                              std::int64_t D, const float* diagonals, float* scores) {
  const Full d;
  for (std::int64_t s = 0; s < count; s += 4) {
    const Tk* rows[4];
    MHLA_UNROLL(4)
    for (int j = 0; j < 4; ++j) rows[j] = keys(s0 + HWY_MIN(s + j, count - 1));
    hn::Vec<Full> acc[R][4];
    MHLA_UNROLL(4)
    for (int r = 0; r < R; ++r) {
      MHLA_UNROLL(4)
      for (int j = 0; j < 4; ++j) acc[r][j] = hn::Zero(d);
    }
    for (std::int64_t c = 0; c < D; c += kLanes) {
      hn::Vec<Full> k[4];
      if (c + kLanes <= D) {
        MHLA_UNROLL(4)
        for (int j = 0; j < 4; ++j) k[j] = feature<kMap>(d, load(d, rows[j] + c));
      } else {  // lanes beyond D stay 0, as in packed rows
        const auto mask = hn::FirstN(d, static_cast<std::size_t>(D - c));
        MHLA_UNROLL(4)
        for (int j = 0; j < 4; ++j) {
          k[j] = hn::IfThenElseZero(mask, feature<kMap>(d, load_some(d, rows[j] + c, D - c)));
        }
      }
      MHLA_UNROLL(4)
      for (int r = 0; r < R; ++r) {
        const auto left = hn::LoadU(d, q + r * kRow + c);
        MHLA_UNROLL(4)
        for (int j = 0; j < 4; ++j) acc[r][j] = hn::MulAdd(left, k[j], acc[r][j]);
      }
    }
    MHLA_UNROLL(4)
    for (int r = 0; r < R; ++r) store_four_sums(acc[r], diagonals[r], scores + r * kScoreRow + s);
  }
}

// What one call reads and writes: a block of keys for R rows, like ReadBlock with raw values.
template <class T>
struct DecodeBlock {
  const float* q;  // [R][kRow]
  std::int64_t D, E;
  const float* maybe_P;
  const float* scores;  // [R][kScoreRow]
  RowSource<T> v;
  std::int64_t first, keys;  // values [first, first + keys)
  bool begins;               // else it is added to `num`
  float* num;                // [R][kRow]
};

template <class DF, class T>
HWY_INLINE hn::Vec<DF> load_value(DF d, const T* row, std::int64_t left) {
  constexpr std::int64_t L = static_cast<std::int64_t>(hn::MaxLanes(DF()));
  if (left >= L) return load(d, row);
  return left > 0 ? load_some(d, row, left) : hn::Zero(d);
}

// One chain over `steps` terms of kVectors vectors, added to num: step(k)(i) is vector i of term k.
template <int R, int kVectors, std::int64_t kStride, class DF, class Step>
HWY_INLINE void decode_chain(DF d, const float* a, std::int64_t steps, const Step& step, float* num) {
  constexpr std::int64_t L = static_cast<std::int64_t>(hn::MaxLanes(DF()));
  hn::Vec<DF> acc[R][kVectors];
  MHLA_UNROLL(4)
  for (int r = 0; r < R; ++r) {
    MHLA_UNROLL(8)
    for (int i = 0; i < kVectors; ++i) acc[r][i] = hn::Zero(d);
  }
  for (std::int64_t k = 0; k < steps; ++k) {
    const auto vector = step(k);
    MHLA_UNROLL(8)
    for (int i = 0; i < kVectors; ++i) {
      const auto x = vector(i);
      MHLA_UNROLL(4)
      for (int r = 0; r < R; ++r) acc[r][i] = hn::MulAdd(hn::Set(d, a[r * kStride + k]), x, acc[r][i]);
    }
  }
  MHLA_UNROLL(4)
  for (int r = 0; r < R; ++r) {
    MHLA_UNROLL(8)
    for (int i = 0; i < kVectors; ++i) {
      float* to = num + r * kRow + i * L;
      hn::StoreU(hn::Add(hn::LoadU(d, to), acc[r][i]), d, to);
    }
  }
}

// Pn panels of V vectors, from column c on.
template <int R, int Pn, int V, bool kRagged, class DF, class T>
HWY_INLINE void decode_panels(DF d, const DecodeBlock<T>& b, std::int64_t c) {
  constexpr std::int64_t L = static_cast<std::int64_t>(hn::MaxLanes(DF()));
  constexpr int kVectors = Pn * V;
  float* num = b.num + c;
  if (b.begins) {
    for (int r = 0; r < R; ++r) {
      for (int i = 0; i < kVectors; ++i) hn::StoreU(hn::Set(d, kNothing), d, num + r * kRow + i * L);
    }
    const std::int64_t next = V * L * b.D;
    for (std::int64_t k0 = 0; b.maybe_P && k0 < b.D; k0 += kReadoutChain) {
      const float* panel = b.maybe_P + c * b.D + k0 * V * L;
      const auto row = [&](std::int64_t k) HWY_ATTR {
        return [=](int i) HWY_ATTR { return hn::LoadU(d, panel + i / V * next + (k * V + i % V) * L); };
      };
      decode_chain<R, kVectors, kRow>(d, b.q + k0, HWY_MIN(b.D - k0, kReadoutChain), row, num);
    }
  }
  const auto value = [&](std::int64_t s) HWY_ATTR {
    const T* row = b.v(b.first + s) + c;
    return [=, E = b.E](int i)
               HWY_ATTR { return kRagged ? load_value(d, row + i * L, E - c - i * L) : load(d, row + i * L); };
  };
  decode_chain<R, kVectors, kScoreRow>(d, b.scores, b.keys, value, num);
}

// All columns. Whole panels go several at a time, the ragged end panel by panel.
template <int R, class T>
HWY_NOINLINE void decode_block(const DecodeBlock<T>& b) {
  constexpr int kPanels = 4 / R;
  constexpr std::int64_t kWidth = 2 * kLanes;
  std::int64_t whole = 0;
  for (; whole + kPanels * kWidth <= b.E; whole += kPanels * kWidth) {
    decode_panels<R, kPanels, 2, false>(Full(), b, whole);
  }
  for_each_panel(b.E, [&](auto d, auto vectors, std::int64_t c, std::int64_t used) HWY_ATTR {
    constexpr int V = decltype(vectors)::value;
    constexpr std::int64_t L = static_cast<std::int64_t>(hn::MaxLanes(decltype(d)()));
    if (c < whole) return;
    if (used == V * L)
      decode_panels<R, 1, V, false>(d, b, c);
    else
      decode_panels<R, 1, V, true>(d, b, c);
  });
}

// num of R rows that share P and keys: the whole token. `keys` tokens of the open chunk, the newest included.
template <int R, class Tk, class T>
HWY_NOINLINE void decode_rows(const CausalSizes& s, const float* q, const KeyRows<Tk, T>& rows, std::int64_t keys,
                              const float* diagonals, const float* maybe_P, float* num) {
  HWY_ALIGN float scores[R * kScoreRow];
  for (std::int64_t first = 0; first < keys; first += kTokens) {
    const std::int64_t count = HWY_MIN(kTokens, keys - first);
    with_feature_map(rows.map, [&](auto map) HWY_ATTR {
      if constexpr (!is_costly(decltype(map)::value))  // a ring holds no raw keys of such a map
        decode_scores<R, decltype(map)::value>(q, rows.k, first, count, s.D, diagonals, scores);
    });
    decode_block<R, T>({.q = q,
                        .D = s.D,
                        .E = s.E,
                        .maybe_P = maybe_P,
                        .scores = scores,
                        .v = rows.v,
                        .first = first,
                        .keys = count,
                        .begins = first == 0,
                        .num = num});
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace mhla
HWY_AFTER_NAMESPACE();

#endif
