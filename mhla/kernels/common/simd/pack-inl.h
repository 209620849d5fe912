// Packing: rows of q, k, v gathered from raster order into kRow-strided f32 rows, feature map applied, padded
// with zeros to whole vectors; and the reverse way for gradients.
#include "mhla/kernels/common/simd/tile-inl.h"

#if defined(MHLA_KERNELS_COMMON_SIMD_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHLA_KERNELS_COMMON_SIMD_PACK_INL_H_
#undef MHLA_KERNELS_COMMON_SIMD_PACK_INL_H_
#else
#define MHLA_KERNELS_COMMON_SIMD_PACK_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace mhla {
namespace HWY_NAMESPACE {

// One vector of a row at column c, feature map applied, lanes beyond `size` zero, stored at to[0, kLanes).
template <FeatureMap kMap, class T>
HWY_INLINE hn::Vec<Full> pack_vector(const T* from, std::int64_t left, float* to) {
  const Full d;
  if (left >= kLanes) {
    const auto x = feature<kMap>(d, load(d, from));
    hn::StoreU(x, d, to);
    return x;
  }
  if (left == kHalf) {  // D = 40, 72, ...: half a vector, no copy through the stack
    const Half half;
    hn::StoreU(feature<kMap>(half, load(half, from)), half, to);
    hn::StoreU(hn::Zero(half), half, to + kHalf);
    return hn::LoadU(d, to);
  }
  const auto mask = hn::FirstN(d, static_cast<std::size_t>(left));
  const auto x = hn::IfThenElseZero(mask, feature<kMap>(d, load_some(d, from, left)));
  hn::StoreU(x, d, to);
  return x;
}

// to[t][0, size) = phi(rows[t][0, size)), padded with zeros to a multiple of kLanes.
template <FeatureMap kMap, class T>
HWY_INLINE void pack_rows(const T* const* rows, std::int64_t tokens, std::int64_t size, float* to) {
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t c = 0; c < size; c += kLanes) pack_vector<kMap>(rows[t] + c, size - c, to + t * kRow + c);
  }
}

// Tokens added up before they join a running sum. relu_eps gives every inactive feature 1e-6: added one by one to a
// sum of hundreds, each would be rounded the same way and the sum would drift.
inline constexpr std::int64_t kSubtotal = 16;

// The same, and sum[c] += sum_t to[t][c], subtotal after subtotal.
template <FeatureMap kMap, class T>
HWY_INLINE void pack_rows_sum(const T* const* rows, std::int64_t tokens, std::int64_t size, float* to, float* sum) {
  const Full d;
  for (std::int64_t c = 0; c < size; c += kLanes) {
    auto total = hn::LoadU(d, sum + c);
    for (std::int64_t t = 0; t < tokens;) {
      auto part = hn::Zero(d);
      for (const std::int64_t end = HWY_MIN(t + kSubtotal, tokens); t < end; ++t) {
        part = hn::Add(part, pack_vector<kMap>(rows[t] + c, size - c, to + t * kRow + c));
      }
      total = hn::Add(total, part);
    }
    hn::StoreU(total, d, sum + c);
  }
}

// The same two for a feature map known at run time: one branch per tile.
template <class T>
HWY_INLINE void pack_features(FeatureMap map, const T* const* rows, std::int64_t tokens, std::int64_t size, float* to) {
  with_feature_map(map, [&](auto m) HWY_ATTR { pack_rows<decltype(m)::value>(rows, tokens, size, to); });
}

template <class T>
HWY_INLINE void pack_features_sum(FeatureMap map, const T* const* rows, std::int64_t tokens, std::int64_t size,
                                  float* to, float* sum) {
  with_feature_map(map, [&](auto m) HWY_ATTR { pack_rows_sum<decltype(m)::value>(rows, tokens, size, to, sum); });
}

// to[0, size) = value(c) vector by vector, narrowed; the ragged end is stored exactly.
template <class T, class F>
HWY_INLINE void store_row(T* to, std::int64_t size, const F& value) {
  const Full d;
  std::int64_t c = 0;
  for (; c + kLanes <= size; c += kLanes) store(value(c), d, to + c);
  if (c < size) store_some(value(c), d, to + c, size - c);
}

