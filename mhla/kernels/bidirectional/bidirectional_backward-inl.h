// Backward of the bidirectional form on CPU vectors (README.md, backward). Nothing is kept from forward: summaries are
// recomputed, transposed (S^T = V^T K~), because every product but one wants them so. Per head:
//   1  S^T_b, z_b              from k, v
//   2  S~^T_i = sum_b m S^T_b  out of place
//   3  dq, and dS~^T_i = dnum^T q~ over S~^T_i; dn = -(q~ . dq~num) / den, so `out` is not needed
//   4  dmix[i,b] = <dS~^T_i, S^T_b>, tails included: z, or for kOfficial q~.z, whose gradients are mixed alike
//   5  dS^T_b = sum_i m[i,b] dS~^T_i
//   6  dk = v dS^T_b + dz_b, dv = k~ dS_b
#include "mhla/kernels/bidirectional/bidirectional_simd-inl.h"

#if defined(MHLA_KERNELS_BIDIRECTIONAL_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHLA_KERNELS_BIDIRECTIONAL_BACKWARD_INL_H_
#undef MHLA_KERNELS_BIDIRECTIONAL_BACKWARD_INL_H_
#else
#define MHLA_KERNELS_BIDIRECTIONAL_BACKWARD_INL_H_
#endif

#include <utility>

HWY_BEFORE_NAMESPACE();
namespace mhla {
namespace HWY_NAMESPACE {

template <class T>
class Backward {
 public:
  Backward(const Problem& p, Workspace& ws, Executor& executor)
      : p_(p),
        executor_(executor),
        row_(p, p.E, p.D),
        units_(p, row_, executor.concurrency(), /*copies=*/2, /*even=*/false) {
    table_ = shared_table(p, ws);
    const std::int64_t mix_size = p.Hm * packed_mix_size(p.M);
    mix_ = ws.take<float>(mix_size, "packed mix");
    mix_transposed_ = ws.take<float>(mix_size, "packed mix, transposed");
    summaries_ = ws.take<float>(units_.buffers * units_.floats(), "summaries");
    mixed_ = ws.take<float>(units_.buffers * units_.floats(), "mixed summaries, then their gradients");
    if (units_.own_mix) sums_ = ws.take<float>(units_.buffers * units_.floats(), "summed gradients of a group");
    if (p.dmix.given()) dmix_ = ws.take<float>(slots().count * slots().floats, "partial dmix");
    scratch_ = ws.take<float>(executor.concurrency() * scratch_size(), "per-worker scratch");
    direct_ = p.C <= kTokens && p.group() == 1;
    wants_grads_ = p.dk.given() || p.dv.given() || p.dmix.given() || p.maybe_dk_den.given() ||
                   (p.normalizer == Normalizer::kOfficial && (p.dq.given() || p.maybe_dq_den.given()));
  }

  void run() {
    pack_mixes(p_, false, mix_);
    pack_mixes(p_, true, mix_transposed_);
    if (dmix_) set_zero(dmix_, slots().count * slots().floats);
    const Slots all = slots();
    if (units_.schedule == Schedule::kUnit) {
      executor_.run(all.count, [&](std::int64_t slot, int worker) HWY_ATTR {
        for (std::int64_t s = all.first(slot); s < all.first(slot + all.visits); ++s) {
          phases(unit_at(slot, s, worker), Whole{worker});
        }
      });
    } else {
      for (std::int64_t slot = 0; slot < all.count; ++slot) {
        for (std::int64_t s = all.first(slot); s < all.first(slot + all.visits); ++s)
          phases(unit_at(slot, s, 0), Shared{executor_});
      }
    }
    if (dmix_) sum_dmix();
  }

