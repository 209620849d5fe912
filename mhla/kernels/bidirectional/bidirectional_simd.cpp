// Forward of the bidirectional form on CPU vectors (README.md, eq. 1 to 4): block summaries S_b and z_b, mixing in
// place, output with the division at the tile store. One thread may carry a head through all three phases or all
// threads may share each phase (common/schedule.h); the bits are the same.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mhla/kernels/bidirectional/bidirectional_simd.cpp"
#include "hwy/foreach_target.h"
// foreach_target.h first: it includes this file once per instruction set
#include "mhla/core/error.h"
#include "mhla/kernels/bidirectional/bidirectional_candidates.h"
#include "mhla/kernels/bidirectional/bidirectional_simd-inl.h"
#include "mhla/kernels/common/schedule.h"

HWY_BEFORE_NAMESPACE();
namespace mhla {
namespace HWY_NAMESPACE {
namespace {

template <class T>
class Forward {
 public:
  Forward(const Problem& p, Workspace& ws, Executor& executor)
      : p_(p), executor_(executor), row_(p, p.D, p.E), units_(p, row_, executor.concurrency(), /*copies=*/1) {
    if (p.layout.rank > 1) table_ = BlockTable(p.layout, p.N, ws);
    mix_ = ws.take<float>(p.Hm * packed_mix_size(p.M), "packed mix");
    summaries_ = ws.take<float>(units_.buffers * units_.floats(), "summaries");
    if (units_.own_mix) mixed_ = ws.take<float>(units_.buffers * p.M * row_.stride, "mixed summaries");
    scratch_ = ws.take<float>(executor.concurrency() * kScratch(), "per-worker scratch");
  }

  void run() {
    pack_mixes(p_, /*transposed=*/false, mix_);
    if (units_.schedule == Schedule::kUnit) {
      executor_.run(units_.count,
                    [&](std::int64_t unit, int worker) HWY_ATTR { run_unit(unit_at(unit, worker), worker); });
    } else {
      for (std::int64_t unit = 0; unit < units_.count; ++unit) run_phases(unit_at(unit, 0));
    }
  }

 private:
  struct Unit {
    Sequence sequence;
    BlockTable table;
    std::int64_t head, heads;  // kv heads
    float* S;                  // [heads][M][stride]
    float* mixed;              // [M][stride]: S~ of one query head, when it may not replace S
  };

  Unit unit_at(std::int64_t index, int buffer) const {
    Unit u;
    u.sequence = p_.sequences[static_cast<std::size_t>(index / units_.visits)];
    u.table = table_of(p_, table_, u.sequence);
    u.head = index % units_.visits * units_.visit;
    u.heads = HWY_MIN(units_.visit, p_.Hkv - u.head);
    u.S = summaries_ + buffer * units_.floats();
    u.mixed = units_.own_mix ? mixed_ + buffer * p_.M * row_.stride : nullptr;
    return u;
  }

  void run_unit(const Unit& u, int worker) {
    const std::int64_t M = u.table.blocks();
    summarize(u, 0, M, worker);
    for (std::int64_t j = 0; j < u.heads; ++j) {
      float* S = u.S + j * p_.M * row_.stride;
      if (!units_.own_mix) {
        mix(u, S, S, u.head + j, 0, row_.used, worker);
        continue;
      }
      for (std::int64_t g = 0; g < p_.group(); ++g) {
        const std::int64_t h = (u.head + j) * p_.group() + g;
        mix(u, S, u.mixed, h, 0, row_.used, worker);
        read_out(u, 0, M, h, h + 1, worker);
      }
    }
    if (!units_.own_mix) read_out(u, 0, M, u.head * p_.group(), (u.head + u.heads) * p_.group(), worker);
  }

  void run_phases(const Unit& u) {
    const std::int64_t M = u.table.blocks();
    const std::int64_t blocks = HWY_MAX(std::int64_t{1}, kTaskTokens / HWY_MAX(p_.C, std::int64_t{1}));
    const auto over_blocks = [&](auto&& work) HWY_ATTR {
      executor_.run((M + blocks - 1) / blocks, [&](std::int64_t task, int worker) HWY_ATTR {
        work(task * blocks, HWY_MIN((task + 1) * blocks, M), worker);
      });
    };
    const auto mix_all = [&](float* S, float* to, std::int64_t h) HWY_ATTR {
      executor_.run((row_.used + kTaskColumns - 1) / kTaskColumns, [&](std::int64_t task, int worker) HWY_ATTR {
        mix(u, S, to, h, task * kTaskColumns, HWY_MIN((task + 1) * kTaskColumns, row_.used), worker);
      });
    };
    over_blocks([&](std::int64_t b0, std::int64_t b1, int worker) HWY_ATTR { summarize(u, b0, b1, worker); });
    for (std::int64_t j = 0; j < u.heads; ++j) {
      float* S = u.S + j * p_.M * row_.stride;
      if (!units_.own_mix) {
        mix_all(S, S, u.head + j);
        continue;
      }
      for (std::int64_t g = 0; g < p_.group(); ++g) {
        const std::int64_t h = (u.head + j) * p_.group() + g;
        mix_all(S, u.mixed, h);
        over_blocks([&](std::int64_t b0, std::int64_t b1, int worker)
                        HWY_ATTR { read_out(u, b0, b1, h, h + 1, worker); });
      }
    }
    if (units_.own_mix) return;
    over_blocks([&](std::int64_t b0, std::int64_t b1, int worker)
                    HWY_ATTR { read_out(u, b0, b1, u.head * p_.group(), (u.head + u.heads) * p_.group(), worker); });
  }