// Loads a raw row as f32 vectors: the vector at column c of a row of `size`.
template <class T>
HWY_INLINE hn::Vec<Full> load_row(const T* from, std::int64_t size, std::int64_t c) {
  const Full d;
  return c + kLanes <= size ? load(d, from + c) : load_some(d, from + c, size - c);
}

// to[0, size) = factor * from[0, size), padded with zeros to a multiple of kLanes.
template <class T>
HWY_INLINE void pack_scaled(const T* from, std::int64_t size, float factor, float* to) {
  const Full d;
  for (std::int64_t c = 0; c < size; c += kLanes) {
    hn::StoreU(hn::Mul(load_row(from, size, c), hn::Set(d, factor)), d, to + c);
  }
}

// y[c] += factor * x[c], over `size` floats rounded up to whole vectors.
HWY_INLINE void add_scaled(float factor, const float* x, std::int64_t size, float* y) {
  const Full d;
  const auto f = hn::Set(d, factor);
  for (std::int64_t c = 0; c < size; c += kLanes) {
    hn::StoreU(hn::MulAdd(f, hn::LoadU(d, x + c), hn::LoadU(d, y + c)), d, y + c);
  }
}

HWY_INLINE void set_zero(float* x, std::int64_t size) {
  std::memset(x, 0, static_cast<std::size_t>(size) * sizeof(float));
}

// Zeros in the last vector of every row, so that a product may fill a ragged row and dot() still read whole vectors.
HWY_INLINE void clear_row_ends(float* rows, std::int64_t tokens, std::int64_t size) {
  const Full d;
  const std::int64_t last = round_up(size, kLanes) - kLanes;
  for (std::int64_t t = 0; t < tokens; ++t) hn::StoreU(hn::Zero(d), d, rows + t * kRow + last);
}

// to[t] = sum_c rows[t][c] x[t * x_stride + c] for `tokens` packed rows, four at a time: x_stride is 0 or kRow. Every
// token is summed alike, whatever its place. Reads and writes up to the next multiple of four.
HWY_INLINE void row_dots(const float* rows, const float* x, std::int64_t x_stride, std::int64_t tokens,
                         std::int64_t size, float* to) {
#if HWY_TARGET == HWY_SCALAR
  for (std::int64_t t = 0; t < tokens; ++t) to[t] = dot(rows + t * kRow, x + t * x_stride, size);
#else
  const Full d;
  const hn::RepartitionToWide<Full> wide;
  const hn::CappedTag<float, 4> four;
  for (std::int64_t t = 0; t < tokens; t += 4) {
    hn::Vec<Full> sum[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
    for (std::int64_t c = 0; c < size; c += kLanes) {
      MHLA_UNROLL(4)
      for (int i = 0; i < 4; ++i) {
        sum[i] = hn::MulAdd(hn::LoadU(d, rows + (t + i) * kRow + c), hn::LoadU(d, x + (t + i) * x_stride + c), sum[i]);
      }
    }
    // Interleaved twice, lane i of every 128-bit part belongs to token t + i.
    const auto pair = [&](auto a, auto b)
                          HWY_ATTR { return hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)); };
    const auto low = hn::BitCast(wide, pair(sum[0], sum[1])), high = hn::BitCast(wide, pair(sum[2], sum[3]));
    float parts[kLanes];
    hn::StoreU(hn::Add(hn::BitCast(d, hn::InterleaveLower(wide, low, high)),
                       hn::BitCast(d, hn::InterleaveUpper(wide, low, high))),
               d, parts);
    auto total = hn::LoadU(four, parts);
    for (std::int64_t part = 4; part < kLanes; part += 4) total = hn::Add(total, hn::LoadU(four, parts + part));
    hn::StoreU(total, four, to + t);
  }
#endif
}

