// A run of chunks of one kv head and its query heads, the part that one pass and streaming share: summaries of the
// chunks, mixed prefixes, outputs, for a group of chunks at a time so that prefixes stay in the caches.
#include "mhla/kernels/chunkwise/chunkwise_simd_mix-inl.h"
#include "mhla/kernels/common/simd/causal-inl.h"

#if defined(MHLA_KERNELS_CHUNKWISE_CHUNKWISE_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHLA_KERNELS_CHUNKWISE_CHUNKWISE_SIMD_INL_H_
#undef MHLA_KERNELS_CHUNKWISE_CHUNKWISE_SIMD_INL_H_
#else
#define MHLA_KERNELS_CHUNKWISE_CHUNKWISE_SIMD_INL_H_
#endif

#include <algorithm>
#include <vector>

#include "mhla/core/threads.h"
#include "mhla/core/workspace.h"
#include "mhla/kernels/chunkwise/summary_layout.h"

HWY_BEFORE_NAMESPACE();
namespace mhla {
namespace HWY_NAMESPACE {

static_assert(kTokens == kChainTokens && kTokens % kSubtotal == 0);

struct CausalSizes {
  std::int64_t D = 0, E = 0, C = 0, L = 0;
  std::int64_t Dp = 0;  // D rounded up to whole vectors
  SummaryLayout layout;
  std::int64_t z = 0, size = 0, stride = 0;  // of the layout
  bool normalized = false, has_den = false;
  FeatureMap map = FeatureMap::kReluEps;
  float eps = 0, scale = 1;
};

inline CausalSizes causal_sizes(std::int64_t D, std::int64_t E, std::int64_t C, std::int64_t L, bool normalized,
                                bool has_den, FeatureMap map, double eps, double scale) {
  const SummaryLayout layout{.D = D, .E = E, .lanes = kLanes, .normalized = normalized};
  return {.D = D,
          .E = E,
          .C = C,
          .L = L,
          .Dp = round_up(D, kLanes),
          .layout = layout,
          .z = layout.z_offset(),
          .size = layout.size(),
          .stride = layout.stride(),
          .normalized = normalized,
          .has_den = has_den,
          .map = map,
          .eps = static_cast<float>(eps),
          .scale = static_cast<float>(scale)};
}

// Keys of one kv head. Tk is float and the map the identity where a ring keeps features instead of raw keys.
template <class Tk, class T>
struct KeyRows {
  RowSource<Tk> k;
  RowSource<T> v;
  RowSource<Tk> k_den;
  FeatureMap map = FeatureMap::kIdentity;
};

template <class T>
struct QueryRows {
  RowSource<T> q, q_den;
  T* out = nullptr;
  std::int64_t out_stride = 0;
  std::int64_t out_start = 0;  // row of token 0 of the chunk; before the first row when a call begins inside a chunk
};

// Scratch memory of one worker: packed rows of up to kTokens tokens.
struct CausalScratch {
  float *q, *k, *v, *q_den, *k_den;  // [kTokens][kRow]
  float* o;                          // [kTokens][kRow]  outputs before they are finished or narrowed
  float* scores;                     // [kTokens][kScoreRow]
  float* factors;
  float *ksum, *ksum_next;  // [2][Dp], see add_key
  float* strip;
};

inline CausalScratch take_scratch(Workspace& w, const CausalSizes& s, std::int64_t strip) {
  const auto rows = [&](const char* name) { return w.take<float>(kTokens * kRow, name); };
  CausalScratch x{};
  x.q = rows("packed q"), x.k = rows("packed k"), x.v = rows("packed v");
  if (s.has_den) x.q_den = rows("packed q_den"), x.k_den = rows("packed k_den");
  x.o = rows("packed outputs");
  x.scores = w.take<float>(kTokens * kScoreRow, "scores");
  x.factors = w.take<float>(kTokens, "factors");
  x.ksum = w.take<float>(2 * kRow, "running k"), x.ksum_next = w.take<float>(2 * kRow, "running k");
  x.strip = w.take<float>(strip, "strip");
  return x;
}

template <class T>
HWY_NOINLINE void pack_source(FeatureMap map, const RowSource<T>& source, std::int64_t t0, std::int64_t tokens,
                              std::int64_t size, float* to) {
  const RowPointers<T> rows(source, t0, tokens);
  with_feature_map(map, [&](auto m) HWY_ATTR { pack_rows<decltype(m)::value>(rows.row, tokens, size, to); });
}

// Fetches the rows of the next tokens, one line at every call, while tiles are computed.
class NextRows {
 public:
  // Rows of tokens [t0, t0 + tokens), kTokens at most.
  template <class T>
  void add(const RowSource<T>& source, std::int64_t t0, std::int64_t tokens, std::int64_t size) {
    if (source.base == nullptr) return;
    for (std::int64_t t = 0; t < tokens; ++t) {
      const char* row = reinterpret_cast<const char*>(source(t0 + t));
      rows_[count_++] = {row, row + size * static_cast<std::int64_t>(sizeof(T))};
    }
    if (line_ == nullptr && count_ > 0) line_ = rows_[0].begin;
  }
  HWY_INLINE void operator()() {
    if (line_ == nullptr) return;
    hwy::Prefetch(line_);
    line_ += 64;
    if (line_ >= rows_[at_].end) line_ = ++at_ < count_ ? rows_[at_].begin : nullptr;
  }

