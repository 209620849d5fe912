// The products of the causal backward that the forward does not have. Scores of a block are A[t][s] = q~_t . k~_s and
// dA[t][s] = g_t . v_s; the forward's readout serves dq~ = g P^T + m dA k~ with g, v, k~ for q~, k~, v.
// Here:
//   rows of keys:  dk~_s = v_s dS^T + m sum_{t>=s} dA[t][s] q~_t,   dv_s = k~_s dS + m sum_{t>=s} A[t][s] g_t
//   coefficients:  dm_ii = sum_{s<=t} A[t][s] dA[t][s],             dm[i,b] = <dP_i, S_b>
#include "mhla/kernels/chunkwise/chunkwise_simd-inl.h"
#include "mhla/kernels/common/simd/mix-inl.h"

#if defined(MHLA_KERNELS_CHUNKWISE_CHUNKWISE_SIMD_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHLA_KERNELS_CHUNKWISE_CHUNKWISE_SIMD_BACKWARD_INL_H_
#undef MHLA_KERNELS_CHUNKWISE_CHUNKWISE_SIMD_BACKWARD_INL_H_
#else
#define MHLA_KERNELS_CHUNKWISE_CHUNKWISE_SIMD_BACKWARD_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace mhla {
namespace HWY_NAMESPACE {

// Sizes of the backward pass. A row is S^T_b in panels, E x D, then z_b.
struct BackwardSizes {
  std::int64_t M, C, D, E;
  std::int64_t Dp, Ep;           // rounded up to whole vectors
  std::int64_t group, prefixes;  // query heads per kv head, and mixes among them
  bool normalized, has_den;
  std::int64_t z, size, stride;  // of a row: where z begins, columns that are mixed, distance of two rows
  bool early;                    // dq belongs to the queries' step

