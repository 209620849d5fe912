// Between the panels of the products and plain rows: a summary as other processes see it (common/part.h) is S [D][E],
// then z [D]. A pass that keeps S^T reads and writes it transposed.
#include "mhla/kernels/common/simd/tile-inl.h"

#if defined(MHLA_KERNELS_COMMON_SIMD_PLAIN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHLA_KERNELS_COMMON_SIMD_PLAIN_INL_H_
#undef MHLA_KERNELS_COMMON_SIMD_PLAIN_INL_H_
#else
#define MHLA_KERNELS_COMMON_SIMD_PLAIN_INL_H_
#endif

#include <algorithm>

HWY_BEFORE_NAMESPACE();
namespace mhla {
namespace HWY_NAMESPACE {

// A row of memory: `rows` x `columns` in panels, z at `tail` (none: z_size 0), `used` floats in all.
struct PanelRow {
  std::int64_t rows, columns, tail, z_size, used;
  bool transposed;  // the plain matrix is [columns][rows]
};

// Calls f(place in the panels, place in the plain matrix or -1 for padding).
template <class F>
HWY_INLINE void for_each_place(const PanelRow& row, F&& f) {
  for_each_panel(row.columns, [&](auto d, auto vectors, std::int64_t c, std::int64_t used) HWY_ATTR {
    constexpr std::int64_t kWidth = decltype(vectors)::value * static_cast<std::int64_t>(hn::MaxLanes(decltype(d)()));
    for (std::int64_t r = 0; r < row.rows; ++r) {
      const std::int64_t step = row.transposed ? row.rows : 1;
      const std::int64_t plain = row.transposed ? c * row.rows + r : r * row.columns + c;
      for (std::int64_t x = 0; x < kWidth; ++x) {
        f(c * row.rows + r * kWidth + x, x < used ? plain + x * step : std::int64_t{-1});
      }
    }
  });
}

// Everything that is not in the plain row becomes 0.
inline HWY_NOINLINE void from_plain(const PanelRow& row, const float* plain, float* to) {
  std::fill_n(to, row.used, 0.0f);
  for_each_place(row, [&](std::int64_t place, std::int64_t from) HWY_ATTR {
    if (from >= 0) to[place] = plain[from];
  });
  std::copy_n(plain + row.rows * row.columns, row.z_size, to + row.tail);
}

inline HWY_NOINLINE void to_plain(const PanelRow& row, const float* from, float* plain) {
  for_each_place(row, [&](std::int64_t place, std::int64_t to) HWY_ATTR {
    if (to >= 0) plain[to] = from[place];
  });
  std::copy_n(from + row.tail, row.z_size, plain + row.rows * row.columns);
}

}  // namespace HWY_NAMESPACE
}  // namespace mhla
HWY_AFTER_NAMESPACE();

#endif