 private:
  struct Row {
    const char *begin, *end;
  };
  Row rows_[4 * kTokens];  // of up to four tensors
  std::int64_t count_ = 0, at_ = 0;
  const char* line_ = nullptr;
};

// One copy per instruction set of the two products, whatever the dtypes around them.
inline HWY_NOINLINE void packed_summary(const float* a, const float* b, std::int64_t tokens, std::int64_t rows,
                                        std::int64_t columns, Sum sum, float* S, NextRows& next) {
  summary_product(a, b, tokens, rows, columns, sum, S, next);
}

inline HWY_NOINLINE void packed_readout(const ReadBlock& block, NextRows& next) { causal_readout(block, next); }

// S (+)= sum of k~_t v_t^T over `tokens` tokens from t on, kTokens at most, which stay packed in x.
template <class Tk, class T>
HWY_INLINE void add_tokens(const CausalSizes& s, const KeyRows<Tk, T>& keys, std::int64_t t, std::int64_t tokens,
                           Sum sum, float* S, CausalScratch& x, NextRows& next) {
  pack_source(keys.map, keys.k, t, tokens, s.D, x.k);
  pack_source(FeatureMap::kIdentity, keys.v, t, tokens, s.E, x.v);
  packed_summary(x.k, x.v, tokens, s.D, s.E, sum, S, next);
}

// S = sum of k~_t v_t^T over the whole chunk [t0, t1): a chain for every kTokens tokens, added up in order. z += sum of
// the normaliser's features where wanted.
template <class Tk, class T>
HWY_NOINLINE void chunk_summary(const CausalSizes& s, const KeyRows<Tk, T>& keys, std::int64_t t0, std::int64_t t1,
                                float* S, float* maybe_z, CausalScratch& x, NextRows& next) {
  for (std::int64_t t = t0; t < t1; t += kTokens) {
    const std::int64_t tokens = HWY_MIN(kTokens, t1 - t);
    NextRows inside;  // of the same chunk first
    if (t + kTokens < t1) {
      const std::int64_t coming = HWY_MIN(kTokens, t1 - t - kTokens);
      inside.add(keys.k, t + kTokens, coming, s.D), inside.add(keys.v, t + kTokens, coming, s.E);
    }
    add_tokens(s, keys, t, tokens, t > t0 ? Sum::kAdd : Sum::kStart, S, x, t + kTokens < t1 ? inside : next);
    if (!maybe_z) continue;
    if (s.has_den) pack_source(keys.map, keys.k_den, t, tokens, s.D, x.k_den);
    sum_rows(s.has_den ? x.k_den : x.k, tokens, s.Dp, maybe_z);
  }
}

// Outputs of tokens [t0, t1) of a chunk for all query heads of its kv head. maybe_P[h]: the prefix of head h, null
// when there is none; maybe_ksum: sums of the normaliser's features over the chunk before t0.
template <class Tk, class T>
HWY_NOINLINE void chunk_outputs(const CausalSizes& s, const KeyRows<Tk, T>& keys,
                                const std::vector<QueryRows<T>>& heads, std::int64_t t0, std::int64_t t1,
                                const float* diagonals, const float* const* maybe_P, const float* maybe_ksum,
                                CausalScratch& x, NextRows& next) {
  const bool direct = std::is_same_v<T, float> && padded_columns(s.E) == s.E;
  if (s.normalized) {
    if (maybe_ksum)
      std::copy_n(maybe_ksum, 2 * s.Dp, x.ksum);
    else
      set_zero(x.ksum, 2 * s.Dp);
  }
  for (std::int64_t row = t0; row < t1;) {
    const std::int64_t last = row / kTokens, first = row - last * kTokens;  // block of keys on the diagonal
    const std::int64_t end = HWY_MIN(t1, (last + 1) * kTokens), rows = end - row;
    for (std::size_t h = 0; h < heads.size(); ++h) {
      const QueryRows<T>& head = heads[h];
      const float* P = maybe_P ? maybe_P[h] : nullptr;
      pack_source(s.map, head.q, row, rows, s.D, x.q);
      for (std::int64_t block = 0; block <= last; ++block) {
        const std::int64_t key = block * kTokens, count = HWY_MIN(kTokens, end - key);
        if (last > 0 || h == 0) {
          pack_source(keys.map, keys.k, key, count, s.D, x.k);
          pack_source(FeatureMap::kIdentity, keys.v, key, count, s.E, x.v);
        }
        const bool diagonal = block == last;
        score_product(x.q, x.k, rows, count, diagonal, first, s.Dp, diagonals[h], x.scores);
        ReadBlock read{.q = x.q,
                       .rows = rows,
                       .D = s.D,
                       .E = s.E,
                       .begins = block == 0,
                       .maybe_P = block == 0 ? P : nullptr,
                       .scores = x.scores,
                       .v = x.v,
                       .keys = count,
                       .diagonal = diagonal,
                       .first = first,
                       .sums = x.o,
                       .maybe_factors = nullptr,
                       .maybe_to = x.o,
                       .to_stride = kRow};
        if (!diagonal) {
          packed_readout(read, next);
          continue;
        }
        if (s.normalized) {
          const float* q = x.q;
          const float* k = x.k + first * kRow;
          if (s.has_den) {
            pack_source(s.map, head.q_den, row, rows, s.D, x.q_den);
            if (h == 0) pack_source(keys.map, keys.k_den, row, rows, s.D, x.k_den);
            q = x.q_den, k = x.k_den;
          }
          std::copy_n(x.ksum, 2 * s.Dp, x.ksum_next);
          causal_factors(q, k, row, rows, s.Dp, P ? P + s.z : nullptr, diagonals[h], s.eps, s.scale, x.ksum_next,
                         x.factors);
        } else {
          std::fill_n(x.factors, rows, s.scale);
        }
        T* out = head.out + (head.out_start + row) * head.out_stride;
        read.maybe_factors = x.factors;
        NextRows inside;
        if (end < t1) {
          const std::int64_t coming = HWY_MIN(kTokens, t1 - end);
          inside.add(head.q, end, coming, s.D), inside.add(keys.k, end, coming, s.D);
          inside.add(keys.v, end, coming, s.E);
        }
        if (direct) read.maybe_to = reinterpret_cast<float*>(out), read.to_stride = head.out_stride;
        packed_readout(read, end < t1 ? inside : next);
        for (std::int64_t r = 0; r < rows && !direct; ++r) {
          store_row(out + r * head.out_stride, s.E,
                    [&](std::int64_t c) HWY_ATTR { return hn::LoadU(Full(), x.o + r * kRow + c); });
        }
      }
    }
    if (s.normalized) std::swap(x.ksum, x.ksum_next);
    row = end;
  }
}

// One kv head over consecutive chunks of an input.
template <class T>
struct CausalUnit {
  KeyRows<T, T> keys;               // token 0 is the first of chunk `first`
  std::vector<QueryRows<T>> heads;  // of the group
  std::vector<MixView> mixes;       // per head
  std::int64_t first = 0, end = 0;  // chunks
  std::int64_t tokens = 0;          // the last chunk may be short
  bool goes_on = false;             // the prefix of chunk `end` is wanted too
  SummaryStore store;
  bool summarized = false;               // the summaries of all chunks are in the store already
  std::int64_t back = 1;                 // with `extend`: chunks whose summaries stay apart beyond those needed
  const float* maybe_first_P = nullptr;  // [prefixes][stride] of chunk `first`
  std::int64_t prefixes = 1;             // 1 when the heads share their mix, else one per head

