// Mixed prefixes of the causal form: P_i = sum_{b<i} m[i,b] S_b, one chain of fused multiply-adds over b ascending for
// every element. Rows beyond the L rows of mix (`extend`) begin with m[L-1,0] R_i, where R_i is the plain sum of the
// blocks at distance L-1 and more, oldest first, and go on with the L-2 nearest. Many rows at once (one pass, prefill)
// and one row at a time (decode) give the same bits. Entries of mix on and above the diagonal are never read here.
#include "mhla/kernels/common/simd/tile-inl.h"

#if defined(MHLA_KERNELS_CHUNKWISE_CHUNKWISE_SIMD_MIX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHLA_KERNELS_CHUNKWISE_CHUNKWISE_SIMD_MIX_INL_H_
#undef MHLA_KERNELS_CHUNKWISE_CHUNKWISE_SIMD_MIX_INL_H_
#else
#define MHLA_KERNELS_CHUNKWISE_CHUNKWISE_SIMD_MIX_INL_H_
#endif

#include "mhla/kernels/common/problem.h"

HWY_BEFORE_NAMESPACE();
namespace mhla {
namespace HWY_NAMESPACE {

// The coefficients of one query head.
struct MixView {
  const float* data = nullptr;
  std::int64_t row = 0, column = 0;  // strides
  std::int64_t L = 0;

  [[nodiscard]] HWY_INLINE float operator()(std::int64_t i, std::int64_t b) const {
    const MixIndex at = mix_index(i, b, L);
    return data[at.row * row + at.column * column];
  }
  // Blocks before this one are in R_i, those from it to i - 1 have a coefficient of their own.
  [[nodiscard]] HWY_INLINE std::int64_t first(std::int64_t i) const { return i < L ? 0 : HWY_MIN(i - L + 2, i); }
};

// The summaries of finished chunks of one kv head. Without `extend`, block b has slot b. With it the slots are a
// ring: blocks before `base` are only in `maybe_sum`, and while a group of chunks is worked on, its blocks are apart.
struct SummaryStore {
  float* slots = nullptr;
  std::int64_t slot_stride = 0, count = 0;
  float* maybe_sum = nullptr;
  std::int64_t base = 0;
  float* maybe_group = nullptr;
  std::int64_t group_first = INT64_MAX, group_stride = 0;

