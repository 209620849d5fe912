// The outer parts of the kernels of linear_rows: which rows of the weights are the columns of a tile, and what happens
// to the sums of a tile when all slices of K have theirs.
#pragma once

#include "mhla/kernels/common/cuda/tokens.cuh"
#include "mhla/kernels/linear/linear_rows.cuh"

namespace mhla::cuda {

// x / y of small numbers that are not negative, exact; `per` is 1 / y.
__device__ inline int quotient(int x, float per) { return static_cast<int>((static_cast<float>(x) + 0.5f) * per); }

__device__ inline float reciprocal(int y) { return __fdividef(1.0f, static_cast<float>(y)); }

// Where a pair of turned columns lies: pair u of all heads, side by side in a tile, half a tile from its other half.
__device__ inline int turned_column(const LinearRowsJob& p, int u) {
  const int half = p.turn_head / 2;
  return quotient(u, p.per_half) * half + u;
}

// Four pairs, rounded, mapped and turned as in rope_cuda.cu.
struct Angles {
  float4 cos{}, sin{};
  __device__ void load(const LinearRowsJob& p, int row, int u) {
    const int line = u - quotient(u, p.per_half) * (p.turn_head / 2);
    cos = *reinterpret_cast<const float4*>(p.cos + row * p.cos_stride + line);
    sin = *reinterpret_cast<const float4*>(p.sin + row * p.sin_stride + line);
  }
};
// One pair, rounded, mapped and turned.
struct Pair {
  bf16 low, high;
};
__device__ inline Pair turn(FeatureMap map, float y, float z, float cos, float sin) {
  const float a = feature(map, widen(narrow<bf16>(y))), b = feature(map, widen(narrow<bf16>(z)));
  const float ac = a * cos, bs = b * sin, as = a * sin, bc = b * cos;
  return {narrow<bf16>(ac - bs), narrow<bf16>(as + bc)};
}
__device__ inline void store_turned(const LinearRowsJob& p, const Angles& angles, int row, int u, const float (&y)[4],
                                    const float (&z)[4]) {
  const float4 c = angles.cos, s = angles.sin;
  const float cos[4] = {c.x, c.y, c.z, c.w}, sin[4] = {s.x, s.y, s.z, s.w};
  Four low, high;
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const Pair pair = turn(p.map, y[e], z[e], cos[e], sin[e]);
    low.x[e] = pair.low, high.x[e] = pair.high;
  }
  bf16* const out = static_cast<bf16*>(p.out) + row * p.out_stride + turned_column(p, u);
  *reinterpret_cast<Four*>(out) = low;
  *reinterpret_cast<Four*>(out + p.turn_head / 2) = high;
}

// Tile `index` of `columns` columns. With kSwiglu the second half of the columns are those of `second`, in the first
// tiles of kTurned those that the first half is turned with.
template <RowsAfter kAfter, bool kTurned>
struct RowsTile {
  static constexpr bool kSwiglu = kAfter == RowsAfter::kSwiglu;
  int index, columns, half;
  bool turned;  // pairs [index * half, ...), else columns from `first` on
  int first;
  __device__ RowsTile(const LinearRowsJob& p, int own, int tile) : index(own), columns(tile), half(tile / 2) {
    turned = kTurned && index < p.turned_tiles;
    first = kTurned && !turned ? p.turned + (index - p.turned_tiles) * tile : index * (kSwiglu ? half : tile);
  }
  [[nodiscard]] __device__ bool pairs() const { return kSwiglu || (kTurned && turned); }
  // Columns that are written next to each other.
  [[nodiscard]] __device__ int outputs() const { return pairs() ? half : columns; }

  // Column `column`, as a row of the weights; null: there is none.
  [[nodiscard]] __device__ const bf16* row_of(const LinearRowsJob& p, int column) const {
    if constexpr (kSwiglu) {
      const bool second = column >= half;
      const int o = first + column - (second ? half : 0);
      if (o >= p.O) return nullptr;
      return static_cast<const bf16*>(second ? p.second : p.weight) + o * (second ? p.second_stride : p.weight_stride);
    } else {
      int o = first + column;
      if (kTurned && turned) {
        const bool second = column >= half;
        const int u = index * half + column - (second ? half : 0);
        if (u >= p.turned / 2) return nullptr;
        o = turned_column(p, u) + (second ? p.turn_head / 2 : 0);
      }
      if (o < p.O) return static_cast<const bf16*>(p.weight) + o * p.weight_stride;
      return o < p.O + p.O2 ? static_cast<const bf16*>(p.second) + (o - p.O) * p.second_stride : nullptr;
    }
  }
};

