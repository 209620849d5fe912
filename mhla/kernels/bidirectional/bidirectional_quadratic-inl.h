// The quadratic way of the bidirectional forward, for short sequences (bidirectional_plan.h):
//   A[t,s] = mix[b(t), b(s)] (q~_t . k~_s),   out_t = scale * sum_s A[t,s] v_s / (eps + sum_s A[t,s])
// One task carries a kv head: k~^T and v in panels, then tile by tile of queries two products and the row sums.
#include "mhla/kernels/bidirectional/bidirectional_simd-inl.h"

#if defined(MHLA_KERNELS_BIDIRECTIONAL_QUADRATIC_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHLA_KERNELS_BIDIRECTIONAL_QUADRATIC_INL_H_
#undef MHLA_KERNELS_BIDIRECTIONAL_QUADRATIC_INL_H_
#else
#define MHLA_KERNELS_BIDIRECTIONAL_QUADRATIC_INL_H_
#endif

#include "mhla/kernels/bidirectional/bidirectional_plan.h"

HWY_BEFORE_NAMESPACE();
namespace mhla {
namespace HWY_NAMESPACE {

// Packed rows of `tokens` tokens into panels of a matrix `rows` x `columns`, beginning at row `first`.
HWY_INLINE void rows_to_panels(const float* packed, std::int64_t tokens, std::int64_t first, std::int64_t rows,
                               std::int64_t columns, float* to) {
  for_each_panel(columns, [&](auto d, auto vectors, std::int64_t c, std::int64_t) HWY_ATTR {
    constexpr int V = decltype(vectors)::value;
    constexpr std::int64_t L = static_cast<std::int64_t>(hn::MaxLanes(decltype(d)()));
    float* panel = to + c * rows + first * V * L;
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (int v = 0; v < V; ++v) {
        hn::StoreU(hn::LoadU(d, packed + t * kRow + c + v * L), d, panel + (t * V + v) * L);
      }
    }
  });
}

template <class T>
class Quadratic {
 public:
  Quadratic(const Problem& p, Workspace& ws, Executor& executor) : p_(p), executor_(executor) {
    for (const Sequence& s : p.sequences) N_ = HWY_MAX(N_, s.length);
    if (p.layout.rank > 1) table_ = BlockTable(p.layout, p.N, ws);
    scratch_ = ws.take<float>(executor.concurrency() * scratch_size(), "per-worker scratch");
  }

  void run() {
    executor_.run(static_cast<std::int64_t>(p_.sequences.size()) * p_.Hkv, [&](std::int64_t unit, int worker) HWY_ATTR {
      run_head(p_.sequences[static_cast<std::size_t>(unit / p_.Hkv)], unit % p_.Hkv, worker);
    });
  }

 private:
  struct Scratch {
    float *packed, *scores;             // [kTokens][kRow]
    float *turn, *keys, *den, *values;  // panels: [N][D] to be turned, k~^T and k_den~^T [D][N], v [N][E]
  };
  std::int64_t keys_size() const { return round_up(p_.D * padded_columns(N_) + N_ * 16, 16); }
  std::int64_t scratch_size() const {
    return 2 * kTokens * kRow + 3 * keys_size() + round_up(N_ * padded_columns(p_.D) + N_ * padded_columns(p_.E), 16);
  }
  Scratch scratch(int worker) const {
    float* at = scratch_ + worker * scratch_size();
    const auto take = [&](std::int64_t floats) HWY_ATTR {
      float* taken = at;
      at += floats;
      return taken;
    };
    Scratch s{};
    s.packed = take(kTokens * kRow), s.scores = take(kTokens * kRow);
    s.keys = take(keys_size()), s.den = take(keys_size());
    s.turn = take(N_ * padded_columns(p_.D));
    s.values = take(0);
    return s;
  }

  // Rows of a whole sequence, in block order, as panels [N][size]; through the feature map unless it is v.
  void gather(const BlockTable& table, const Rows<const T>& rows, std::int64_t head, std::int64_t N, std::int64_t size,
              bool features, const Scratch& s, float* to) {
    const T* at[kTokens];
    for (std::int64_t first = 0; first < N; first += kTokens) {
      const TokenTile tile{0, first, HWY_MIN(kTokens, N - first), head};
      rows.find(table, tile, head, at);
      pack_features(features ? p_.feature_map : FeatureMap::kIdentity, at, tile.count, size, s.packed);
      rows_to_panels(s.packed, tile.count, first, N, size, to);
    }
  }

