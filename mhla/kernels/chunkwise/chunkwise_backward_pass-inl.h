// The causal form on CPU vectors, backward (README.md, eq. 5 to 11). Nothing is kept from the forward. Per unit, one
// (sequence, kv head), everything about E x D matrices is transposed, so that summaries, prefixes and their gradients
// are already the panels that the products with v and g want:
//   1. S^T_b and z_b of every chunk          2. P^T_i = sum_{b<i} m[i,b] S^T_b
//   3. g = scale dout / den, dP^T_i = g^T q~ 4. dm[i,b] = <dP_i, S_b>      5. dS^T_b = sum_{i>b} m[i,b] dP^T_i
//   6. dq, dk, dv of every chunk, with the scores inside it
// With a normaliser, or a mix per head that the heads of a group do not share, dq belongs to step 3, because the
// gradient of the denominator needs it, or because the prefix of the next head takes the place of this one.
#include "mhla/kernels/chunkwise/chunkwise_backward_simd-inl.h"

#if defined(MHLA_KERNELS_CHUNKWISE_CHUNKWISE_BACKWARD_PASS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHLA_KERNELS_CHUNKWISE_CHUNKWISE_BACKWARD_PASS_INL_H_
#undef MHLA_KERNELS_CHUNKWISE_CHUNKWISE_BACKWARD_PASS_INL_H_
#else
#define MHLA_KERNELS_CHUNKWISE_CHUNKWISE_BACKWARD_PASS_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace mhla {
namespace HWY_NAMESPACE {

// dmix is summed over at most this many partial sums: sequences fall into groups by their number alone.
inline constexpr std::int64_t kMixGroups = 64;

template <class T>
class CausalBackward {
 public:
  CausalBackward(const Problem& p, Workspace& w, Executor& executor) : p_(p), executor_(executor), s_(p) {
    rows_ = HWY_MIN(p.L, p.M);
    const auto sequences = static_cast<std::int64_t>(p.sequences.size());
    groups_ = HWY_MIN(sequences, HWY_MAX(1, kMixGroups / p.Hkv));
    const int workers = executor.concurrency();
    unit_tasks_ = groups_ * p.Hkv >= workers;
    if (p.dmix.given()) partial_ = w.take<double>(p.Hkv * groups_ * s_.prefixes * rows_ * rows_, "partial dmix");
    std::int64_t longest = 0;
    for (const Sequence& sequence : p.sequences) longest = HWY_MAX(longest, sequence.length);
    for (int slot = 0; slot < (unit_tasks_ ? workers : 1); ++slot) slots_.push_back(take_slot(w, s_, longest));
    for (int worker = 0; worker < workers; ++worker) scratch_.push_back(take_scratch(w, s_));
  }

  virtual ~CausalBackward() = default;
  CausalBackward(const CausalBackward&) = delete;
  CausalBackward& operator=(const CausalBackward&) = delete;

  void run() {
    const std::int64_t tasks = groups_ * p_.Hkv;
    if (unit_tasks_) {
      executor_.run(tasks, [&](std::int64_t task, int worker) HWY_ATTR {
        InlineExecutor inner;
        run_group(task, slots_[static_cast<std::size_t>(worker)], inner, &scratch_[static_cast<std::size_t>(worker)]);
      });
    } else {
      for (std::int64_t task = 0; task < tasks; ++task) run_group(task, slots_[0], executor_, scratch_.data());
    }
    if (p_.dmix.given()) store_dmix(p_, partial_, groups_, s_.prefixes, rows_);
  }

 protected:  // chunkwise_part-inl.h has the phases apart
  // One unit: where its rows are, and which chunks it has.
  struct Unit {
    Sequence sequence;
    std::int64_t kv_head, M;
    std::int64_t first, end;  // its chunks: all M, or those of a part. Rows of memory have the numbers of chunks
    RowSource<T> k, v, k_den;
    std::vector<RowSource<T>> q, q_den, dout;  // per head of the group
    BackwardSlot* x;
    std::int64_t start(std::int64_t i, std::int64_t C) const { return (i - first) * C; }  // first token of chunk i
    std::int64_t tokens(std::int64_t i, std::int64_t C) const { return HWY_MIN(C, sequence.length - start(i, C)); }
  };