 protected:  // bidirectional_backward_part-inl.h has the phases apart
  // Partial sums of dmix. A slot is a visit of a run of sequences, taken in order; slots are summed in order. Their
  // number depends on the shape alone, so dmix has the same bits for every number of threads.
  struct Slots {
    std::int64_t visits, parts, count, sequences, matrices, floats;
    [[nodiscard]] std::int64_t first(std::int64_t slot) const { return slot / visits * sequences / parts; }
  };
  Slots slots() const {
    Slots s{};
    s.visits = units_.visits;
    s.sequences = static_cast<std::int64_t>(p_.sequences.size());
    s.matrices = p_.Hm == 1 ? 1 : units_.visit * p_.group();
    s.floats = s.matrices * p_.M * p_.M;
    constexpr std::int64_t kBudget = std::int64_t{1} << 22;  // 16 MiB of partial sums, unless a single one is larger
    s.parts = HWY_MAX(std::int64_t{1}, HWY_MIN(s.sequences, kBudget / HWY_MAX(std::int64_t{1}, s.floats * s.visits)));
    s.count = s.parts * s.visits;
    return s;
  }

  struct Unit {
    Sequence sequence;
    BlockTable table;
    std::int64_t head, heads;  // kv heads
    float *S, *G;              // [heads][M][stride]: S^T; S~^T, then its gradient
    float* sums;               // own_mix: gradients summed over the group
    float* dmix;               // [matrices][M][M]
  };

  Unit unit_at(std::int64_t slot, std::int64_t sequence, int buffer) const {
    Unit u;
    u.sequence = p_.sequences[static_cast<std::size_t>(sequence)];
    u.table = table_of(p_, table_, u.sequence);
    u.head = slot % units_.visits * units_.visit;
    u.heads = HWY_MIN(units_.visit, p_.Hkv - u.head);
    u.S = summaries_ + buffer * units_.floats();
    u.G = mixed_ + buffer * units_.floats();
    u.sums = units_.own_mix ? sums_ + buffer * units_.floats() : u.G;
    u.dmix = dmix_ ? dmix_ + slot * slots().floats : nullptr;
    return u;
  }

  // How the phases of a unit are cut: all on one worker, or over the executor.
  struct Whole {
    int worker;
    template <class F>
    void over(std::int64_t end, std::int64_t, F&& work) const {
      work(0, end, worker);
    }
  };
  struct Shared {
    Executor& executor;
    template <class F>
    void over(std::int64_t end, std::int64_t step, F&& work) const {
      executor.run((end + step - 1) / step, [&](std::int64_t task, int worker) HWY_ATTR {
        work(task * step, HWY_MIN((task + 1) * step, end), worker);
      });
    }
  };

  template <class Cut>
  void phases(const Unit& u, const Cut& cut) {
    const std::int64_t group = p_.group(), h0 = u.head * group;
    over_blocks(u, cut, [&](std::int64_t b0, std::int64_t b1, int worker) HWY_ATTR { summarize(u, b0, b1, worker); });
    if (units_.own_mix) {
      for (std::int64_t g = 0; g < group; ++g) mixed_phases(u, cut, h0 + g, h0 + g + 1, g > 0);
    } else {
      mixed_phases(u, cut, h0, h0 + u.heads * group, false);
    }
    if (!wants_grads_) return;
    over_blocks(u, cut, [&](std::int64_t b0, std::int64_t b1, int worker) HWY_ATTR { key_side(u, b0, b1, worker); });
  }

  // Phases 2 to 5 for query heads [h0, h1): all of the unit, or one of a group with coefficients of its own.
  template <class Cut>
  void mixed_phases(const Unit& u, const Cut& cut, std::int64_t h0, std::int64_t h1, bool accumulate) {
    query_phases(u, cut, h0, h1);
    for (std::int64_t j = 0; j < u.heads && wants_grads_; ++j) {
      const std::int64_t offset = j * units_.head_floats;
      mix(u, cut, mix_transposed_, u.G + offset, u.sums + offset, h0 + j, accumulate);
    }
  }