  void run_head(const Sequence& sequence, std::int64_t kv_head, int worker) {
    const Scratch s = scratch(worker);
    const BlockTable table = table_of(p_, table_, sequence);
    const std::int64_t N = sequence.length, M = table.blocks();
    gather(table, Rows<const T>::of(p_.k, sequence), kv_head, N, p_.D, true, s, s.turn);
    transpose_panels(s.turn, N, p_.D, s.keys);
    if (p_.has_den()) {
      gather(table, Rows<const T>::of(p_.maybe_k_den, sequence), kv_head, N, p_.D, true, s, s.turn);
      transpose_panels(s.turn, N, p_.D, s.den);
    }
    gather(table, Rows<const T>::of(p_.v, sequence), kv_head, N, p_.E, false, s, s.values);
    const float scale = static_cast<float>(p_.scale), eps = static_cast<float>(p_.eps);
    const T* rows[kTokens];
    T* out_rows[kTokens];
    float factor[kTokens], weights[kRow] = {};
    TileWalk walk(table, 0, M, kv_head * p_.group(), (kv_head + 1) * p_.group());
    for (TokenTile tile = walk.next(); tile.given(); tile = walk.next()) {
      const float* mix =
          data_as<float>(p_.mix) + (p_.Hm > 1 ? tile.head : 0) * p_.mix.stride[0] + tile.block * p_.mix.stride[1];
      for (std::int64_t b = 0; b < M; ++b) {  // the row of coefficients, token by token
        for (std::int64_t t = table.begin(b); t < table.begin(b + 1); ++t) weights[t] = mix[b * p_.mix.stride[2]];
      }
      for (std::int64_t t = 0; t < tile.count; ++t) factor[t] = scale;
      if (p_.has_den()) {
        Rows<const T>::of(p_.maybe_q_den, sequence).find(table, tile, tile.head, rows);
        weigh(s, s.den, rows, tile.count, N, weights);
        for (std::int64_t t = 0; t < tile.count; ++t) factor[t] = scale / (eps + row_sum(s.scores + t * kRow, N));
      }
      Rows<const T>::of(p_.q, sequence).find(table, tile, tile.head, rows);
      weigh(s, s.keys, rows, tile.count, N, weights);
      if (p_.normalized() && !p_.has_den()) {
        for (std::int64_t t = 0; t < tile.count; ++t) factor[t] = scale / (eps + row_sum(s.scores + t * kRow, N));
      }
      Rows<T>::of(p_.out, sequence).find(table, tile, tile.head, out_rows);
      readout_product(s.scores, s.values, tile.count, N, p_.E, NoPrefetch(),
                      [&](auto d, std::int64_t t, std::int64_t c, std::int64_t used, auto value)
                          HWY_ATTR { store_up_to(hn::Mul(value, hn::Set(d, factor[t])), d, out_rows[t] + c, used); });
    }
  }

  // scores[t][s] = weights[s] (q~_t . k~_s), zero up to whole vectors.
  void weigh(const Scratch& s, const float* keys, const T* const* rows, std::int64_t count, std::int64_t N,
             const float* weights) {
    pack_features(p_.feature_map, rows, count, p_.D, s.packed);
    clear_row_ends(s.scores, count, N);
    readout_product(s.packed, keys, count, p_.D, N, NoPrefetch(),
                    [&](auto d, std::int64_t t, std::int64_t c, std::int64_t, auto value) HWY_ATTR {
                      hn::StoreU(hn::Mul(value, hn::LoadU(d, weights + c)), d, s.scores + t * kRow + c);
                    });
  }

  static HWY_INLINE float row_sum(const float* row, std::int64_t size) {
    const Full d;
    auto sum = hn::Zero(d);
    for (std::int64_t c = 0; c < size; c += kLanes) sum = hn::Add(sum, hn::LoadU(d, row + c));
    return hn::GetLane(hn::SumOfLanes(d, sum));
  }

  const Problem& p_;
  Executor& executor_;
  std::int64_t N_ = 0;
  BlockTable table_;
  float* scratch_ = nullptr;
};

}  // namespace HWY_NAMESPACE
}  // namespace mhla
HWY_AFTER_NAMESPACE();

#endif
