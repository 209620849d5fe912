// The arithmetic inside a chunk of the causal form, shared by one pass, append and decode. For token t of chunk i
//   num_t[e] = sum_d q~_t[d] P_i[d][e] + sum_{s<=t} a_ts v_s[e],   a_ts = m_ii (q~_t . k~_s)
// Every num_t[e] is one chain of fused multiply-adds: d ascending, then s ascending. Every q~ . k~ is one chain per
// lane over the vectors of a row, then one fixed tree over the lanes. So it does not matter for the bits how tokens
// are tiled or how a sequence was split into calls. Scores above the diagonal are never multiplied with anything.
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

// One tile of num: R rows, V vectors. First the prefix, K rows of P, then `common` keys that all rows see, then, on
// the diagonal, key common + j for the rows behind it.
template <int R, int V, bool kDiagonal, class DF, class Finish, class Between>
HWY_INLINE void causal_tile(DF d, std::int64_t K, const float* HWY_RESTRICT q, const float* HWY_RESTRICT P,
                            std::int64_t common, const float* HWY_RESTRICT scores, const float* HWY_RESTRICT v,
                            const float* maybe_from, const Finish& finish, Between& between) {
  constexpr std::int64_t L = static_cast<std::int64_t>(hn::MaxLanes(DF()));
  hn::Vec<DF> acc[R][V];
  MHLA_UNROLL(8)
  for (int r = 0; r < R; ++r) {
    MHLA_UNROLL(2)
    for (int c = 0; c < V; ++c) acc[r][c] = hn::Zero(d);
  }
  if (maybe_from) {
    MHLA_UNROLL(8)
    for (int r = 0; r < R; ++r) {
      MHLA_UNROLL(2)
      for (int c = 0; c < V; ++c) acc[r][c] = hn::LoadU(d, maybe_from + r * kRow + c * L);
    }
  }
  for (std::int64_t k = 0; k < K;) {
    for (const std::int64_t end = HWY_MIN(k + 4, K); k < end; ++k) {
      causal_step<R, V, kRow>(d, q + k, P + k * V * L, 0, acc);
    }
    between();
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

// One block of keys for `rows` queries. maybe_P: the prefix in panels, with the first block of keys only. maybe_from:
// packed rows [rows][kRow] to continue from. Diagonal: the first query is key `first` of the block.
struct ReadBlock {
  const float* q;
  std::int64_t rows, D, E;
  const float* maybe_P;
  const float* scores;
  const float* v;
  std::int64_t keys;
  bool diagonal;
  std::int64_t first;
  const float* maybe_from;
  const float* maybe_add;      // the same, but a chain of its own is added to it: less rounding, other bits
  const float* maybe_factors;  // [rows]  given with the last block: the result is multiplied
  float* to;                   // [rows][to_stride], written up to the padding of the last panel
  std::int64_t to_stride;
};

// between() is called every fourth step over the prefix.
template <class Between>
HWY_INLINE void causal_readout(const ReadBlock& b, Between&& between) {
  const std::int64_t K = b.maybe_P ? b.D : 0;
  for_each_panel(b.E, [&](auto d, auto vectors, std::int64_t c, std::int64_t) HWY_ATTR {
    constexpr int V = decltype(vectors)::value;
    constexpr std::int64_t L = static_cast<std::int64_t>(hn::MaxLanes(decltype(d)()));
    const float* panel = b.maybe_P ? b.maybe_P + c * b.D : nullptr;
    for_each_row_tile<V>(b.rows, [&](auto count, std::int64_t r0) HWY_ATTR {
      constexpr int R = decltype(count)::value;
      const float* scores = b.scores + r0 * kScoreRow;
      const float* from = b.maybe_from ? b.maybe_from + r0 * kRow + c : nullptr;
      float* to = b.to + r0 * b.to_stride + c;
      const float* add = b.maybe_add ? b.maybe_add + r0 * kRow + c : nullptr;
      const auto total = [&](int r, int i, auto value)
                             HWY_ATTR { return add ? hn::Add(value, hn::LoadU(d, add + r * kRow + i * L)) : value; };
      if (b.diagonal) {
        const float* factors = b.maybe_factors + r0;
        causal_tile<R, V, true>(
            d, K, b.q + r0 * kRow, panel, b.first + r0 + 1, scores, b.v + c, from,
            [&](int r, int i, auto value) HWY_ATTR {
              const auto scaled = hn::Mul(total(r, i, value), hn::Set(d, factors[r]));
              hn::StoreU(scaled, d, to + r * b.to_stride + i * L);
            },
            between);
      } else {
        const auto keep = [&](int r, int i, auto value)
                              HWY_ATTR { hn::StoreU(total(r, i, value), d, to + r * b.to_stride + i * L); };
        causal_tile<R, V, false>(d, K, b.q + r0 * kRow, panel, b.keys, scores, b.v + c, from, keep, between);
      }
    });
  });
}

// den_t = eps + q_t . (z + m sum_{s<=t} k_s) for packed rows q and k of consecutive tokens; ksum, the sum over the
// chunk so far, moves on. factors[t] = scale / den_t.
HWY_INLINE void causal_factors(const float* q, const float* k, std::int64_t rows, std::int64_t size,
                               const float* maybe_z, float m, float eps, float scale, float* ksum, float* factors) {
  const Full d;
  const auto diagonal = hn::Set(d, m);
  for (std::int64_t t = 0; t < rows; ++t) {
    hn::Vec<Full> sums[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
    for (std::int64_t c = 0; c < size; c += kLanes) {
      const auto total = hn::Add(hn::LoadU(d, ksum + c), hn::LoadU(d, k + t * kRow + c));
      hn::StoreU(total, d, ksum + c);
      const auto seen = hn::MulAdd(diagonal, total, maybe_z ? hn::LoadU(d, maybe_z + c) : hn::Zero(d));
      sums[0] = hn::MulAdd(hn::LoadU(d, q + t * kRow + c), seen, sums[0]);
    }
    float den[4];
    store_four_sums(sums, 1.0f, den);
    factors[t] = scale / (eps + den[0]);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace mhla
HWY_AFTER_NAMESPACE();

#endif