  RowSource<T> source(const ConstView& x, const Sequence& sequence, std::int64_t head) const {
    if (!x.given()) return {};
    return {data_as<T>(x) + sequence.batch * x.stride[0] + sequence.start * x.stride[1] + head * x.stride[2],
            x.stride[1]};
  }
  static T* rows_of(const View& x, const Sequence& sequence, std::int64_t head) {
    return data_as<T>(x) + sequence.batch * x.stride[0] + sequence.start * x.stride[1] + head * x.stride[2];
  }

  // The sequences of one group, one kv head, in order.
  void run_group(std::int64_t task, BackwardSlot& slot, Executor& inner, BackwardScratch* scratch) {
    const auto S = static_cast<std::int64_t>(p_.sequences.size());
    const std::int64_t kv_head = task / groups_, group = task % groups_;
    double* partial = partial_ ? partial_ + task * s_.prefixes * rows_ * rows_ : nullptr;
    if (partial) std::fill_n(partial, s_.prefixes * rows_ * rows_, 0.0);
    for (std::int64_t s = group * S / groups_; s < (group + 1) * S / groups_; ++s) {
      const Sequence& sequence = p_.sequences[static_cast<std::size_t>(s)];
      if (sequence.length == 0) continue;
      const std::int64_t chunks = (sequence.length + s_.C - 1) / s_.C;
      Unit u{sequence,
             kv_head,
             p_.part.given() ? p_.M : chunks,
             p_.part.first,
             p_.part.first + chunks,
             source(p_.k, sequence, kv_head),
             source(p_.v, sequence, kv_head),
             source(p_.maybe_k_den, sequence, kv_head),
             {},
             {},
             {},
             &slot};
      for (std::int64_t h = kv_head * s_.group; h < (kv_head + 1) * s_.group; ++h) {
        u.q.push_back(source(p_.q, sequence, h)), u.q_den.push_back(source(p_.maybe_q_den, sequence, h));
        u.dout.push_back(source(p_.dout, sequence, h));
      }
      run_one(u, partial, inner, scratch);
    }
  }

  virtual void run_one(const Unit& u, double* partial, Executor& inner, BackwardScratch* scratch) {
    BackwardSlot& x = *u.x;
    const std::int64_t heads = s_.group / s_.prefixes;  // that share a mix
    if (!s_.normalized) std::fill_n(x.factors, s_.group * u.sequence.length, static_cast<float>(p_.scale));
    inner.run(u.M - 1, [&](std::int64_t b, int worker) HWY_ATTR { summary(u, b, scratch[worker]); });
    for (std::int64_t m = 0; m < s_.prefixes; ++m) {
      coefficients(u, m * heads);
      mix(u, x.S, x.P, inner, scratch, /*adjoint=*/false);
      inner.run(u.M, [&](std::int64_t i, int worker) HWY_ATTR { queries(u, i, m * heads, heads, scratch[worker]); });
      if (partial) mix_gradients(u, inner);
      mix(u, x.dP, s_.prefixes > 1 ? x.P : x.dP, inner, scratch, /*adjoint=*/true);
      if (s_.prefixes > 1) add_summary_gradients(u, m == 0);
      if (s_.early && partial) add_partial(u, partial + m * rows_ * rows_);
    }
    inner.run(u.M, [&](std::int64_t i, int worker) HWY_ATTR { keys(u, i, scratch[worker]); });
    if (!s_.early && partial) add_partial(u, partial);
  }

  // Step 4.
  void mix_gradients(const Unit& u, Executor& inner) const {
    constexpr std::int64_t kRows = 32;
    const std::int64_t first = HWY_MAX(std::int64_t{1}, u.first);
    inner.run(HWY_MAX(std::int64_t{0}, u.end - first + kRows - 1) / kRows, [&](std::int64_t task, int) HWY_ATTR {
      causal_mix_gradient(u.x->dP, u.x->S, s_.stride, s_.size, u.M, first + task * kRows,
                          HWY_MIN(first + (task + 1) * kRows, u.end), u.x->dm);
    });
  }