  // Phases 2 to 4.
  template <class Cut>
  void query_phases(const Unit& u, const Cut& cut, std::int64_t h0, std::int64_t h1) {
    const std::int64_t rows = u.table.blocks(), M = p_.part.given() ? p_.M : rows, group = p_.group();
    for (std::int64_t j = 0; j < u.heads; ++j) {
      mix(u, cut, mix_, u.S + j * units_.head_floats, u.G + j * units_.head_floats, h0 + j, false);
    }
    over_blocks(u, cut,
                [&](std::int64_t b0, std::int64_t b1, int worker) HWY_ATTR { query_side(u, b0, b1, h0, h1, worker); });
    for (std::int64_t j = 0; j < u.heads && u.dmix && wants_grads_; ++j) {
      const std::int64_t offset = j * units_.head_floats;
      float* dm = u.dmix + (p_.Hm == 1 ? 0 : h0 + j - u.head * group) * p_.M * p_.M + p_.part.first * p_.M;
      cut.over(rows, kDotRows, [&](std::int64_t i0, std::int64_t i1, int) HWY_ATTR {
        for (std::int64_t b = 0; b < M; b += kDotRows) {
          const auto add = [&](std::int64_t x, std::int64_t columns) HWY_ATTR {
            mix_gradient(u.G + offset + x, u.S + offset + x, row_.stride, columns, i0, i1, b, HWY_MIN(b + kDotRows, M),
                         dm, p_.M);
          };
          if (units_.own_mix && p_.normalizer == Normalizer::kOfficial) {
            add(0, row_.tail);  // and of the tail only this head's part: a NaN in another head's stays there
            add(row_.tail + (h0 - u.head * group) * row_.position_stride, row_.position_stride);
          } else {
            add(0, row_.used);
          }
        }
      });
    }
  }

  template <class Cut, class F>
  void over_blocks(const Unit& u, const Cut& cut, F&& work) {
    cut.over(u.table.blocks(), HWY_MAX(std::int64_t{1}, kTaskTokens / HWY_MAX(p_.C, std::int64_t{1})), work);
  }

  template <class Cut>
  void mix(const Unit& u, const Cut& cut, const float* packed, const float* from, float* to, std::int64_t h,
           bool accumulate) {
    const PackedMix mix{packed + (p_.Hm > 1 ? h : 0) * packed_mix_size(p_.M), p_.M};
    const std::int64_t rows = u.table.blocks(), M = p_.part.given() ? p_.M : rows;
    cut.over(row_.used, kTaskColumns, [&](std::int64_t x0, std::int64_t x1, int worker) HWY_ATTR {
      mix_columns(from, to, row_.stride, M, rows, mix, accumulate, x0, x1, scratch(worker).strip);
    });
  }

  struct Scratch {
    float *left, *right, *grad, *den;  // [kTokens][kRow]
    float *z, *dz;                     // [kRow]
    float* block;                      // [stride]: a gradient block that several tiles or heads add to
    float* turned;                     // [D][E] in panels: dS_b
    float* strip;
  };
  std::int64_t scratch_size() const {
    return 4 * kTokens * kRow + 2 * kRow + row_.stride + round_up(p_.D * padded_columns(p_.E), 16) +
           round_up(p_.M * mix_strip_width(p_.M), 16);
  }
  Scratch scratch(int worker) const {
    float* at = scratch_ + worker * scratch_size();
    const auto take = [&](std::int64_t floats) HWY_ATTR { return std::exchange(at, at + floats); };
    Scratch s{};
    s.left = take(kTokens * kRow), s.right = take(kTokens * kRow), s.grad = take(kTokens * kRow),
    s.den = take(kTokens * kRow);
    s.z = take(kRow), s.dz = take(kRow);
    s.block = take(row_.stride);
    s.turned = take(round_up(p_.D * padded_columns(p_.E), 16));
    s.strip = take(0);
    return s;
  }

  void pack_query(const T* const* rows, std::int64_t count, float* to) const {
    pack_features(p_.feature_map, rows, count, p_.D, to);
  }