  // S~ of query head h (its own coefficients, or the shared ones).
  void mix(const Unit& u, const float* S, float* to, std::int64_t h, std::int64_t x0, std::int64_t x1, int worker) {
    const PackedMix packed{mix_ + (p_.Hm > 1 ? h : 0) * packed_mix_size(p_.M), p_.M};
    mix_columns(S, to, row_.stride, u.table.blocks(), packed, false, x0, x1, worker_scratch(worker) + kStripAt);
  }

  // S_b and z_b of blocks [b0, b1) for the unit's kv heads.
  void summarize(const Unit& u, std::int64_t b0, std::int64_t b1, int worker) {
    float* keys = worker_scratch(worker);
    float* values = keys + kTokens * kRow;
    float* z = keys + 2 * kTokens * kRow;  // kOfficial: one per head of the visit
    const auto k = Rows<const T>::of(p_.k, u.sequence), v = Rows<const T>::of(p_.v, u.sequence);
    const auto k_den = p_.has_den() ? Rows<const T>::of(p_.maybe_k_den, u.sequence) : k;
    TileWalk walk(u.table, b0, b1, u.head, u.head + u.heads);
    const T *k_rows[2][kTokens], *v_rows[2][kTokens], *den_rows[kTokens];
    TokenTile tile = walk.next();
    if (tile.given()) k.find(u.table, tile, tile.head, k_rows[0]), v.find(u.table, tile, tile.head, v_rows[0]);
    for (int turn = 0; tile.given(); turn ^= 1) {
      const TokenTile ahead = walk.next();
      if (ahead.given()) {
        k.find(u.table, ahead, ahead.head, k_rows[turn ^ 1]);
        v.find(u.table, ahead, ahead.head, v_rows[turn ^ 1]);
      }
      float* S = u.S + ((tile.head - u.head) * p_.M + tile.block) * row_.stride;
      const bool opens = tile.first == u.table.begin(tile.block);
      const bool closes = tile.first + tile.count == u.table.begin(tile.block + 1);
      float* sum = p_.normalizer == Normalizer::kOfficial ? z + (tile.head - u.head) * kRow : S + row_.tail;
      if (opens) {
        set_zero(S + row_.rows * padded_columns(row_.columns), row_.used - row_.rows * padded_columns(row_.columns));
        if (p_.normalizer == Normalizer::kOfficial) set_zero(sum, kRow);
      }
      if (!p_.normalized()) {
        pack_features(p_.feature_map, k_rows[turn], tile.count, p_.D, keys);
      } else {
        if (p_.has_den()) {
          k_den.find(u.table, tile, tile.head, den_rows);
          pack_features_sum(p_.feature_map, den_rows, tile.count, p_.D, keys, sum);
          pack_features(p_.feature_map, k_rows[turn], tile.count, p_.D, keys);
        } else {
          pack_features_sum(p_.feature_map, k_rows[turn], tile.count, p_.D, keys, sum);
        }
      }
      pack_rows<FeatureMap::kIdentity>(v_rows[turn], tile.count, p_.E, values);
      const std::int64_t tiles = HWY_MAX(p_.D * p_.E / (8 * kLanes), std::int64_t{1});
      RowPrefetch<T> next_k(k_rows[turn ^ 1], ahead.count, p_.D, tiles),
          next_v(v_rows[turn ^ 1], ahead.count, p_.E, tiles);
      summary_product(keys, values, tile.count, p_.D, p_.E, !opens, S, [&]() HWY_ATTR { next_k(), next_v(); });
      if (closes && p_.normalizer == Normalizer::kOfficial) query_products(u, tile, sum, S + row_.tail, keys);
      tile = ahead;
    }
  }

  // kOfficial: q~_{b,w} . z_b for every query head of the group and every position of the block.
  void query_products(const Unit& u, const TokenTile& last, const float* z, float* tail, float* packed) {
    const auto q = Rows<const T>::of(p_.has_den() ? p_.maybe_q_den : p_.q, u.sequence);
    const T* rows[kTokens];
    for (std::int64_t g = 0; g < p_.group(); ++g) {
      TileWalk walk(u.table, last.block, last.block + 1, 0, 1);
      std::int64_t w = 0;
      for (TokenTile tile = walk.next(); tile.given(); tile = walk.next()) {
        q.find(u.table, tile, last.head * p_.group() + g, rows);
        pack_features(p_.feature_map, rows, tile.count, p_.D, packed);
        for (std::int64_t t = 0; t < tile.count; ++t)
          tail[g * row_.position_stride + w++] = dot(packed + t * kRow, z, p_.D);
      }
    }
  }