  [[nodiscard]] float coefficient(const Unit& u, std::int64_t j, std::int64_t i, std::int64_t b) const {
    const MixIndex at = mix_index(i, b, p_.L);
    const std::int64_t m = p_.Hm > 1 ? u.kv_head * s_.group + j : 0;
    return data_as<float>(p_.mix)[m * p_.mix.stride[0] + at.row * p_.mix.stride[1] + at.column * p_.mix.stride[2]];
  }

  // The matrix of head j of the group, packed for mixing in both directions. Seen from the last block backwards, the
  // adjoint is a lower triangle too: block M-1-b gathers blocks M-1-i, i > b.
  void coefficients(const Unit& u, std::int64_t j) const {
    const std::int64_t M = u.M;
    for (std::int64_t i = 0; i < M; ++i) {
      for (std::int64_t b = 0; b <= i; ++b) u.x->W[i * M + b] = coefficient(u, j, i, b);
    }
    pack_causal_mix(view(u, false), mixed(u, false).first, mixed(u, false).end, M + kMixTile, u.x->lower);
    pack_causal_mix(view(u, true), mixed(u, true).first, mixed(u, true).end, M + kMixTile, u.x->upper);
  }
  // Rows of the two mixing products that the unit's chunks need.
  struct MixRows {
    std::int64_t first, end;
  };
  [[nodiscard]] static MixRows mixed(const Unit& u, bool adjoint) {
    const std::int64_t first = adjoint ? u.M - u.end : u.first, end = adjoint ? u.M - u.first : u.end;
    return {HWY_MIN(HWY_MAX(std::int64_t{1}, first), end), end};
  }
  [[nodiscard]] MixView view(const Unit& u, bool adjoint) const {
    if (adjoint) return {u.x->W + u.M * u.M - 1, -1, -u.M, u.M};
    return {u.x->W, u.M, 1, u.M};
  }

  // to_i = sum_{b<i} m[i,b] from_b, or to_b = sum_{i>b} m[i,b] from_i. `to` may be `from`.
  void mix(const Unit& u, float* from, float* to, Executor& inner, BackwardScratch* scratch, bool adjoint) const {
    const MixRows rows = mixed(u, adjoint);
    if (rows.first == rows.end || u.M < 2) return;
    const std::int64_t step = adjoint ? -s_.stride : s_.stride, first = adjoint ? (u.M - 1) * s_.stride : 0;
    SummaryStore store;
    store.slots = from + first, store.slot_stride = step, store.count = u.M;
    constexpr std::int64_t kColumns = 64 * kLanes;
    inner.run((s_.size + kColumns - 1) / kColumns, [&](std::int64_t index, int worker) HWY_ATTR {
      const std::int64_t x0 = index * kColumns;
      mix_group(store, view(u, adjoint), rows.first, rows.end, adjoint ? u.x->upper : u.x->lower, u.M + kMixTile, x0,
                HWY_MIN(x0 + kColumns, s_.size), scratch[worker].strip,
                [&](std::int64_t i) HWY_ATTR { return to + first + i * step; });
    });
  }

  // Step 1.
  void summary(const Unit& u, std::int64_t b, BackwardScratch& x) const {
    float* S = u.x->S + b * s_.stride;
    set_zero(S + s_.E * padded_columns(s_.D), s_.stride - s_.E * padded_columns(s_.D));
    for (std::int64_t t = 0; t < s_.C; t += kTokens) {
      const std::int64_t tokens = HWY_MIN(kTokens, s_.C - t);
      NextRows next;
      if (b + 2 < u.M || t + kTokens < s_.C) next_keys(u, b * s_.C + t + kTokens, next);
      pack_keys(u, b * s_.C + t, tokens, x);
      if (s_.normalized) sum_rows(normalizer_keys(u, b * s_.C + t, tokens, x), tokens, s_.Dp, S + s_.z);
      packed_summary(x.v, x.k, tokens, s_.E, s_.D, t > 0 ? Sum::kAdd : Sum::kStart, S, next);
    }
  }