  // Phase 1: S^T_b and its tail for blocks [b0, b1).
  void summarize(const Unit& u, std::int64_t b0, std::int64_t b1, int worker) {
    const Scratch s = scratch(worker);
    const auto k = Rows<const T>::of(p_.k, u.sequence), v = Rows<const T>::of(p_.v, u.sequence);
    const std::int64_t summary = row_.rows * padded_columns(row_.columns);
    const bool official = p_.normalizer == Normalizer::kOfficial;
    Ahead<T> ahead(u.table, {b0, b1, u.head, u.head + u.heads}, {k, p_.D}, {v, p_.E}, between_calls(p_.D, p_.E));
    for (TokenTile tile = ahead.next(); tile.given(); tile = ahead.next()) {
      float* S = u.S + (tile.head - u.head) * units_.head_floats + tile.block * row_.stride;
      const bool opens = tile.first == u.table.begin(tile.block);
      float* sum = official ? s.z : S + row_.tail;
      if (opens) set_zero(S + summary, row_.used - summary);
      if (opens && official) set_zero(s.z, kRow);
      if (p_.normalized() && p_.has_den()) sum_den_keys(u, tile, s.left, sum);
      if (p_.normalized() && !p_.has_den()) {
        pack_features_sum(p_.feature_map, ahead.first(), tile.count, p_.D, s.left, sum);
      } else {
        pack_query(ahead.first(), tile.count, s.left);
      }
      pack_rows<FeatureMap::kIdentity>(ahead.second(), tile.count, p_.E, s.right);
      summary_product(s.right, s.left, tile.count, p_.E, p_.D, opens ? Sum::kStart : Sum::kAdd, S, ahead.prefetch());
      if (official && tile.first + tile.count == u.table.begin(tile.block + 1)) {
        query_products<T>(p_, u.table, u.sequence, tile.block, tile.head, s.z, row_.position_stride, S + row_.tail,
                          s.left);
      }
    }
  }

  void sum_den_keys(const Unit& u, const TokenTile& tile, float* packed, float* sum) {
    const T* rows[kTokens];
    Rows<const T>::of(p_.maybe_k_den, u.sequence).find(u.table, tile, tile.head, rows);
    pack_features_sum(p_.feature_map, rows, tile.count, p_.D, packed, sum);
  }