  explicit BackwardSizes(const Problem& p)
      : M(p.M),
        C(p.layout.block_size),
        D(p.D),
        E(p.E),
        Dp(round_up(D, kLanes)),
        Ep(round_up(E, kLanes)),
        group(p.group()),
        prefixes(p.Hm > 1 ? p.group() : 1),
        normalized(p.normalized()),
        has_den(p.has_den()),
        z(round_up(E * padded_columns(D), kLanes)),
        size(z + (normalized ? Dp : 0)),
        stride((round_up(size, 16) / 16 | 1) * 16),
        early(normalized || prefixes > 1 || p.part.given()) {}
};

struct BackwardScratch {
  float *q, *k, *v, *g, *q_den, *k_den;  // [kTokens][kRow]
  float *a, *b, *c;                      // [kTokens][kRow]  rows of dk~, dv, dq~
  float* ksum;                           // [kTokens][kRow]  running sums of the normaliser's keys
  float *A, *dA;                         // [kTokens][kScoreRow]
  float *carry, *ones;                   // [2][kRow], [kTokens]
  float* turned;                         // dS, not transposed
  float* strip;
};

// Memory of one unit at work.
struct BackwardSlot {
  float *S, *P, *dP, *dS;         // [M][stride]  dS is dP unless heads have a mix of their own
  float* W;                       // [M][M]       coefficients, of `extend` too; only b <= i is set
  float *lower, *upper;           // packed for the two mixing products
  float* dm;                      // [M][M]  below the diagonal
  double* diagonal;               // [M]     on it
  float *factors, *inverse, *dn;  // [group][tokens]  scale / den, 1 / den, gradient of den
};

inline BackwardSlot take_slot(Workspace& w, const BackwardSizes& s, std::int64_t longest) {
  BackwardSlot x{};
  x.S = w.take<float>(s.M * s.stride, "summaries");
  x.P = w.take<float>(s.M * s.stride, "mixed prefixes");
  x.dP = w.take<float>(s.M * s.stride, "gradients of prefixes");
  x.dS = s.prefixes > 1 ? w.take<float>(s.M * s.stride, "gradients of summaries") : x.dP;
  x.W = w.take<float>(s.M * s.M, "coefficients");
  const std::int64_t packed = mix_tiles(s.M, s.M) * (s.M + kMixTile) * kMixTile;
  x.lower = w.take<float>(packed, "packed mix"), x.upper = w.take<float>(packed, "packed mix");
  x.dm = w.take<float>(s.M * s.M, "dmix of a unit"), x.diagonal = w.take<double>(s.M, "dmix of a unit");
  x.factors = w.take<float>(s.group * longest, "factors");
  if (s.normalized) x.inverse = w.take<float>(s.group * longest, "denominators");
  if (s.normalized) x.dn = w.take<float>(s.group * longest, "gradients of denominators");
  return x;
}

inline BackwardScratch take_scratch(Workspace& w, const BackwardSizes& s) {
  const auto rows = [&](const char* name) { return w.take<float>(kTokens * kRow, name); };
  BackwardScratch x{};
  x.q = rows("packed q"), x.k = rows("packed k"), x.v = rows("packed v"), x.g = rows("packed dout");
  if (s.has_den) x.q_den = rows("packed q_den"), x.k_den = rows("packed k_den");
  x.a = rows("dk rows"), x.b = rows("dv rows"), x.c = rows("dq rows");
  if (s.normalized) x.ksum = rows("running k");
  x.A = w.take<float>(kTokens * kScoreRow, "scores"), x.dA = w.take<float>(kTokens * kScoreRow, "scores");
  x.carry = w.take<float>(2 * kRow, "running sum"), x.ones = w.take<float>(kTokens, "ones");
  if (!w.counting()) std::fill_n(x.ones, kTokens, 1.0f);
  x.turned = w.take<float>(s.D * padded_columns(s.E), "summary gradient");
  x.strip = w.take<float>(mix_group_strip_size(s.M, s.M), "strip");
  return x;
}

// One block of queries for `rows` keys: to = from + x B + scores^T values, B in panels of K rows.
struct AdjointBlock {
  const float* x;  // [rows][kRow]
  std::int64_t rows, K, columns;
  const float* maybe_B;
  const float* scores;  // [queries][kScoreRow]
  const float* values;  // [queries][kRow]
  std::int64_t queries;
  bool diagonal;  // query t sees the keys s <= t of the block
  const float* maybe_from;
  float* to;  // [rows][kRow]
};

template <int R, int V, class DF>
HWY_INLINE void adjoint_tile(DF d, const AdjointBlock& b, std::int64_t s0, std::int64_t c, NextRows& next) {
  constexpr std::int64_t L = static_cast<std::int64_t>(hn::MaxLanes(DF()));
  hn::Vec<DF> acc[R][V];
  MHLA_UNROLL(8)
  for (int r = 0; r < R; ++r) {
    MHLA_UNROLL(2)
    for (int v = 0; v < V; ++v) acc[r][v] = hn::Zero(d);
  }
  if (b.maybe_B) {
    const float* panel = b.maybe_B + c * b.K;
    const float* x = b.x + s0 * kRow;
    for (std::int64_t k = 0; k < b.K;) {
      for (const std::int64_t end = HWY_MIN(k + 4, b.K); k < end; ++k) {
        causal_step<R, V, kRow>(d, x + k, panel + k * V * L, 0, acc);
      }
      next();
    }
  }
  const float* scores = b.scores + s0;
  const float* values = b.values + c;
  std::int64_t t = 0;
  if (b.diagonal) {
    t = s0;
    MHLA_UNROLL(8)
    for (int j = 0; j < R; ++j, ++t) {  // query s0 + j sees the keys up to itself
      hn::Vec<DF> row[V];
      MHLA_UNROLL(2)
      for (int v = 0; v < V; ++v) row[v] = hn::LoadU(d, values + t * kRow + v * L);
      MHLA_UNROLL(8)
      for (int r = 0; r < R; ++r) {
        if (r > j) continue;
        const auto weight = hn::Set(d, scores[t * kScoreRow + r]);
        MHLA_UNROLL(2)
        for (int v = 0; v < V; ++v) acc[r][v] = hn::MulAdd(weight, row[v], acc[r][v]);
      }
    }
  }
  for (; t < b.queries; ++t) causal_step<R, V, 1>(d, scores + t * kScoreRow, values + t * kRow, 0, acc);
  if (b.maybe_from) {  // added last: a sum of blocks rounds less than one long chain
    MHLA_UNROLL(8)
    for (int r = 0; r < R; ++r) {
      MHLA_UNROLL(2)
      for (int v = 0; v < V; ++v) {
        acc[r][v] = hn::Add(acc[r][v], hn::LoadU(d, b.maybe_from + (s0 + r) * kRow + c + v * L));
      }
    }
  }
  MHLA_UNROLL(8)
  for (int r = 0; r < R; ++r) {
    MHLA_UNROLL(2)
    for (int v = 0; v < V; ++v) hn::StoreU(acc[r][v], d, b.to + (s0 + r) * kRow + c + v * L);
  }
}

inline HWY_NOINLINE void adjoint_readout(const AdjointBlock& b, NextRows& next) {
  for_each_panel(b.columns, [&](auto d, auto vectors, std::int64_t c, std::int64_t) HWY_ATTR {
    constexpr int V = decltype(vectors)::value;
    for_each_row_tile<V>(b.rows, [&](auto count, std::int64_t s0)
                                     HWY_ATTR { adjoint_tile<decltype(count)::value, V>(d, b, s0, c, next); });
  });
}

// sum of a[t][s] b[t][s] over the keys that are seen. What is not seen may be anything and is not touched. Terms cancel
// when there is a normaliser, so sums of 16 are added up in f64.
inline HWY_NOINLINE double seen_product(const float* a, const float* b, std::int64_t queries, std::int64_t keys,
                                        bool diagonal) {
  const Full d;
  double total = 0;
  for (std::int64_t t = 0; t < queries; ++t, a += kScoreRow, b += kScoreRow) {
    const std::int64_t end = diagonal ? HWY_MIN(t + 1, keys) : keys;
    for (std::int64_t s0 = 0; s0 < end; s0 += 16) {
      auto sum = hn::Zero(d);
      for (std::int64_t s = s0; s < HWY_MIN(s0 + 16, end); s += kLanes) {
        const auto mask = hn::FirstN(d, static_cast<std::size_t>(HWY_MIN(end - s, kLanes)));
        const auto left = hn::IfThenElseZero(mask, hn::LoadU(d, a + s));
        sum = hn::MulAdd(left, hn::IfThenElseZero(mask, hn::LoadU(d, b + s)), sum);
      }
      total += hn::GetLane(hn::SumOfLanes(d, sum));
    }
  }
  return total;
}

inline HWY_NOINLINE void scale_scores(float factor, std::int64_t queries, float* scores) {
  for (std::int64_t t = 0; t < queries; ++t) {
    const Full d;
    const auto f = hn::Set(d, factor);
    for (std::int64_t s = 0; s < kTokens; s += kLanes) {
      float* to = scores + t * kScoreRow + s;
      hn::StoreU(hn::Mul(hn::LoadU(d, to), f), d, to);
    }
  }
}

// dm[i][b] = <d_i, s_b> for i in [i0, i1), b < i, over Z columns in spans that keep their rows in the second-level
// cache. Four by four, so entries up to three beyond the diagonal are computed as well, from whatever lies there.
inline HWY_NOINLINE void causal_mix_gradient(const float* grads, const float* summaries, std::int64_t stride,
                                             std::int64_t Z, std::int64_t M, std::int64_t i0, std::int64_t i1,
                                             float* dm) {
  for (std::int64_t i = i0; i < i1; ++i) set_zero(dm + i * M, M);
  constexpr std::int64_t kSpan = HWY_MIN(kDotSpan, 64 * kLanes);  // 64 terms per lane, whatever the vector
  for (std::int64_t x = 0; x < Z; x += kSpan) {
    const std::int64_t span = HWY_MIN(kSpan, Z - x);
    for (std::int64_t i = i0; i < i1;) {
      const bool four_i = i + 4 <= i1;
      const std::int64_t end = four_i ? i + 3 : i;  // blocks b < end
      for (std::int64_t b = 0; b < end;) {
        const bool four_b = b + 4 <= M;
        const float* g = grads + i * stride + x;
        const float* s = summaries + b * stride + x;
        float* to = dm + i * M + b;
        if (four_i && four_b)
          dot_tile<4, 4>(g, s, stride, span, to, M);
        else if (four_i)
          dot_tile<4, 1>(g, s, stride, span, to, M);
        else if (four_b)
          dot_tile<1, 4>(g, s, stride, span, to, M);
        else
          dot_tile<1, 1>(g, s, stride, span, to, M);
        b += four_b ? 4 : 1;
      }
      i += four_i ? 4 : 1;
    }
  }
}

// Rows of T times a factor each, in f32.
template <class T>
HWY_INLINE void pack_scaled(const RowSource<T>& source, std::int64_t t0, std::int64_t tokens, std::int64_t size,
                            const float* factors, float* to) {
  const Full d;
  pack_source(FeatureMap::kIdentity, source, t0, tokens, size, to);
  for (std::int64_t t = 0; t < tokens; ++t) {
    const auto factor = hn::Set(d, factors[t]);
    for (std::int64_t c = 0; c < size; c += kLanes) {
      float* x = to + t * kRow + c;
      hn::StoreU(hn::Mul(hn::LoadU(d, x), factor), d, x);
    }
  }
}

// out_t = rows_t phi'(x_t), narrowed.
template <class T>
HWY_NOINLINE void store_gradients(FeatureMap map, const RowSource<T>& x, const float* rows, std::int64_t t0,
                                  std::int64_t tokens, std::int64_t size, T* out, std::int64_t out_stride) {
  with_feature_map(map, [&](auto m) HWY_ATTR {
    for (std::int64_t t = 0; t < tokens; ++t) {
      const T* raw = x(t0 + t);
      store_row(out + (t0 + t) * out_stride, size, [&](std::int64_t c) HWY_ATTR {
        const auto grad = hn::LoadU(Full(), rows + t * kRow + c);
        return feature_gradient<decltype(m)::value>(Full(), load_row(raw, size, c), grad);
      });
    }
  });
}

// dmix from its partial sums [Hkv][groups][prefixes][rows][rows], in the order of kv heads and groups of sequences;
// exactly 0 where no coefficient was used.
inline void store_dmix(const Problem& p, const double* partial, std::int64_t groups, std::int64_t prefixes,
                       std::int64_t rows) {
  const View& dmix = p.dmix;
  for (std::int64_t m = 0; m < p.Hm; ++m) {
    for (std::int64_t i = 0; i < p.L; ++i) {
      for (std::int64_t b = 0; b < p.L; ++b) {
        double sum = 0;
        for (std::int64_t head = 0; i < rows && b <= i && head < p.Hkv; ++head) {
          if (p.Hm > 1 && head != m / p.group()) continue;
          for (std::int64_t group = 0; group < groups; ++group) {
            const std::int64_t part = (head * groups + group) * prefixes + (p.Hm > 1 ? m % p.group() : 0);
            sum += partial[(part * rows + i) * rows + b];
          }
        }
        store_f64(dmix.data, dmix.dtype, m * dmix.stride[0] + i * dmix.stride[1] + b * dmix.stride[2], sum);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace mhla
HWY_AFTER_NAMESPACE();

#endif