  float* P = nullptr;           // [group + 1][prefixes][stride]  of chunks from group_first on
  float* packed_mix = nullptr;  // [prefixes][tiles][window][kMixTile]
  std::int64_t group = 0;       // chunks at a time
  std::int64_t group_first = 0;
  std::int64_t window = 0;  // blocks in a packed tile of coefficients
};

// Memory of a unit besides its summaries.
template <class T>
void take_unit(Workspace& w, const CausalSizes& s, std::int64_t group, std::int64_t longest, bool extend,
               CausalUnit<T>& unit) {
  unit.group = group;
  unit.window = HWY_MIN(longest, s.L) + kMixTile;
  unit.P = w.take<float>((group + 1) * unit.prefixes * s.stride, "mixed prefixes");
  unit.packed_mix = w.take<float>(unit.prefixes * mix_tiles(group, s.L) * unit.window * kMixTile, "packed mix");
  if (extend) unit.store.maybe_group = w.take<float>(group * s.stride, "summaries of a group");
  unit.store.group_stride = s.stride;
}

template <class T>
float* prefix_of(const CausalSizes& s, const CausalUnit<T>& unit, std::int64_t chunk, std::int64_t prefix) {
  return unit.P + ((chunk - unit.group_first) * unit.prefixes + prefix) * s.stride;
}

// Strip buffer that mixing a group needs.
constexpr std::int64_t group_strip_size(std::int64_t longest, std::int64_t L, std::int64_t group, std::int64_t back) {
  return mix_group_strip_size(HWY_MIN(longest, L + group + back), group);
}

// Chunks [first, end) of a unit: inner runs the tasks of a phase, scratch has one entry per worker of it.
template <class T>
HWY_NOINLINE void run_chunks(const CausalSizes& s, CausalUnit<T>& unit, Executor& inner, CausalScratch* scratch) {
  const std::int64_t stride = s.stride, size = s.size;
  const bool extend = unit.store.maybe_group != nullptr;
  for (std::int64_t g0 = unit.first; g0 < unit.end; g0 += unit.group) {
    const std::int64_t g1 = HWY_MIN(g0 + unit.group, unit.end);
    if (g0 > unit.first) {  // the last prefix of the group before is the first of this one
      std::copy_n(prefix_of(s, unit, g0, 0), unit.prefixes * stride, unit.P);
    }
    unit.group_first = g0;
    const std::int64_t last_row = g1 < unit.end || unit.goes_on ? g1 : g1 - 1;  // prefixes (g0, last_row]
    if (extend) unit.store.group_first = g0;
    const auto tokens_of = [&](std::int64_t i) { return HWY_MIN(s.C, unit.tokens - (i - unit.first) * s.C); };
    const auto prefetch = [&](std::int64_t i, bool queries, NextRows& next) {
      if (i >= g1) return;
      const std::int64_t t = (i - unit.first) * s.C, tokens = HWY_MIN(tokens_of(i), kTokens);
      next.add(unit.keys.k, t, tokens, s.D), next.add(unit.keys.v, t, tokens, s.E);
      if (queries) next.add(unit.heads[0].q, t, tokens, s.D);
    };
    inner.run(unit.summarized ? 0 : last_row - g0, [&](std::int64_t index, int worker) HWY_ATTR {
      const std::int64_t b = g0 + index, t = (b - unit.first) * s.C;
      float* S = unit.store.block(b);
      float* z = s.normalized ? S + s.z : nullptr;
      if (z) set_zero(z, s.layout.z_size());
      NextRows next;
      if (b + 1 < last_row) prefetch(b + 1, false, next);
      chunk_summary(s, unit.keys, t, t + s.C, S, z, scratch[worker], next);
    });
    const std::int64_t mix_size = mix_tiles(unit.group, s.L) * unit.window * kMixTile;
    for (std::int64_t m = 0; m < unit.prefixes && last_row > g0; ++m) {
      pack_causal_mix(unit.mixes[m], g0 + 1, last_row + 1, unit.window, unit.packed_mix + m * mix_size);
    }
    constexpr std::int64_t kColumns = 64 * kLanes;  // columns of a task
    const std::int64_t spans = (size + kColumns - 1) / kColumns;
    inner.run(last_row > g0 ? spans * unit.prefixes : 0, [&](std::int64_t index, int worker) HWY_ATTR {
      const std::int64_t m = index / spans, x = index % spans * kColumns;
      mix_group(unit.store, unit.mixes[m], g0 + 1, last_row + 1, unit.packed_mix + m * mix_size, unit.window, x,
                HWY_MIN(x + kColumns, size), scratch[worker].strip,
                [&](std::int64_t i) HWY_ATTR { return prefix_of(s, unit, i, m); });
    });
    inner.run(g1 - g0, [&](std::int64_t index, int worker) HWY_ATTR {
      const std::int64_t i = g0 + index, t = (i - unit.first) * s.C;
      std::vector<const float*> P(unit.heads.size());
      std::vector<float> diagonals(unit.heads.size());
      for (std::size_t h = 0; h < P.size(); ++h) {
        const std::int64_t m = unit.prefixes == 1 ? 0 : static_cast<std::int64_t>(h);
        diagonals[h] = unit.mixes[h](i, i);
        P[h] = i > unit.first       ? prefix_of(s, unit, i, m)
               : unit.maybe_first_P ? unit.maybe_first_P + m * stride
                                    : nullptr;
      }
      KeyRows<T, T> keys = unit.keys;
      keys.k = keys.k.from(t), keys.v = keys.v.from(t);
      if (s.has_den) keys.k_den = keys.k_den.from(t);
      std::vector<QueryRows<T>> heads = unit.heads;
      for (QueryRows<T>& head : heads) {
        head.q = head.q.from(t), head.out += t * head.out_stride;
        if (s.has_den) head.q_den = head.q_den.from(t);
      }
      NextRows next;
      prefetch(i + 1, true, next);
      chunk_outputs(s, keys, heads, 0, tokens_of(i), diagonals.data(), P.data(), nullptr, scratch[worker], next);
    });
    if (extend) {  // keep what later chunks need, in slots
      move_base(unit.store, HWY_MIN(oldest_block(last_row, s.L, unit.back), last_row), size);
      for (std::int64_t b = HWY_MAX(g0, unit.store.base); b < last_row; ++b) {
        std::copy_n(unit.store.block(b), size, unit.store.slot(b));
      }
      unit.store.group_first = INT64_MAX;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace mhla
HWY_AFTER_NAMESPACE();

#endif