  [[nodiscard]] HWY_INLINE float* slot(std::int64_t b) const {
    return slots + (b < count ? b : b % count) * slot_stride;  // a division only where the ring has wrapped
  }
  [[nodiscard]] HWY_INLINE float* block(std::int64_t b) const {
    return b >= group_first ? maybe_group + (b - group_first) * group_stride : slot(b);
  }
};

// sum += S_b for b in [base, to).
HWY_INLINE void move_base(SummaryStore& store, std::int64_t to, std::int64_t size) {
  const Full d;
  for (; store.base < to; ++store.base) {
    const float* from = store.block(store.base);
    for (std::int64_t x = 0; x < size; x += kLanes) {
      hn::StoreU(hn::Add(hn::LoadU(d, store.maybe_sum + x), hn::LoadU(d, from + x)), d, store.maybe_sum + x);
    }
  }
}

// ---- One row

// V vectors at column x of P_i over blocks b < end.
template <int V>
HWY_INLINE void mix_row_vectors(const SummaryStore& store, const MixView& m, std::int64_t i, std::int64_t end,
                                std::int64_t x, float* P) {
  const Full d;
  hn::Vec<Full> acc[V];
  std::int64_t b = m.first(i);
  if (i < m.L) {
    MHLA_UNROLL(8)
    for (int v = 0; v < V; ++v) acc[v] = hn::Zero(d);
  } else {
    MHLA_UNROLL(8)
    for (int v = 0; v < V; ++v) acc[v] = hn::LoadU(d, store.maybe_sum + x + v * kLanes);
    for (std::int64_t old = store.base; old < b; ++old) {
      const float* from = store.block(old) + x;
      MHLA_UNROLL(8)
      for (int v = 0; v < V; ++v) acc[v] = hn::Add(acc[v], hn::LoadU(d, from + v * kLanes));
    }
    const auto weight = hn::Set(d, m(i, 0));
    MHLA_UNROLL(8)
    for (int v = 0; v < V; ++v) acc[v] = hn::Mul(weight, acc[v]);
  }
  for (; b < end; ++b) {
    const float* from = store.block(b) + x;
    const auto weight = hn::Set(d, m(i, b));
    MHLA_UNROLL(8)
    for (int v = 0; v < V; ++v) {
      hwy::Prefetch(from + (V + v) * kLanes);
      acc[v] = hn::MulAdd(weight, hn::LoadU(d, from + v * kLanes), acc[v]);
    }
  }
  MHLA_UNROLL(8)
  for (int v = 0; v < V; ++v) hn::StoreU(acc[v], d, P + x + v * kLanes);
}

// Columns [x0, x1) of P_i over blocks b < end, multiples of kLanes. end < i leaves the last blocks for later, which is
// possible when they are not part of R_i.
HWY_INLINE void mix_row(const SummaryStore& store, const MixView& m, std::int64_t i, std::int64_t end, std::int64_t x0,
                        std::int64_t x1, float* P) {
  std::int64_t x = x0;
  for (; x + 8 * kLanes <= x1; x += 8 * kLanes) mix_row_vectors<8>(store, m, i, end, x, P);
  for (; x < x1; x += kLanes) mix_row_vectors<1>(store, m, i, end, x, P);
}

// ---- Many rows

inline constexpr std::int64_t kMixTile = 4;  // rows of a tile

// Rows [i0, i1) in tiles that lie on one side of L. f(Int<R>, first row, number of the tile). Beyond L the rows of
// a tile see shifted windows, which must overlap.
template <class F>
HWY_INLINE void for_each_mix_tile(std::int64_t i0, std::int64_t i1, std::int64_t L, F&& f) {
  std::int64_t i = i0, number = 0;
  const auto rows_to = [&](std::int64_t end, bool tiles) HWY_ATTR {
    for (; tiles && i + kMixTile <= end; i += kMixTile) f(Int<kMixTile>(), i, number++);
    for (; i < end; ++i) f(Int<1>(), i, number++);
  };
  rows_to(HWY_MIN(i1, L), true);
  rows_to(i1, L >= kMixTile + 2);
}

// Tiles of `rows` rows at most.
constexpr std::int64_t mix_tiles(std::int64_t rows, std::int64_t L) {
  return L >= kMixTile + 2 ? rows / kMixTile + 2 * (kMixTile - 1) : rows;
}

// Blocks that rows [i0, i1) need at once.
HWY_INLINE std::int64_t first_gathered(const SummaryStore& store, std::int64_t L, std::int64_t i0) {
  return i0 < L ? 0 : store.base;
}

// Coefficients of all tiles, [tile][block][kMixTile]; `window` blocks per tile.
HWY_INLINE void pack_causal_mix(const MixView& m, std::int64_t i0, std::int64_t i1, std::int64_t window, float* to) {
  for_each_mix_tile(i0, i1, m.L, [&](auto count, std::int64_t row, std::int64_t number) HWY_ATTR {
    constexpr int R = decltype(count)::value;
    float* tile = to + number * window * kMixTile;
    const std::int64_t first = m.first(row);
    for (std::int64_t b = first; b < row + R - 1; ++b) {
      for (int r = 0; r < R; ++r) {
        const bool used = b < row + r && b >= m.first(row + r);
        tile[(b - first) * kMixTile + r] = used ? m(row + r, b) : 0.0f;
      }
    }
  });
}

// acc[r] += weights[r] * from for the rows [begin, end).
template <int R, int V>
HWY_INLINE void mix_step(const float* HWY_RESTRICT weights, const float* HWY_RESTRICT from, int begin, int end,
                         hn::Vec<Full> (&acc)[R][V]) {
  const Full d;
  hn::Vec<Full> row[V];
  MHLA_UNROLL(2)
  for (int v = 0; v < V; ++v) row[v] = hn::LoadU(d, from + v * kLanes);
  MHLA_UNROLL(4)
  for (int r = 0; r < R; ++r) {
    if (r < begin || r >= end) continue;
    const auto x = hn::Set(d, weights[r]);
    MHLA_UNROLL(2)
    for (int v = 0; v < V; ++v) acc[r][v] = hn::MulAdd(x, row[v], acc[r][v]);
  }
}

// A tile of R rows and V vectors. kBand: row r begins at block r. `common` blocks before row 0 ends. next() is called
// at every step.
template <int R, int V, bool kBand, class Next>
HWY_INLINE void mix_tile(const float* HWY_RESTRICT a, const float* HWY_RESTRICT strip, std::int64_t common,
                         hn::Vec<Full> (&acc)[R][V], Next& next) {
  constexpr std::int64_t kWidth = V * kLanes;
  std::int64_t b = 0;
  if constexpr (kBand) {
    MHLA_UNROLL(4)
    for (int j = 0; j + 1 < R; ++j) mix_step<R, V>(a + j * kMixTile, strip + j * kWidth, 0, j + 1, acc);
    b = R - 1;
  }
  for (; b < common; ++b) {
    next();
    mix_step<R, V>(a + b * kMixTile, strip + b * kWidth, 0, R, acc);
  }
  MHLA_UNROLL(4)
  for (int j = 0; j + 1 < R; ++j) {
    mix_step<R, V>(a + (common + j) * kMixTile, strip + (common + j) * kWidth, j + 1, R, acc);
  }
}

// A band is kBandStrips strips of two vectors: blocks are gathered band by band, 512 bytes of each at a time, into
// [strip][block][two vectors], and while one is mixed the lines of the next are fetched.
inline constexpr std::int64_t kBandStrips = 4;

// Fetches the lines at columns [x, x + width) of blocks [lo, hi) and then of the targets [i0, i1), a few at a call.
template <class Target>
class BandPrefetch {
 public:
  BandPrefetch(const SummaryStore& store, const Target& target, std::int64_t lo, std::int64_t hi, std::int64_t i0,
               std::int64_t i1, std::int64_t x, std::int64_t width, std::int64_t calls)
      : store_(store), target_(target), next_(lo - hi), rows_(i1 - i0), hi_(hi), i0_(i0), x_(x), width_(width) {
    const std::int64_t lines = (hi - lo + i1 - i0) * (width / 16);
    lines_per_call_ = lines > calls ? (lines + calls - 1) / HWY_MAX(calls, 1) : 1;
    if (width_ <= 0) next_ = rows_;
    advance();
  }
  HWY_INLINE void operator()() {
    for (std::int64_t n = 0; n < lines_per_call_ && line_ != nullptr; ++n) {
      hwy::Prefetch(line_);
      line_ += 16;
      if (line_ >= end_) advance();
    }
  }