  // Rows from token t on, for the fetch while something else is computed.
  void next_keys(const Unit& u, std::int64_t t, NextRows& next) const {
    const std::int64_t tokens = HWY_MAX(0, HWY_MIN(kTokens, u.sequence.length - t));
    next.add(u.k, t, tokens, s_.D), next.add(u.v, t, tokens, s_.E);
  }
  void next_queries(const Unit& u, std::int64_t j, std::int64_t t, NextRows& next) const {
    const std::int64_t tokens = HWY_MAX(0, HWY_MIN(kTokens, u.sequence.length - t));
    next.add(u.q[j], t, tokens, s_.D), next.add(u.dout[j], t, tokens, s_.E);
  }
  void pack_keys(const Unit& u, std::int64_t t, std::int64_t tokens, BackwardScratch& x) const {
    pack_source(p_.feature_map, u.k, t, tokens, s_.D, x.k);
    pack_source(FeatureMap::kIdentity, u.v, t, tokens, s_.E, x.v);
  }
  // Features of the denominator for tokens that are packed already.
  const float* normalizer_keys(const Unit& u, std::int64_t t, std::int64_t tokens, BackwardScratch& x) const {
    if (s_.has_den) pack_source(p_.feature_map, u.k_den, t, tokens, s_.D, x.k_den);
    return s_.has_den ? x.k_den : x.k;
  }
  const float* normalizer_queries(const Unit& u, std::int64_t j, std::int64_t t, std::int64_t tokens,
                                  BackwardScratch& x) const {
    if (s_.has_den) pack_source(p_.feature_map, u.q_den[j], t, tokens, s_.D, x.q_den);
    return s_.has_den ? x.q_den : x.q;
  }
  void pack_queries(const Unit& u, std::int64_t j, std::int64_t t, std::int64_t tokens, BackwardScratch& x) const {
    pack_source(p_.feature_map, u.q[j], t, tokens, s_.D, x.q);
    pack_scaled(u.dout[j], t, tokens, s_.E, u.x->factors + j * u.sequence.length + t, x.g);
  }

  // Step 3: dP_i of the heads [j0, j0 + heads), and with a normaliser or separate mixes their dq.
  void queries(const Unit& u, std::int64_t i, std::int64_t j0, std::int64_t heads, BackwardScratch& x) const {
    const std::int64_t n = u.tokens(i, s_.C), start = u.start(i, s_.C);
    float* dP = i > 0 ? u.x->dP + i * s_.stride : nullptr;
    if (dP) set_zero(dP + s_.E * padded_columns(s_.D), s_.stride - s_.E * padded_columns(s_.D));
    if (s_.early) u.x->diagonal[i] = 0;
    if (!dP && !s_.early) return;
    set_zero(x.carry, 2 * s_.Dp);
    for (std::int64_t row = 0; row < n; row += kTokens) {
      const std::int64_t rows = HWY_MIN(kTokens, n - row), t = start + row;
      if (s_.normalized) running_keys(u, i, t, rows, x);
      for (std::int64_t j = j0; j < j0 + heads; ++j) {
        if (s_.normalized) denominators(u, i, j, t, rows, x);
        pack_queries(u, j, t, rows, x);
        NextRows next;
        next_queries(u, j, t + rows, next);
        if (dP) packed_summary(x.g, x.q, rows, s_.E, s_.D, row > 0 || j > j0 ? Sum::kAdd : Sum::kStart, dP, next);
        if (!s_.early) continue;
        query_rows(u, i, j, row, rows, x);
        if (s_.normalized) denominator_gradient(u, i, j, t, rows, x);
        store_queries(u, j, t, rows, x);
      }
    }
  }

  // x.ksum[r] = sum of the normaliser's keys up to token t + r of chunk i; carry goes on with the next rows.
  void running_keys(const Unit& u, std::int64_t i, std::int64_t t, std::int64_t rows, BackwardScratch& x) const {
    if (!s_.has_den) pack_source(p_.feature_map, u.k, t, rows, s_.D, x.k);
    const float* k = normalizer_keys(u, t, rows, x);
    for (std::int64_t r = 0; r < rows; ++r) {
      add_key(k + r * kRow, t - u.start(i, s_.C) + r, s_.Dp, x.carry,
              [&](std::int64_t c, auto sum) HWY_ATTR { hn::StoreU(sum, Full(), x.ksum + r * kRow + c); });
    }
  }