  // Phase 3 for query heads [h0, h1): dq (for kOfficial without q_den its numerator part, finished in phase 6),
  // dq_den of kPaper, and the gradient of the mixed block, which overwrites the mixed block.
  void query_side(const Unit& u, std::int64_t b0, std::int64_t b1, std::int64_t h0, std::int64_t h1, int worker) {
    const Scratch s = scratch(worker);
    const auto q = Rows<const T>::of(p_.q, u.sequence), dout = Rows<const T>::of(p_.dout, u.sequence);
    const bool paper = p_.normalizer == Normalizer::kPaper, official = p_.normalizer == Normalizer::kOfficial;
    const float eps = static_cast<float>(p_.eps), scale = static_cast<float>(p_.scale);
    float inverse[kTokens], dn[kTokens];
    Ahead<T> ahead(u.table, {b0, b1, h0, h1}, {q, p_.D}, {dout, p_.E}, 2 * between_calls(p_.D, p_.E));
    for (TokenTile tile = ahead.next(); tile.given(); tile = ahead.next()) {
      float* G = u.G + (tile.head / p_.group() - u.head) * units_.head_floats + tile.block * row_.stride;
      const std::int64_t w0 = tile.first - u.table.begin(tile.block), g = tile.head % p_.group();
      const bool opens = (units_.own_mix || g == 0) && w0 == 0;
      const bool closes =
          (units_.own_mix || g + 1 == p_.group()) && tile.first + tile.count == u.table.begin(tile.block + 1);
      float* target = direct_ ? G : s.block;
      if (opens) {
        std::memcpy(s.z, G + row_.tail, static_cast<std::size_t>(paper ? round_up(p_.D, kLanes) : 0) * sizeof(float));
        if (!direct_) set_zero(s.block, row_.stride);
      }
      pack_query(ahead.first(), tile.count, s.left);
      const float* den_queries = s.left;
      const T* den_rows[kTokens];
      if (p_.has_den()) {
        Rows<const T>::of(p_.maybe_q_den, u.sequence).find(u.table, tile, tile.head, den_rows);
        if (paper) pack_query(den_rows, tile.count, s.den), den_queries = s.den;
      }
      if (paper) row_dots(den_queries, s.z, 0, tile.count, p_.D, inverse);
      for (std::int64_t t = 0; t < tile.count; ++t) {
        const float den = official ? G[row_.tail + g * row_.position_stride + w0 + t] : inverse[t];
        inverse[t] = p_.normalized() ? 1.0f / (eps + den) : 1.0f;
        pack_scaled(ahead.second()[t], p_.E, scale * inverse[t], s.right + t * kRow);
      }
      clear_row_ends(s.grad, tile.count, p_.D);
      readout_rows(s.right, G, tile.count, p_.E, p_.D, ahead.prefetch(), s.grad);
      if (p_.normalized()) row_dots(s.left, s.grad, kRow, tile.count, p_.D, dn);
      for (std::int64_t t = 0; t < tile.count; ++t) dn[t] = p_.normalized() ? -inverse[t] * dn[t] : 0.0f;
      write_query_gradients(u, tile, ahead.first(), den_rows, s, dn);
      if (!wants_grads_) continue;
      if (direct_ && paper) set_zero(G + row_.tail, row_.used - row_.tail);
      if (paper) {            // first the sum of the tile: one sum over a thousand tokens loses digits
        float* sum = s.grad;  // no longer needed
        set_zero(sum, kRow);
        for (std::int64_t t = 0; t < tile.count; ++t) add_scaled(dn[t], den_queries + t * kRow, p_.D, sum);
        add_scaled(1.0f, sum, p_.D, target + row_.tail);
      }
      for (std::int64_t t = 0; t < tile.count && official; ++t)
        target[row_.tail + g * row_.position_stride + w0 + t] = dn[t];
      summary_product(s.right, s.left, tile.count, p_.E, p_.D, direct_ ? Sum::kStart : Sum::kAdd, target,
                      ahead.prefetch());
      if (!direct_ && closes) std::memcpy(G, s.block, static_cast<std::size_t>(row_.used) * sizeof(float));
    }
  }

  // dq = phi'(q) (dq~num + dn z~), or with q_den: dq = phi'(q) dq~num, dq_den = phi'(q_den) dn z~.
  void write_query_gradients(const Unit& u, const TokenTile& tile, const T* const* q_rows, const T* const* den_rows,
                             const Scratch& s, const float* dn) {
    const Full d;
    const bool paper = p_.normalizer == Normalizer::kPaper;
    const bool unfinished = p_.normalizer == Normalizer::kOfficial && !p_.has_den();
    T* to[kTokens];
    if (p_.dq.given()) {
      Rows<T>::of(p_.dq, u.sequence).find(u.table, tile, tile.head, to);
      with_feature_map(unfinished ? FeatureMap::kIdentity : p_.feature_map, [&](auto map) HWY_ATTR {
        for (std::int64_t t = 0; t < tile.count; ++t) {
          const auto factor = hn::Set(d, paper && !p_.has_den() ? dn[t] : 0.0f);
          store_row(to[t], p_.D, [&](std::int64_t c) HWY_ATTR {
            auto grad = hn::LoadU(d, s.grad + t * kRow + c);
            if (paper) grad = hn::MulAdd(factor, hn::LoadU(d, s.z + c), grad);
            return feature_gradient<decltype(map)::value>(d, load_row(q_rows[t], p_.D, c), grad);
          });
        }
      });
    }
    if (p_.maybe_dq_den.given() && paper) {
      Rows<T>::of(p_.maybe_dq_den, u.sequence).find(u.table, tile, tile.head, to);
      for (std::int64_t t = 0; t < tile.count; ++t) write_scaled_gradient(to[t], den_rows[t], dn[t], s.z);
    }
  }