// A block's share of the outputs, four of a row at a time: `count` fours of every row from the `from`-th on, number
// `first`, `first` + `step`, ... of them for this thread. What is added, and angles, can come while the product runs.
template <RowsBefore kBefore, RowsAfter kAfter, bool kTurned>
struct RowsEnd {
  int count, from, shares, first, step;
  float per_count;
  float4 add{};
  Angles angles;
  bool angles_there = false;

  __device__ RowsEnd(const LinearRowsJob& p, int fours, int from_four, int first_share, int share_step)
      : count(fours),
        from(from_four),
        shares(p.R * fours),
        first(first_share),
        step(share_step),
        per_count(reciprocal(fours)) {}

  __device__ void begin(const LinearRowsJob& p, const RowsTile<kAfter, kTurned>& tile, bool angles_too) {
    if (first >= shares) return;
    const int row = quotient(first, per_count), column = (from + first - row * count) * 4;
    if constexpr (kAfter == RowsAfter::kAdd) {
      const int o = tile.first + column;
      if (o < p.O) add = *reinterpret_cast<const float4*>(p.add + row * p.add_stride + o);
    }
    if (kTurned && tile.turned && angles_too) {
      const int u = tile.index * tile.half + column;
      if (u < p.turned / 2) angles.load(p, row, u);
      angles_there = true;
    }
  }

  // sums(row, column, y, z): the four sums from a column on, and with pairs their other halves; square(row): the sum of
  // squares of a row, asked for first.
  template <class Square, class Sums>
  __device__ void finish(const LinearRowsJob& p, const RowsTile<kAfter, kTurned>& tile, const Square& square,
                         const Sums& sums) {
    constexpr bool kSwiglu = kAfter == RowsAfter::kSwiglu;
#pragma unroll 1
    for (int share = first; share < shares; share += step) {
      const int row = quotient(share, per_count), column = (from + share - row * count) * 4, o = tile.first + column;
      const int u = tile.index * tile.half + column;
      if (kTurned && tile.turned ? u >= p.turned / 2 : o >= p.O + (kAfter == RowsAfter::kStore ? p.O2 : 0)) continue;
      float4 y{}, z{};
      const auto parts = square(row);
      sums(row, column, y, z);
      float factor = 1;
      if constexpr (kBefore == RowsBefore::kNorm) factor = rsqrtf(parts() * p.per_K + p.eps);
      float value[4] = {factor * y.x, factor * y.y, factor * y.z, factor * y.w};
      if constexpr (kAfter == RowsAfter::kAdd) {
        if (share != first) add = *reinterpret_cast<const float4*>(p.add + row * p.add_stride + o);
        *reinterpret_cast<float4*>(static_cast<float*>(p.out) + row * p.out_stride + o) = {
            add.x + value[0], add.y + value[1], add.z + value[2], add.w + value[3]};
      } else {
        const float second[4] = {factor * z.x, factor * z.y, factor * z.z, factor * z.w};
        if (kTurned && tile.turned) {
          if (!angles_there || share != first) angles.load(p, row, u);
          store_turned(p, angles, row, u, value, second);
          continue;
        }
        if constexpr (kSwiglu) {
#pragma unroll
          for (int e = 0; e < 4; ++e) value[e] = silu(value[e]) * second[e];
        }
        const bool other = kAfter == RowsAfter::kStore && o >= p.O;
        if (other && p.silu_second) {
#pragma unroll
          for (int e = 0; e < 4; ++e) value[e] = silu(value[e]);
        }
        Four four;
#pragma unroll
        for (int e = 0; e < 4; ++e) four.x[e] = narrow<bf16>(value[e]);
        bf16* const out = other ? static_cast<bf16*>(p.second_out) + row * p.second_out_stride + o - p.O
                                : static_cast<bf16*>(p.out) + row * p.out_stride + o;
        *reinterpret_cast<Four*>(out) = four;
      }
    }
  }
};

}  // namespace mhla::cuda