  void denominators(const Unit& u, std::int64_t i, std::int64_t j, std::int64_t t, std::int64_t rows,
                    BackwardScratch& x) const {
    if (!s_.has_den) pack_source(p_.feature_map, u.q[j], t, rows, s_.D, x.q);
    const float* q = normalizer_queries(u, j, t, rows, x);
    const float m = coefficient(u, j, i, i);
    for (std::int64_t r = 0; r < rows; ++r) {
      float den = static_cast<float>(p_.eps);
      if (i > 0) den += dot(q + r * kRow, u.x->P + i * s_.stride + s_.z, s_.Dp);
      den += m * dot(q + r * kRow, x.ksum + r * kRow, s_.Dp);
      const std::int64_t at = j * u.sequence.length + t + r;
      u.x->factors[at] = static_cast<float>(p_.scale) / den;
      u.x->inverse[at] = 1.0f / den;
    }
  }

  // x.c = g P_i^T + m dA k~ for the packed rows [row, row + rows) of head j; their share of dm_ii where it is wanted.
  void query_rows(const Unit& u, std::int64_t i, std::int64_t j, std::int64_t row, std::int64_t rows,
                  BackwardScratch& x) const {
    const float m = coefficient(u, j, i, i);
    for (std::int64_t key = 0; key <= row; key += kTokens) {
      const bool diagonal = key == row;
      const std::int64_t count = diagonal ? rows : kTokens;
      pack_keys(u, u.start(i, s_.C) + key, count, x);
      score_product(x.g, x.v, rows, count, diagonal, 0, s_.Ep, 1.0f, x.dA);
      if (partial_) {
        score_product(x.q, x.k, rows, count, diagonal, 0, s_.Dp, 1.0f, x.A);
        u.x->diagonal[i] += seen_product(x.A, x.dA, rows, count, diagonal);
      }
      scale_scores(m, rows, x.dA);
      read_queries(u, i, key, rows, count, diagonal, x);
    }
  }
  void read_queries(const Unit& u, std::int64_t i, std::int64_t key, std::int64_t rows, std::int64_t count,
                    bool diagonal, BackwardScratch& x) const {
    NextRows none;
    packed_readout({.q = x.g,
                    .rows = rows,
                    .D = s_.E,
                    .E = s_.D,
                    .begins = key == 0,
                    .maybe_P = key == 0 && i > 0 ? u.x->P + i * s_.stride : nullptr,
                    .scores = x.dA,
                    .v = x.k,
                    .keys = count,
                    .diagonal = diagonal,
                    .first = 0,
                    .sums = x.c,
                    .maybe_factors = x.ones,
                    .maybe_to = x.c,
                    .to_stride = kRow},
                   none);
    const std::int64_t written = padded_columns(s_.D);
    for (std::int64_t r = 0; r < rows && written < s_.Dp; ++r) set_zero(x.c + r * kRow + written, s_.Dp - written);
  }