  // to = phi'(x) * factor * direction
  void write_scaled_gradient(T* to, const T* x, float factor, const float* direction) {
    const Full d;
    with_feature_map(p_.feature_map, [&](auto map) HWY_ATTR {
      store_row(to, p_.D, [&](std::int64_t c) HWY_ATTR {
        const auto grad = hn::Mul(hn::Set(d, factor), hn::LoadU(d, direction + c));
        return feature_gradient<decltype(map)::value>(d, load_row(x, p_.D, c), grad);
      });
    });
  }

  // Phase 6: dk, dv and dk_den of blocks [b0, b1); for kOfficial also what is left of dq and dq_den.
  void key_side(const Unit& u, std::int64_t b0, std::int64_t b1, int worker) {
    const Scratch s = scratch(worker);
    const auto k = Rows<const T>::of(p_.k, u.sequence), v = Rows<const T>::of(p_.v, u.sequence);
    const Full d;
    const bool official = p_.normalizer == Normalizer::kOfficial;
    Ahead<T> ahead(u.table, {b0, b1, u.head, u.head + u.heads}, {k, p_.D}, {v, p_.E}, 2 * between_calls(p_.D, p_.E));
    for (TokenTile tile = ahead.next(); tile.given(); tile = ahead.next()) {
      const float* G = u.sums + (tile.head - u.head) * units_.head_floats + tile.block * row_.stride;
      T* to[kTokens];
      if (tile.first == u.table.begin(tile.block)) {
        if (p_.dv.given()) transpose_panels(G, p_.E, p_.D, s.turned);
        if (official)
          finish_official(u, tile, G, s);
        else if (p_.normalized())
          std::memcpy(s.dz, G + row_.tail, static_cast<std::size_t>(round_up(p_.D, kLanes)) * sizeof(float));
      }
      if (p_.dk.given()) {
        pack_rows<FeatureMap::kIdentity>(ahead.second(), tile.count, p_.E, s.right);
        readout_rows(s.right, G, tile.count, p_.E, p_.D, ahead.prefetch(), s.grad);
        Rows<T>::of(p_.dk, u.sequence).find(u.table, tile, tile.head, to);
        const bool plus_dz = p_.normalized() && !p_.has_den();
        with_feature_map(p_.feature_map, [&](auto map) HWY_ATTR {
          for (std::int64_t t = 0; t < tile.count; ++t) {
            store_row(to[t], p_.D, [&](std::int64_t c) HWY_ATTR {
              auto grad = hn::LoadU(d, s.grad + t * kRow + c);
              if (plus_dz) grad = hn::Add(grad, hn::LoadU(d, s.dz + c));
              return feature_gradient<decltype(map)::value>(d, load_row(ahead.first()[t], p_.D, c), grad);
            });
          }
        });
      }
      if (p_.dv.given()) {
        pack_query(ahead.first(), tile.count, s.left);
        Rows<T>::of(p_.dv, u.sequence).find(u.table, tile, tile.head, to);
        readout_product(s.left, s.turned, tile.count, p_.D, p_.E, ahead.prefetch(),
                        [&](auto tag, std::int64_t t, std::int64_t c, std::int64_t used, auto value)
                            HWY_ATTR { store_up_to(value, tag, to[t] + c, used); });
      }
      if (p_.maybe_dk_den.given()) {
        const T* rows[kTokens];
        Rows<const T>::of(p_.maybe_k_den, u.sequence).find(u.table, tile, tile.head, rows);
        Rows<T>::of(p_.maybe_dk_den, u.sequence).find(u.table, tile, tile.head, to);
        for (std::int64_t t = 0; t < tile.count; ++t) write_scaled_gradient(to[t], rows[t], 1.0f, s.dz);
      }
    }
  }

