// The arithmetic inside a chunk of the causal form, shared by one pass, append and decode. For token t of chunk i
//   num_t[e] = sum_d q~_t[d] P_i[d][e] + sum_{s<=t} a_ts v_s[e],   a_ts = m_ii (q~_t . k~_s)
// num_t[e] is a sum of short chains of fused multiply-adds, each from 0: kReadoutChain features of the prefix at a
// time, then kTokens keys of the chunk at a time, added up in that order. Every q~ . k~ is one chain per lane over the
// vectors of a row, then one fixed tree over the lanes. Keys of the normaliser are summed kSubtotal at a time. All cuts
// count from the first feature and the first token of the chunk, so it does not matter for the bits how tokens are
// tiled or how a sequence was split into calls. Scores above the diagonal are never multiplied with anything.
#include "mhla/kernels/common/simd/pack-inl.h"

#if defined(MHLA_KERNELS_COMMON_SIMD_CAUSAL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHLA_KERNELS_COMMON_SIMD_CAUSAL_INL_H_
#undef MHLA_KERNELS_COMMON_SIMD_CAUSAL_INL_H_
#else
#define MHLA_KERNELS_COMMON_SIMD_CAUSAL_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace mhla {
namespace HWY_NAMESPACE {

// Scores of up to kTokens queries against kTokens keys: rows of 5 cache lines, an odd number.
inline constexpr std::int64_t kScoreRow = 80;

// The rows of one head in memory. A ring begins at `start` and goes on at row 0 after `before_wrap` tokens.
template <class T>
struct RowSource {
  const T* base = nullptr;
  std::int64_t stride = 0;  // in elements
  std::int64_t start = 0;
  std::int64_t before_wrap = INT64_MAX;
  HWY_INLINE const T* operator()(std::int64_t t) const {
    return base + (t < before_wrap ? start + t : t - before_wrap) * stride;
  }
  [[nodiscard]] RowSource from(std::int64_t t) const {  // of an unwrapped source: token t becomes token 0
    return {base + t * stride, stride, start, before_wrap};
  }
};

template <class T>
struct RowPointers {
  const T* row[kTokens];
  RowPointers(const RowSource<T>& source, std::int64_t t0, std::int64_t tokens) {
    for (std::int64_t t = 0; t < tokens; ++t) row[t] = source(t0 + t);
  }
};

#if HWY_TARGET != HWY_SCALAR
// The four sums over the 128-bit blocks of x, halves first.
template <class DF>
HWY_INLINE auto sum_of_blocks(DF, hn::Vec<DF> x) {
  if constexpr (hn::MaxLanes(DF()) > 4) {
    const hn::Half<DF> half;
    return sum_of_blocks(half, hn::Add(hn::LowerHalf(half, x), hn::UpperHalf(half, x)));
  } else {
    return x;
  }
}
#endif

// to[j] = factor * (sum of the lanes of x[j]), j < 4. In a 128-bit block (x0 + x2) + (x1 + x3), then halves of blocks.
HWY_INLINE void store_four_sums(const hn::Vec<Full>* x, float factor, float* to) {
#if HWY_TARGET == HWY_SCALAR
  for (int j = 0; j < 4; ++j) to[j] = hn::GetLane(x[j]) * factor;
#else
  const Full d;
  const auto even = hn::Add(hn::InterleaveLower(d, x[0], x[2]), hn::InterleaveUpper(d, x[0], x[2]));
  const auto odd = hn::Add(hn::InterleaveLower(d, x[1], x[3]), hn::InterleaveUpper(d, x[1], x[3]));
  const auto blocks = hn::Add(hn::InterleaveLower(d, even, odd), hn::InterleaveUpper(d, even, odd));
  const hn::CappedTag<float, 4> d4;
  hn::StoreU(hn::Mul(sum_of_blocks(d, blocks), hn::Set(d4, factor)), d4, to);
#endif
}

// scores[r][j] = factor * (a_r . b_j) for R rows and 4 columns of packed rows, `size` padded with zeros.
template <int R>
HWY_INLINE void score_tile(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, std::int64_t size, float factor,
                           float* scores) {
  const Full d;
  hn::Vec<Full> acc[R][4];
  MHLA_UNROLL(4)
  for (int r = 0; r < R; ++r) {
    MHLA_UNROLL(4)
    for (int j = 0; j < 4; ++j) acc[r][j] = hn::Zero(d);
  }
  for (std::int64_t c = 0; c < size; c += kLanes) {
    hn::Vec<Full> right[4];
    MHLA_UNROLL(4)
    for (int j = 0; j < 4; ++j) right[j] = hn::LoadU(d, b + j * kRow + c);
    MHLA_UNROLL(4)
    for (int r = 0; r < R; ++r) {
      const auto left = hn::LoadU(d, a + r * kRow + c);
      MHLA_UNROLL(4)
      for (int j = 0; j < 4; ++j) acc[r][j] = hn::MulAdd(left, right[j], acc[r][j]);
    }
  }
  MHLA_UNROLL(4)
  for (int r = 0; r < R; ++r) store_four_sums(acc[r], factor, scores + r * kScoreRow);
}

// Scores of rows [0, rows) against columns [0, columns), or against columns <= first + row when diagonal. Columns are
// computed four at a time: up to three more are written, and none of them is used.
HWY_INLINE void score_product(const float* a, const float* b, std::int64_t rows, std::int64_t columns, bool diagonal,
                              std::int64_t first, std::int64_t size, float factor, float* scores) {
  constexpr int kRows = kLanes == 16 ? 4 : 2;  // 16 accumulators where there are 32 registers
  const auto row_tile = [&](auto count, std::int64_t r) HWY_ATTR {
    constexpr int R = decltype(count)::value;
    const std::int64_t end = diagonal ? first + r + R : columns;
    for (std::int64_t j = 0; j < end; j += 4) {
      score_tile<R>(a + r * kRow, b + j * kRow, size, factor, scores + r * kScoreRow + j);
    }
  };
  std::int64_t r = 0;
  for (; r + kRows <= rows; r += kRows) row_tile(Int<kRows>(), r);
  for (; r < rows; ++r) row_tile(Int<1>(), r);
}

// acc[r] += a[r * kStride] * b for the rows from `from` on.
template <int R, int V, std::int64_t kStride, class DF>
HWY_INLINE void causal_step(DF d, const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, int from,
                            hn::Vec<DF> (&acc)[R][V]) {
  constexpr std::int64_t L = static_cast<std::int64_t>(hn::MaxLanes(DF()));
  hn::Vec<DF> row[V];
  MHLA_UNROLL(2)
  for (int c = 0; c < V; ++c) row[c] = hn::LoadU(d, b + c * L);
  MHLA_UNROLL(8)
  for (int r = 0; r < R; ++r) {
    if (r < from) continue;
    const auto x = hn::Set(d, a[r * kStride]);
    MHLA_UNROLL(2)
    for (int c = 0; c < V; ++c) acc[r][c] = hn::MulAdd(x, row[c], acc[r][c]);
  }
}

// The chain of one block of keys: R rows, V vectors. `common` keys that all rows see, then, on the diagonal, key
// common + j for the rows behind it.
template <int R, int V, bool kDiagonal, class DF, class Finish>
HWY_INLINE void causal_tile(DF d, std::int64_t common, const float* HWY_RESTRICT scores, const float* HWY_RESTRICT v,
                            const Finish& finish) {
  hn::Vec<DF> acc[R][V];
  MHLA_UNROLL(8)
  for (int r = 0; r < R; ++r) {
    MHLA_UNROLL(2)
    for (int c = 0; c < V; ++c) acc[r][c] = hn::Zero(d);
  }
  for (std::int64_t s = 0; s < common; ++s) causal_step<R, V, kScoreRow>(d, scores + s, v + s * kRow, 0, acc);
  if constexpr (kDiagonal && R > 1) {
    MHLA_UNROLL(8)
    for (int j = 0; j + 1 < R; ++j) {
      causal_step<R, V, kScoreRow>(d, scores + common + j, v + (common + j) * kRow, j + 1, acc);
    }
  }
  MHLA_UNROLL(8)
  for (int r = 0; r < R; ++r) {
    MHLA_UNROLL(2)
    for (int c = 0; c < V; ++c) finish(r, c, acc[r][c]);
  }
}

// A sum before its first chain: whatever is added to -0 stays as it is.
inline constexpr float kNothing = -0.0f;

// One block of keys for `rows` queries, added to what the blocks before left. maybe_P: the prefix in panels, with the
// first block only. Diagonal: the last block; the first query is its key `first`.
struct ReadBlock {
  const float* q;
  std::int64_t rows, D, E;
  bool begins;  // the first block
  const float* maybe_P;
  const float* scores;
  const float* v;
  std::int64_t keys;
  bool diagonal;
  std::int64_t first;
  float* sums;                 // [rows][kRow]  chains added up so far
  const float* maybe_factors;  // [rows]  with the last block, which multiplies and writes
  float* maybe_to;             // [rows][to_stride]  up to the padding of the last panel; may be `sums`
  std::int64_t to_stride;
};

// between() is called every fourth step over the prefix. Sums stay in memory: the registers are for the chain at work,
// and where the compiler was free to keep both there it moved an accumulator out of the loop that needs it.
template <class Between>
HWY_INLINE void causal_readout(const ReadBlock& b, Between&& between) {
  for_each_panel(b.E, [&](auto d, auto vectors, std::int64_t c, std::int64_t) HWY_ATTR {
    constexpr int V = decltype(vectors)::value;
    constexpr std::int64_t L = static_cast<std::int64_t>(hn::MaxLanes(decltype(d)()));
    const float* panel = b.maybe_P ? b.maybe_P + c * b.D : nullptr;
    for_each_row_tile<V>(b.rows, [&](auto count, std::int64_t r0) HWY_ATTR {
      constexpr int R = decltype(count)::value;
      const float* q = b.q + r0 * kRow;
      const float* scores = b.scores + r0 * kScoreRow;
      float* sums = b.sums + r0 * kRow + c;
      const auto sum = [&](int r, int i) HWY_ATTR { return hn::LoadU(d, sums + r * kRow + i * L); };
      const auto keep = [&](int r, int i, auto value) HWY_ATTR { hn::StoreU(value, d, sums + r * kRow + i * L); };
      const auto zero = [&](int, int) HWY_ATTR { return hn::Zero(d); };
      const auto add = [&](int r, int i, auto value) HWY_ATTR { keep(r, i, hn::Add(sum(r, i), value)); };
      if (panel) {
        tile<R, V, 1, kRow>(d, HWY_MIN(b.D, kReadoutChain), q, panel, V * L, zero, keep, between);
        for (std::int64_t k = kReadoutChain; k < b.D; k += kReadoutChain) {
          const std::int64_t K = HWY_MIN(b.D - k, kReadoutChain);
          tile<R, V, 1, kRow>(d, K, q + k, panel + k * V * L, V * L, zero, add, between);
        }
      } else if (b.begins) {
        for (int r = 0; r < R; ++r) {
          for (int i = 0; i < V; ++i) keep(r, i, hn::Set(d, kNothing));
        }
      }
      if (b.diagonal) {
        const float* factors = b.maybe_factors + r0;
        float* to = b.maybe_to + r0 * b.to_stride + c;
        causal_tile<R, V, true>(d, b.first + r0 + 1, scores, b.v + c, [&](int r, int i, auto value) HWY_ATTR {
          const auto scaled = hn::Mul(hn::Add(sum(r, i), value), hn::Set(d, factors[r]));
          hn::StoreU(scaled, d, to + r * b.to_stride + i * L);
        });
      } else {
        causal_tile<R, V, false>(d, b.keys, scores, b.v + c, add);
      }
    });
  });
}

// Keys of the normaliser summed over a chunk up to token t: ksum is [2][size], whole subtotals of kSubtotal tokens and
// the open one. Takes in k, the packed features of token t, and gives seen(c, sum) the sums of both, vector by vector.
template <class Seen>
HWY_INLINE void add_key(const float* k, std::int64_t t, std::int64_t size, float* ksum, const Seen& seen) {
  const Full d;
  const bool closes = (t + 1) % kSubtotal == 0;
  for (std::int64_t c = 0; c < size; c += kLanes) {
    const auto before = hn::LoadU(d, ksum + c);
    const auto part = hn::Add(hn::LoadU(d, ksum + size + c), hn::LoadU(d, k + c));
    const auto sum = hn::Add(before, part);
    hn::StoreU(closes ? sum : before, d, ksum + c);
    hn::StoreU(closes ? hn::Zero(d) : part, d, ksum + size + c);
    seen(c, sum);
  }
}

// Rows of tokens [t0, t0 + rows) of the chunk.
HWY_INLINE void add_keys(const float* k, std::int64_t t0, std::int64_t rows, std::int64_t size, float* ksum) {
  for (std::int64_t t = 0; t < rows; ++t) add_key(k + t * kRow, t0 + t, size, ksum, [](std::int64_t, auto) HWY_ATTR {});
}

// The same for a whole chunk, kTokens tokens at a time from its first on: sum += their subtotals.
HWY_INLINE void sum_rows(const float* packed, std::int64_t tokens, std::int64_t size, float* sum) {
  const Full d;
  for (std::int64_t c = 0; c < size; c += kLanes) {
    auto total = hn::LoadU(d, sum + c);
    for (std::int64_t t = 0; t < tokens;) {
      auto part = hn::Zero(d);
      for (const std::int64_t end = HWY_MIN(t + kSubtotal, tokens); t < end; ++t) {
        part = hn::Add(part, hn::LoadU(d, packed + t * kRow + c));
      }
      total = hn::Add(total, part);
    }
    hn::StoreU(total, d, sum + c);
  }
}

// den_t = eps + q_t . (z + m sum_{s<=t} k_s) for packed rows q and k of consecutive tokens from token t0 of the chunk
// on; ksum moves on. factors[t] = scale / den_t.
HWY_INLINE void causal_factors(const float* q, const float* k, std::int64_t t0, std::int64_t rows, std::int64_t size,
                               const float* maybe_z, float m, float eps, float scale, float* ksum, float* factors) {
  const Full d;
  const auto diagonal = hn::Set(d, m);
  for (std::int64_t t = 0; t < rows; ++t) {
    hn::Vec<Full> sums[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
    add_key(k + t * kRow, t0 + t, size, ksum, [&](std::int64_t c, auto sum) HWY_ATTR {
      const auto all = hn::MulAdd(diagonal, sum, maybe_z ? hn::LoadU(d, maybe_z + c) : hn::Zero(d));
      sums[0] = hn::MulAdd(hn::LoadU(d, q + t * kRow + c), all, sums[0]);
    });
    float den[4];
    store_four_sums(sums, 1.0f, den);
    factors[t] = scale / (eps + den[0]);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace mhla
HWY_AFTER_NAMESPACE();

#endif