  // dn_t = -(q~_t . x.c_t) / den_t, and where it goes: dq_den, dz_i, dm_ii.
  void denominator_gradient(const Unit& u, std::int64_t i, std::int64_t j, std::int64_t t, std::int64_t rows,
                            BackwardScratch& x) const {
    const float* q = s_.has_den ? x.q_den : x.q;
    const float m = coefficient(u, j, i, i);
    const std::int64_t at = j * u.sequence.length + t;
    for (std::int64_t r = 0; r < rows; ++r) {
      float* row = x.c + r * kRow;
      const float dn = -dot(x.q + r * kRow, row, s_.Dp) * u.x->inverse[at + r];
      u.x->dn[at + r] = dn;
      u.x->diagonal[i] += static_cast<double>(dn) * dot(q + r * kRow, x.ksum + r * kRow, s_.Dp);
      if (i > 0) add_scaled(dn, q + r * kRow, s_.Dp, u.x->dP + i * s_.stride + s_.z);
      float* to = row;
      if (s_.has_den) {
        to = x.b + r * kRow;
        set_zero(to, s_.Dp);
      }
      if (i > 0) add_scaled(dn, u.x->P + i * s_.stride + s_.z, s_.Dp, to);
      add_scaled(dn * m, x.ksum + r * kRow, s_.Dp, to);
    }
    if (s_.has_den && p_.maybe_dq_den.given()) {
      const std::int64_t h = u.kv_head * s_.group + j;
      store_gradients(p_.feature_map, u.q_den[j], x.b, t, rows, s_.D, rows_of(p_.maybe_dq_den, u.sequence, h),
                      p_.maybe_dq_den.stride[1]);
    }
  }

  void store_queries(const Unit& u, std::int64_t j, std::int64_t t, std::int64_t rows, BackwardScratch& x) const {
    if (!p_.dq.given()) return;
    const std::int64_t h = u.kv_head * s_.group + j;
    store_gradients(p_.feature_map, u.q[j], x.c, t, rows, s_.D, rows_of(p_.dq, u.sequence, h), p_.dq.stride[1]);
  }

  // dS (+)= what the adjoint of one head's mix left in P.
  void add_summary_gradients(const Unit& u, bool first) const {
    for (std::int64_t b = u.first; b < HWY_MIN(u.end, u.M - 1); ++b) {
      float *to = u.x->dS + b * s_.stride, *from = u.x->P + b * s_.stride;
      if (first)
        std::copy_n(from, s_.size, to);
      else
        add_scaled(1.0f, from, s_.size, to);
    }
  }

  // Step 6: dk and dv of chunk i, and dq where it is not done yet.
  void keys(const Unit& u, std::int64_t i, BackwardScratch& x) const {
    const std::int64_t n = u.tokens(i, s_.C), start = u.start(i, s_.C), last = (n - 1) / kTokens * kTokens;
    const bool together = !s_.early && n <= kTokens;  // one block: scores serve dq, dk and dv
    const float* dS = i + 1 < u.M ? u.x->dS + i * s_.stride : nullptr;
    if (dS) transpose_panels(dS, s_.E, s_.D, x.turned);
    if (!s_.early) u.x->diagonal[i] = 0;
    for (std::int64_t row = 0; !s_.early && !together && row < n; row += kTokens) {
      const std::int64_t rows = HWY_MIN(kTokens, n - row);
      for (std::int64_t j = 0; j < s_.group; ++j) {
        pack_queries(u, j, start + row, rows, x);
        query_rows(u, i, j, row, rows, x);
        store_queries(u, j, start + row, rows, x);
      }
    }
    set_zero(x.carry, s_.Dp);
    NextRows next;
    next_keys(u, start + n, next), next_queries(u, 0, start + n, next);
    for (std::int64_t key = last; key >= 0; key -= kTokens) {
      const std::int64_t count = HWY_MIN(kTokens, n - key);
      pack_keys(u, start + key, count, x);
      bool first = true;
      for (std::int64_t j = 0; j < s_.group; ++j) {
        const float m = coefficient(u, j, i, i);
        for (std::int64_t row = key; row < n; row += kTokens, first = false) {
          const std::int64_t rows = HWY_MIN(kTokens, n - row);
          const bool diagonal = row == key;
          pack_queries(u, j, start + row, rows, x);
          score_product(x.q, x.k, rows, count, diagonal, 0, s_.Dp, together ? 1.0f : m, x.A);
          score_product(x.g, x.v, rows, count, diagonal, 0, s_.Ep, together ? 1.0f : m, x.dA);
          if (together) {
            if (partial_) u.x->diagonal[i] += seen_product(x.A, x.dA, rows, count, diagonal);
            scale_scores(m, rows, x.A), scale_scores(m, rows, x.dA);
            if (p_.dq.given()) read_queries(u, i, 0, rows, count, true, x);
            store_queries(u, j, start, rows, x);
          }
          adjoint_readout({.x = x.v,
                           .rows = count,
                           .K = s_.E,
                           .columns = s_.D,
                           .maybe_B = first ? dS : nullptr,
                           .scores = x.dA,
                           .values = x.q,
                           .queries = rows,
                           .diagonal = diagonal,
                           .maybe_from = first ? nullptr : x.a,
                           .to = x.a},
                          next);
          adjoint_readout({.x = x.k,
                           .rows = count,
                           .K = s_.D,
                           .columns = s_.E,
                           .maybe_B = first && dS ? x.turned : nullptr,
                           .scores = x.A,
                           .values = x.g,
                           .queries = rows,
                           .diagonal = diagonal,
                           .maybe_from = first ? nullptr : x.b,
                           .to = x.b},
                          next);
        }
      }
      if (s_.normalized) denominator_keys(u, i, key, count, dS, x);
      if (p_.dk.given()) {
        store_gradients(p_.feature_map, u.k, x.a, start + key, count, s_.D, rows_of(p_.dk, u.sequence, u.kv_head),
                        p_.dk.stride[1]);
      }
      if (p_.dv.given()) {
        store_gradients(FeatureMap::kIdentity, u.v, x.b, start + key, count, s_.E,
                        rows_of(p_.dv, u.sequence, u.kv_head), p_.dv.stride[1]);
      }
    }
  }