  // kOfficial: with dr = tail of G, dz_b = sum dr q~ and dq~ += dr z_b (dq holds its numerator part, or dq_den takes it
  // all).
  void finish_official(const Unit& u, const TokenTile& opening, const float* G, const Scratch& s) {
    const Full d;
    set_zero(s.z, kRow);
    set_zero(s.dz, kRow);
    const View& dq = p_.has_den() ? p_.maybe_dq_den : p_.dq;
    const auto k = Rows<const T>::of(p_.has_den() ? p_.maybe_k_den : p_.k, u.sequence);
    const auto q = Rows<const T>::of(p_.has_den() ? p_.maybe_q_den : p_.q, u.sequence);
    const T* rows[kTokens];
    T* to[kTokens];
    TileWalk keys(u.table, opening.block, opening.block + 1, opening.head, opening.head + 1);
    for (TokenTile tile = keys.next(); tile.given(); tile = keys.next()) {
      k.find(u.table, tile, tile.head, rows);
      pack_features_sum(p_.feature_map, rows, tile.count, p_.D, s.left, s.z);
    }
    const std::int64_t h0 = opening.head * p_.group();
    TileWalk queries(u.table, opening.block, opening.block + 1, h0, h0 + p_.group());
    for (TokenTile tile = queries.next(); tile.given(); tile = queries.next()) {
      q.find(u.table, tile, tile.head, rows);
      pack_query(rows, tile.count, s.left);
      const float* dr =
          G + row_.tail + (tile.head - h0) * row_.position_stride + tile.first - u.table.begin(tile.block);
      for (std::int64_t t = 0; t < tile.count; ++t) add_scaled(dr[t], s.left + t * kRow, p_.D, s.dz);
      if (!dq.given()) continue;
      Rows<T>::of(dq, u.sequence).find(u.table, tile, tile.head, to);
      for (std::int64_t t = 0; t < tile.count; ++t) {
        if (p_.has_den()) {
          write_scaled_gradient(to[t], rows[t], dr[t], s.z);
          continue;
        }
        with_feature_map(p_.feature_map, [&](auto map) HWY_ATTR {
          store_row(to[t], p_.D, [&](std::int64_t c) HWY_ATTR {
            const auto part = load_row(static_cast<const T*>(to[t]), p_.D, c);
            const auto grad = hn::MulAdd(hn::Set(d, dr[t]), hn::LoadU(d, s.z + c), part);
            return feature_gradient<decltype(map)::value>(d, load_row(rows[t], p_.D, c), grad);
          });
        });
      }
    }
  }

  void sum_dmix() {
    const Slots all = slots();
    for (std::int64_t h = 0; h < p_.Hm; ++h) {
      const std::int64_t visit = p_.Hm == 1 ? 0 : h / (units_.visit * p_.group());
      const std::int64_t matrix = p_.Hm == 1 ? 0 : h % (units_.visit * p_.group());
      float* to = data_as<float>(p_.dmix) + h * p_.dmix.stride[0];
      for (std::int64_t i = 0; i < p_.L; ++i) {
        for (std::int64_t b = 0; b < p_.L; ++b) {
          float sum = 0.0f;
          if (i < p_.M && b < p_.M) {
            for (std::int64_t slot = visit; slot < all.count; slot += p_.Hm == 1 ? 1 : all.visits) {
              sum += dmix_[slot * all.floats + (matrix * p_.M + i) * p_.M + b];
            }
          }
          to[i * p_.dmix.stride[1] + b * p_.dmix.stride[2]] = sum;
        }
      }
    }
  }

  const Problem& p_;
  Executor& executor_;
  BlockRow row_;
  Units units_;
  BlockTable table_;
  bool direct_ = false, wants_grads_ = true;
  float *mix_ = nullptr, *mix_transposed_ = nullptr, *summaries_ = nullptr, *mixed_ = nullptr, *sums_ = nullptr;
  float *dmix_ = nullptr, *scratch_ = nullptr;
};

}  // namespace HWY_NAMESPACE
}  // namespace mhla
HWY_AFTER_NAMESPACE();

#endif
