// Forward of the bidirectional form on CPU vectors (README.md, eq. 1 to 4): block summaries S_b and z_b, mixing in
// place, output with the division at the tile store. One thread may carry a head through all three phases or all
// threads may share each phase (common/schedule.h); the bits are the same.
#include "mhla/kernels/bidirectional/bidirectional_simd-inl.h"

#if defined(MHLA_KERNELS_BIDIRECTIONAL_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHLA_KERNELS_BIDIRECTIONAL_FORWARD_INL_H_
#undef MHLA_KERNELS_BIDIRECTIONAL_FORWARD_INL_H_
#else
#define MHLA_KERNELS_BIDIRECTIONAL_FORWARD_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace mhla {
namespace HWY_NAMESPACE {

template <class T>
class Forward {
 public:
  Forward(const Problem& p, Workspace& ws, Executor& executor)
      : p_(p),
        executor_(executor),
        row_(p, p.D, p.E),
        units_(p, row_, executor.concurrency(), /*copies=*/1, /*even=*/true) {
    table_ = shared_table(p, ws);
    mix_ = ws.take<float>(p.Hm * packed_mix_size(p.M), "packed mix");
    summaries_ = ws.take<float>(units_.buffers * units_.floats(), "summaries");
    if (units_.own_mix) mixed_ = ws.take<float>(units_.buffers * p.M * row_.stride, "mixed summaries");
    scratch_ = ws.take<float>(executor.concurrency() * scratch_size(), "per-worker scratch");
    streamed_ = may_stream<T>(p.out);
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

 protected:  // bidirectional_forward_part-inl.h has the phases apart
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
      float* S = u.S + j * units_.head_floats;
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
    share_summaries(u);
    share_outputs(u);
  }

  template <class F>
  void over_blocks(const Unit& u, F&& work) {
    const std::int64_t M = u.table.blocks();
    const std::int64_t blocks = HWY_MAX(std::int64_t{1}, kTaskTokens / HWY_MAX(p_.C, std::int64_t{1}));
    executor_.run((M + blocks - 1) / blocks, [&](std::int64_t task, int worker) HWY_ATTR {
      work(task * blocks, HWY_MIN((task + 1) * blocks, M), worker);
    });
  }

  void share_summaries(const Unit& u) {
    over_blocks(u, [&](std::int64_t b0, std::int64_t b1, int worker) HWY_ATTR { summarize(u, b0, b1, worker); });
  }

  void share_outputs(const Unit& u) {
    const auto mix_all = [&](float* S, float* to, std::int64_t h) HWY_ATTR {
      executor_.run((row_.used + kTaskColumns - 1) / kTaskColumns, [&](std::int64_t task, int worker) HWY_ATTR {
        mix(u, S, to, h, task * kTaskColumns, HWY_MIN((task + 1) * kTaskColumns, row_.used), worker);
      });
    };
    for (std::int64_t j = 0; j < u.heads; ++j) {
      float* S = u.S + j * units_.head_floats;
      if (!units_.own_mix) {
        mix_all(S, S, u.head + j);
        continue;
      }
      for (std::int64_t g = 0; g < p_.group(); ++g) {
        const std::int64_t h = (u.head + j) * p_.group() + g;
        mix_all(S, u.mixed, h);
        over_blocks(
            u, [&](std::int64_t b0, std::int64_t b1, int worker) HWY_ATTR { read_out(u, b0, b1, h, h + 1, worker); });
      }
    }
    if (units_.own_mix) return;
    over_blocks(u, [&](std::int64_t b0, std::int64_t b1, int worker)
                       HWY_ATTR { read_out(u, b0, b1, u.head * p_.group(), (u.head + u.heads) * p_.group(), worker); });
  }

  // S~ of query head h (its own coefficients, or the shared ones).
  void mix(const Unit& u, const float* S, float* to, std::int64_t h, std::int64_t x0, std::int64_t x1, int worker) {
    const PackedMix packed{mix_ + (p_.Hm > 1 ? h : 0) * packed_mix_size(p_.M), p_.M};
    const std::int64_t rows = u.table.blocks(), M = p_.part.given() ? p_.M : rows;
    mix_columns(S, to, row_.stride, M, rows, packed, false, x0, x1, worker_scratch(worker) + kStripAt);
  }