  // Through the denominators: key s gets dz_i and sum_{t>=s} m dn_t q_t, summed from the last token back.
  void denominator_keys(const Unit& u, std::int64_t i, std::int64_t key, std::int64_t count, const float* maybe_dS,
                        BackwardScratch& x) const {
    const std::int64_t t = u.start(i, s_.C) + key;
    for (std::int64_t r = 0; r < count; ++r) set_zero(x.ksum + r * kRow, s_.Dp);
    for (std::int64_t j = 0; j < s_.group; ++j) {
      if (!s_.has_den) pack_source(p_.feature_map, u.q[j], t, count, s_.D, x.q);
      const float* q = normalizer_queries(u, j, t, count, x);
      const float m = coefficient(u, j, i, i);
      const float* dn = u.x->dn + j * u.sequence.length + t;
      for (std::int64_t r = 0; r < count; ++r) add_scaled(m * dn[r], q + r * kRow, s_.Dp, x.ksum + r * kRow);
    }
    for (std::int64_t r = count - 1; r >= 0; --r) {
      add_scaled(1.0f, x.ksum + r * kRow, s_.Dp, x.carry);
      float* to = s_.has_den ? x.c + r * kRow : x.a + r * kRow;
      if (s_.has_den) set_zero(to, s_.Dp);
      add_scaled(1.0f, x.carry, s_.Dp, to);
      if (maybe_dS) add_scaled(1.0f, maybe_dS + s_.z, s_.Dp, to);
    }
    if (s_.has_den && p_.maybe_dk_den.given()) {
      store_gradients(p_.feature_map, u.k_den, x.c, t, count, s_.D, rows_of(p_.maybe_dk_den, u.sequence, u.kv_head),
                      p_.maybe_dk_den.stride[1]);
    }
  }

  void add_partial(const Unit& u, double* partial) const {
    for (std::int64_t i = u.first; i < u.end; ++i) {
      for (std::int64_t b = 0; b <= i; ++b) {
        const MixIndex at = mix_index(i, b, p_.L);
        partial[at.row * rows_ + at.column] += b < i ? static_cast<double>(u.x->dm[i * u.M + b]) : u.x->diagonal[i];
      }
    }
  }

  const Problem& p_;
  Executor& executor_;
  BackwardSizes s_;
  std::int64_t rows_ = 0;    // of dmix that may be used
  std::int64_t groups_ = 0;  // of sequences
  bool unit_tasks_ = false;
  double* partial_ = nullptr;  // [Hkv][groups][prefixes][rows][rows]
  std::vector<BackwardSlot> slots_;
  std::vector<BackwardScratch> scratch_;
};

}  // namespace HWY_NAMESPACE
}  // namespace mhla
HWY_AFTER_NAMESPACE();

#endif