// Touches the cache lines of the rows of the next tile, a few per call, so that they arrive while this tile computes.
// A core has some 24 miss buffers: a burst of prefetches would stall it, a steady trickle does not.
class RowPrefetch {
 public:
  RowPrefetch() = default;
  // `calls`: how often it will be called while the current tile computes.
  template <class T>
  RowPrefetch(const T* const* rows, std::int64_t tokens, std::int64_t size, std::int64_t calls)
      : rows_(reinterpret_cast<const char* const*>(rows)),
        left_(size > 0 ? tokens : 0),
        bytes_(size * static_cast<std::int64_t>(sizeof(T))) {
    lines_per_call_ = ((bytes_ + 63) / 64 * tokens + calls - 1) / HWY_MAX(calls, std::int64_t{1});
  }
  HWY_INLINE void operator()() {
    for (std::int64_t line = 0; line < lines_per_call_ && left_ > 0; ++line) {
      __builtin_prefetch(*rows_ + at_, 0, 2);  // into the second-level cache: the first is full of the current tile
      at_ += 64;
      if (at_ < bytes_) continue;
      at_ = 0;
      ++rows_, --left_;
    }
  }
  [[nodiscard]] HWY_INLINE bool done() const { return left_ <= 0; }

 private:
  const char* const* rows_ = nullptr;
  std::int64_t left_ = 0, bytes_ = 0, at_ = 0, lines_per_call_ = 0;
};

// The rows of two tensors, one after the other.
struct TilePrefetch {
  RowPrefetch first, second;
  HWY_INLINE void operator()() {
    if (first.done()) {
      second();
    } else {
      first();
    }
  }
};

struct PanelPlace {
  std::int64_t first, width;  // first column and width of a panel
};

HWY_INLINE PanelPlace panel_of(std::int64_t columns, std::int64_t c) {
  const std::int64_t whole = columns / (2 * kLanes) * (2 * kLanes), rest = columns - whole;
  if (c < whole) return {c / (2 * kLanes) * (2 * kLanes), 2 * kLanes};
  if (rest > kLanes + kHalf) return {whole, 2 * kLanes};
  if (rest > kHalf) return c < whole + kLanes ? PanelPlace{whole, kLanes} : PanelPlace{whole + kLanes, kHalf};
  return {whole, kHalf};
}

// dst = transpose of src, both in panels: src is rows x columns, dst is columns x rows, its padding zero.
inline HWY_NOINLINE void transpose_panels(const float* src, std::int64_t rows, std::int64_t columns, float* dst) {
  for (std::int64_t r = 0, end = padded_columns(rows), step = 0; r < end; r += step) {
    const PanelPlace to = panel_of(rows, r);
    step = HWY_MIN(4, to.first + to.width - r);
    float* target = dst + to.first * columns + (r - to.first);  // (c, r) at [c * to.width]
    for (std::int64_t c = 0; c < columns;) {
      const PanelPlace from = panel_of(columns, c);
      const float* source = src + from.first * rows + (c - from.first);  // (r, c) at [r * from.width]
#if HWY_TARGET != HWY_SCALAR
      if (step == 4 && r + 4 <= rows && c + 4 <= HWY_MIN(columns, from.first + from.width)) {
        const hn::CappedTag<float, 4> d4;
        const hn::RepartitionToWide<decltype(d4)> d2;
        const float* row = source + r * from.width;
        const auto x0 = hn::LoadU(d4, row), x1 = hn::LoadU(d4, row + from.width);
        const auto x2 = hn::LoadU(d4, row + 2 * from.width), x3 = hn::LoadU(d4, row + 3 * from.width);
        const auto low01 = hn::BitCast(d2, hn::InterleaveLower(d4, x0, x1));
        const auto high01 = hn::BitCast(d2, hn::InterleaveUpper(d4, x0, x1));
        const auto low23 = hn::BitCast(d2, hn::InterleaveLower(d4, x2, x3));
        const auto high23 = hn::BitCast(d2, hn::InterleaveUpper(d4, x2, x3));
        float* column = target + c * to.width;
        hn::StoreU(hn::BitCast(d4, hn::InterleaveLower(d2, low01, low23)), d4, column);
        hn::StoreU(hn::BitCast(d4, hn::InterleaveUpper(d2, low01, low23)), d4, column + to.width);
        hn::StoreU(hn::BitCast(d4, hn::InterleaveLower(d2, high01, high23)), d4, column + 2 * to.width);
        hn::StoreU(hn::BitCast(d4, hn::InterleaveUpper(d2, high01, high23)), d4, column + 3 * to.width);
        c += 4;
        continue;
      }
#endif
      for (std::int64_t i = 0; i < step; ++i) {
        target[c * to.width + i] = r + i < rows ? source[(r + i) * from.width] : 0.0f;
      }
      ++c;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace mhla
HWY_AFTER_NAMESPACE();

#endif