  // S_b and z_b of blocks [b0, b1) for the unit's kv heads.
  void summarize(const Unit& u, std::int64_t b0, std::int64_t b1, int worker) {
    float* keys = worker_scratch(worker);
    float* values = keys + kTokens * kRow;
    float* z = values + kTokens * kRow;
    const bool official = p_.normalizer == Normalizer::kOfficial;
    const std::int64_t summary = row_.rows * padded_columns(row_.columns);
    Ahead<T> ahead(u.table, {b0, b1, u.head, u.head + u.heads}, {Rows<const T>::of(p_.k, u.sequence), p_.D},
                   {Rows<const T>::of(p_.v, u.sequence), p_.E}, between_calls(p_.D, p_.E));
    for (TokenTile tile = ahead.next(); tile.given(); tile = ahead.next()) {
      float* S = u.S + (tile.head - u.head) * units_.head_floats + tile.block * row_.stride;
      float* sum = official ? z : S + row_.tail;
      const bool opens = tile.first == u.table.begin(tile.block);
      if (opens) set_zero(S + summary, row_.used - summary);
      if (opens && official) set_zero(z, kRow);
      if (p_.normalized() && p_.has_den()) {
        const T* rows[kTokens];
        Rows<const T>::of(p_.maybe_k_den, u.sequence).find(u.table, tile, tile.head, rows);
        pack_features_sum(p_.feature_map, rows, tile.count, p_.D, keys, sum);
      }
      if (p_.normalized() && !p_.has_den()) {
        pack_features_sum(p_.feature_map, ahead.first(), tile.count, p_.D, keys, sum);
      } else {
        pack_features(p_.feature_map, ahead.first(), tile.count, p_.D, keys);
      }
      pack_rows<FeatureMap::kIdentity>(ahead.second(), tile.count, p_.E, values);
      summary_product(keys, values, tile.count, p_.D, p_.E, opens ? Sum::kStart : Sum::kAdd, S, ahead.prefetch());
      if (official && tile.first + tile.count == u.table.begin(tile.block + 1)) {
        query_products<T>(p_, u.table, u.sequence, tile.block, tile.head, z, row_.position_stride, S + row_.tail, keys);
      }
    }
  }

  // out of blocks [b0, b1) for query heads [h0, h1).
  void read_out(const Unit& u, std::int64_t b0, std::int64_t b1, std::int64_t h0, std::int64_t h1, int worker) {
    float* queries = worker_scratch(worker);
    float* den_queries = queries + kTokens * kRow;
    const bool paper = p_.normalizer == Normalizer::kPaper, official = p_.normalizer == Normalizer::kOfficial;
    const float scale = static_cast<float>(p_.scale), eps = static_cast<float>(p_.eps);
    const auto out = Rows<T>::of(p_.out, u.sequence);
    T* out_rows[kTokens];
    const T* den_rows[kTokens];
    float factor[kTokens];
    Ahead<T> ahead(u.table, {b0, b1, h0, h1}, {Rows<const T>::of(p_.q, u.sequence), p_.D},
                   {Rows<const T>::of(p_.out, u.sequence), streamed_ ? 0 : p_.E}, between_calls(p_.D, p_.E));
    for (TokenTile tile = ahead.next(); tile.given(); tile = ahead.next()) {
      out.find(u.table, tile, tile.head, out_rows);
      const float* base = units_.own_mix ? u.mixed : u.S + (tile.head / p_.group() - u.head) * units_.head_floats;
      const float* S = base + tile.block * row_.stride;
      pack_features(p_.feature_map, ahead.first(), tile.count, p_.D, queries);
      if (paper && p_.has_den()) {
        Rows<const T>::of(p_.maybe_q_den, u.sequence).find(u.table, tile, tile.head, den_rows);
        pack_features(p_.feature_map, den_rows, tile.count, p_.D, den_queries);
      }
      const float* for_den = p_.has_den() ? den_queries : queries;
      const float* den =
          S + row_.tail + tile.head % p_.group() * row_.position_stride + tile.first - u.table.begin(tile.block);
      if (paper) row_dots(for_den, S + row_.tail, 0, tile.count, p_.D, factor);
      for (std::int64_t t = 0; t < tile.count; ++t) {
        factor[t] = p_.normalized() ? scale / (eps + (official ? den[t] : factor[t])) : scale;
      }
      const auto times_factor = [&](auto store) HWY_ATTR {
        readout_product(queries, S, tile.count, p_.D, p_.E, ahead.prefetch(),
                        [&](auto d, std::int64_t t, std::int64_t c, std::int64_t used, auto value)
                            HWY_ATTR { store(hn::Mul(value, hn::Set(d, factor[t])), d, out_rows[t] + c, used); });
      };
      if (streamed_) {
        times_factor([](auto value, auto d, T* to, std::int64_t used) HWY_ATTR { stream_up_to(value, d, to, used); });
      } else {
        times_factor([](auto value, auto d, T* to, std::int64_t used) HWY_ATTR { store_up_to(value, d, to, used); });
      }
    }
    if (streamed_) hwy::FlushStream();
  }

  // Per worker: k~ (or q~) and v (or q_den~) of a tile, z of a block, one strip of the mixing.
  static constexpr std::int64_t kStripAt = (2 * kTokens + 1) * kRow;
  std::int64_t scratch_size() const { return kStripAt + round_up(p_.M * mix_strip_width(p_.M), 16); }
  float* worker_scratch(int worker) const { return scratch_ + worker * scratch_size(); }

  const Problem& p_;
  Executor& executor_;
  BlockRow row_;
  Units units_;
  BlockTable table_;
  bool streamed_ = false;  // out goes past the caches
  float *mix_ = nullptr, *summaries_ = nullptr, *mixed_ = nullptr, *scratch_ = nullptr;
};

}  // namespace HWY_NAMESPACE
}  // namespace mhla
HWY_AFTER_NAMESPACE();

#endif