  // out of blocks [b0, b1) for query heads [h0, h1).
  void read_out(const Unit& u, std::int64_t b0, std::int64_t b1, std::int64_t h0, std::int64_t h1, int worker) {
    float* queries = worker_scratch(worker);
    float* den_queries = queries + kTokens * kRow;
    const auto q = Rows<const T>::of(p_.q, u.sequence);
    const auto q_den = p_.has_den() ? Rows<const T>::of(p_.maybe_q_den, u.sequence) : q;
    const auto out = Rows<T>::of(p_.out, u.sequence);
    TileWalk walk(u.table, b0, b1, h0, h1);
    const T *rows[2][kTokens], *den_rows[kTokens];
    T* out_rows[kTokens];
    float factor[kTokens];
    TokenTile tile = walk.next();
    if (tile.given()) q.find(u.table, tile, tile.head, rows[0]);
    for (int turn = 0; tile.given(); turn ^= 1) {
      const TokenTile ahead = walk.next();
      if (ahead.given()) q.find(u.table, ahead, ahead.head, rows[turn ^ 1]);
      out.find(u.table, tile, tile.head, out_rows);
      const float* base = units_.own_mix ? u.mixed : u.S + (tile.head / p_.group() - u.head) * p_.M * row_.stride;
      const float* S = base + tile.block * row_.stride;
      pack_features(p_.feature_map, rows[turn], tile.count, p_.D, queries);
      const float* for_den = queries;
      if (p_.has_den() && p_.normalizer == Normalizer::kPaper) {
        q_den.find(u.table, tile, tile.head, den_rows);
        pack_features(p_.feature_map, den_rows, tile.count, p_.D, den_queries);
        for_den = den_queries;
      }
      const float scale = static_cast<float>(p_.scale), eps = static_cast<float>(p_.eps);
      const std::int64_t w0 = tile.first - u.table.begin(tile.block);
      for (std::int64_t t = 0; t < tile.count; ++t) {
        factor[t] = scale;
        if (p_.normalizer == Normalizer::kPaper) factor[t] /= eps + dot(for_den + t * kRow, S + row_.tail, p_.D);
        if (p_.normalizer == Normalizer::kOfficial) {
          factor[t] /= eps + S[row_.tail + tile.head % p_.group() * row_.position_stride + w0 + t];
        }
      }
      RowPrefetch<T> next_q(rows[turn ^ 1], ahead.count, p_.D,
                            HWY_MAX(tile.count * p_.E / (8 * kLanes), std::int64_t{1}));
      readout_product(queries, S, tile.count, p_.D, p_.E, next_q,
                      [&](auto d, std::int64_t t, std::int64_t c, std::int64_t used, auto value) HWY_ATTR {
                        const auto y = hn::Mul(value, hn::Set(d, factor[t]));
                        if (used >= static_cast<std::int64_t>(hn::MaxLanes(d)))
                          store(y, d, out_rows[t] + c);
                        else
                          store_some(y, d, out_rows[t] + c, used);
                      });
      tile = ahead;
    }
  }

  // Per worker: k~ (or q~) and v (or q_den~) of a tile, z of a visit, one strip of the mixing.
  static constexpr std::int64_t kStripAt = 2 * kTokens * kRow + kMaxVisit * kRow;
  std::int64_t kScratch() const { return kStripAt + round_up(p_.M * mix_strip_width(p_.M), 16); }
  float* worker_scratch(int worker) const { return scratch_ + worker * kScratch(); }

  const Problem& p_;
  Executor& executor_;
  BlockRow row_;
  Units units_;
  BlockTable table_;
  float *mix_ = nullptr, *summaries_ = nullptr, *mixed_ = nullptr, *scratch_ = nullptr;
};

template <class T>
void forward(const Problem& p, Workspace& ws, Executor& executor) {
  Forward<T> pass(p, ws, executor);
  if (!ws.counting()) pass.run();
}

void forward_any(const Problem& p, Workspace& ws, Executor& executor) {
  switch (p.dtype()) {
    case DType::kF32: forward<float>(p, ws, executor); return;
    case DType::kBF16: forward<bf16>(p, ws, executor); return;
    default: forward<f16>(p, ws, executor); return;
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace mhla
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mhla {

HWY_EXPORT(forward_any);

std::string bidirectional_fit_simd(const Problem& p) {
  if (p.q.device != kCpu) return str("memory is on cuda:", p.q.device);
  if (p.is_f64()) return "dtype f64";
  if (HWY_MAX(p.D, p.E) > kMaxSimdHeadSize)
    return str("D = ", p.D, ", E = ", p.E, ": head sizes above ", kMaxSimdHeadSize);
  return "";
}

void bidirectional_forward_simd(const Problem& problem, Workspace& workspace, Executor& executor) {
  HWY_DYNAMIC_DISPATCH(forward_any)(problem, workspace, executor);
}

}  // namespace mhla
#endif