 private:
  void advance() {  // negative: blocks, then targets
    if (next_ >= rows_) {
      line_ = nullptr;
      return;
    }
    line_ = (next_ < 0 ? store_.block(hi_ + next_) : target_(i0_ + next_)) + x_;
    end_ = line_ + width_;
    ++next_;
  }
  const SummaryStore& store_;
  const Target& target_;
  std::int64_t next_, rows_, hi_, i0_, x_, width_, lines_per_call_ = 1;
  const float *line_ = nullptr, *end_ = nullptr;
};

// One strip of V vectors at column x, all rows [i0, i1) from the gathered blocks [lo, i1 - 1).
template <int V, class Target, class Next>
HWY_INLINE void mix_group_strip(const SummaryStore& store, const MixView& m, std::int64_t i0, std::int64_t i1,
                                const float* packed, std::int64_t window, std::int64_t x, std::int64_t lo,
                                const float* strip, float* sums, const Target& target, Next& next) {
  const Full d;
  constexpr std::int64_t kWidth = V * kLanes;
  const std::int64_t extended = HWY_MAX(i0, m.L);
  if (extended < i1) {  // R_i of the rows from L on
    hn::Vec<Full> sum[V];
    MHLA_UNROLL(2)
    for (int v = 0; v < V; ++v) sum[v] = hn::LoadU(d, store.maybe_sum + x + v * kLanes);
    std::int64_t b = store.base;
    for (std::int64_t i = extended; i < i1; ++i) {
      for (; b < m.first(i); ++b) {
        MHLA_UNROLL(2)
        for (int v = 0; v < V; ++v) sum[v] = hn::Add(sum[v], hn::LoadU(d, strip + (b - lo) * kWidth + v * kLanes));
      }
      MHLA_UNROLL(2)
      for (int v = 0; v < V; ++v) hn::StoreU(sum[v], d, sums + (i - extended) * kWidth + v * kLanes);
    }
  }
  for_each_mix_tile(i0, i1, m.L, [&](auto count, std::int64_t row, std::int64_t number) HWY_ATTR {
    constexpr int R = decltype(count)::value;
    const float* a = packed + number * window * kMixTile;
    hn::Vec<Full> acc[R][V];
    if (row < m.L) {
      MHLA_UNROLL(4)
      for (int r = 0; r < R; ++r) {
        MHLA_UNROLL(2)
        for (int v = 0; v < V; ++v) acc[r][v] = hn::Zero(d);
      }
      mix_tile<R, V, false>(a, strip, row, acc, next);
    } else {
      const auto weight = hn::Set(d, m(row, 0));
      MHLA_UNROLL(4)
      for (int r = 0; r < R; ++r) {
        MHLA_UNROLL(2)
        for (int v = 0; v < V; ++v) {
          acc[r][v] = hn::Mul(weight, hn::LoadU(d, sums + (row - extended + r) * kWidth + v * kLanes));
        }
      }
      const std::int64_t first = m.first(row);
      mix_tile<R, V, true>(a, strip + (first - lo) * kWidth, row - first, acc, next);
    }
    MHLA_UNROLL(4)
    for (int r = 0; r < R; ++r) {
      float* to = target(row + r) + x;
      MHLA_UNROLL(2)
      for (int v = 0; v < V; ++v) hn::StoreU(acc[r][v], d, to + v * kLanes);
    }
  });
}

// Columns [x0, x1) of P_i for the rows [i0, i1); target(i) is where P_i goes. `strip` has room for strip_size floats.
template <class Target>
HWY_INLINE void mix_group(const SummaryStore& store, const MixView& m, std::int64_t i0, std::int64_t i1,
                          const float* packed, std::int64_t window, std::int64_t x0, std::int64_t x1, float* strip,
                          const Target& target) {
  const Full d;
  const std::int64_t lo = first_gathered(store, m.L, i0), hi = i1 - 1, blocks = hi - lo;
  float* sums = strip + blocks * kBandStrips * 2 * kLanes;
  for (std::int64_t x = x0; x < x1; x += kBandStrips * 2 * kLanes) {
    const std::int64_t width = HWY_MIN(kBandStrips * 2 * kLanes, x1 - x);  // a multiple of kLanes
    const std::int64_t whole = width / (2 * kLanes) * (2 * kLanes);
    for (std::int64_t b = lo; b < hi; ++b) {
      const float* row = store.block(b) + x;
      float* to = strip + (b - lo) * 2 * kLanes;
      for (std::int64_t c = 0; c < whole; c += 2 * kLanes, to += blocks * 2 * kLanes) {
        hn::StoreU(hn::LoadU(d, row + c), d, to);
        hn::StoreU(hn::LoadU(d, row + c + kLanes), d, to + kLanes);
      }
      if (whole < width) {  // the last strip is one vector wide, its rows side by side
        hn::StoreU(hn::LoadU(d, row + whole), d, strip + whole * blocks + (b - lo) * kLanes);
      }
    }
    const std::int64_t after = x + width;
    const std::int64_t steps = kBandStrips * (i1 - i0) * (i0 + i1 - 2 * lo) / (2 * kMixTile);  // about
    BandPrefetch<Target> next(store, target, lo, hi, i0, i1, after, HWY_MIN(width, x1 - after), steps);
    for (std::int64_t c = 0; c < whole; c += 2 * kLanes) {
      mix_group_strip<2>(store, m, i0, i1, packed, window, x + c, lo, strip + c * blocks, sums, target, next);
    }
    if (whole < width) {
      mix_group_strip<1>(store, m, i0, i1, packed, window, x + whole, lo, strip + whole * blocks, sums, target, next);
    }
  }
}

constexpr std::int64_t mix_group_strip_size(std::int64_t window, std::int64_t rows) {
  return (window * kBandStrips + rows) * 2 * kLanes;
}

}  // namespace HWY_NAMESPACE
}  // namespace mhla
HWY_AFTER_NAMESPACE();

#endif
