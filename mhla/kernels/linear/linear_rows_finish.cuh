// What happens to the sums of a tile in linear_rows_sm90.cu when those of all slices have come: a thread has one column
// and four rows at a time, so that the lanes of a warp write next to each other.
#pragma once

#include "mhla/kernels/linear/linear_rows_end.cuh"
#include "mhla/kernels/linear/linear_rows_exchange.cuh"

namespace mhla::cuda {

__device__ inline void add_to(float (&sum)[4], const float4& x) {
  sum[0] += x.x, sum[1] += x.y, sum[2] += x.z, sum[3] += x.w;
}

template <RowsBefore kBefore, RowsAfter kAfter, bool kTurned>
struct RowsFinish {
  using Tile = RowsTile<kAfter, kTurned>;
  static constexpr int kTogether = 4;  // slices whose sums are on their way at once
  const LinearRowsJob& p;
  const Tile& tile;
  const RowsExchange& from;
  int first_row, slices;
  float per_column;
  float early[2][4];  // what is added, or cos and sin: loaded while the product runs

  __device__ RowsFinish(const LinearRowsJob& job, const Tile& own_tile, const RowsExchange& exchange, int rank,
                        int count)
      : p(job),
        tile(own_tile),
        from(exchange),
        first_row(rank * job.places.fours * 4),
        slices(count),
        per_column(reciprocal(own_tile.outputs())) {}

  [[nodiscard]] __device__ bool has(int column) const {
    if (kTurned && tile.turned) return tile.index * tile.half + column < p.turned / 2;
    return tile.first + column < p.O + (kAfter == RowsAfter::kStore ? p.O2 : 0);
  }

  __device__ void load_early(int item) {
    if constexpr (kAfter == RowsAfter::kAdd || kTurned) {
      const int own = quotient(item, per_column), column = item - own * tile.outputs(), row = first_row + own * 4;
      if (own >= from.valid() || !has(column)) return;
      const float *first = p.add, *second = nullptr;
      std::int64_t stride = p.add_stride;
      int at = tile.first + column;
      if constexpr (kTurned) {
        if (!tile.turned) return;
        const int u = tile.index * tile.half + column;
        at = u - quotient(u, p.per_half) * (p.turn_head / 2);
        first = p.cos, second = p.sin + row * p.sin_stride + at, stride = p.cos_stride;
      }
      first += row * stride + at;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (row + i >= p.R) break;
        early[0][i] = *first, first += stride;
        if constexpr (kTurned) early[1][i] = *second, second += p.sin_stride;
      }
    }
  }

  __device__ void operator()(int threads) {
    const int items = from.valid() * tile.outputs();
#pragma unroll 1
    for (int item = threadIdx.x; item < items; item += threads) {
      const int own = quotient(item, per_column), column = item - own * tile.outputs();
      if (!has(column)) continue;
      if (item >= threads) load_early(item);
      float y[4] = {}, z[4] = {}, square[4] = {};
#pragma unroll 1
      for (int slice = 0; slice < slices; slice += kTogether) {
        float4 part[kTogether] = {}, other[kTogether] = {}, squares[kTogether] = {};
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          if (slice + i >= slices) break;
          part[i] = from.sums(slice + i, column, own);
          if (tile.pairs()) other[i] = from.sums(slice + i, column + tile.half, own);
          if constexpr (kBefore == RowsBefore::kNorm) squares[i] = from.squares(slice + i, own);
        }
#pragma unroll
        for (int i = 0; i < kTogether; ++i) add_to(y, part[i]), add_to(z, other[i]), add_to(square, squares[i]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (kBefore == RowsBefore::kNorm) {
          const float factor = rsqrtf(square[i] * p.per_K + p.eps);
          y[i] *= factor, z[i] *= factor;
        }
      }
      store(first_row + own * 4, column, y, z);
    }
  }

 private:
  __device__ void store(int row, int column, const float (&y)[4], const float (&z)[4]) const {
    const int o = tile.first + column;
    if constexpr (kAfter == RowsAfter::kAdd) {
      float* out = static_cast<float*>(p.out) + row * p.out_stride + o;
#pragma unroll
      for (int i = 0; i < 4; ++i, out += p.out_stride) {
        if (row + i < p.R) *out = early[0][i] + y[i];
      }
    } else {
      const bool other = kAfter == RowsAfter::kStore && o >= p.O, turned = kTurned && tile.turned;
      const std::int64_t stride = other && !turned ? p.second_out_stride : p.out_stride;
      bf16* out = static_cast<bf16*>(other && !turned ? p.second_out : p.out) + row * stride;
      if (turned) {
        out += turned_column(p, tile.index * tile.half + column);
#pragma unroll
        for (int i = 0; i < 4; ++i, out += stride) {
          if (row + i >= p.R) break;
          const Pair pair = turn(p.map, y[i], z[i], early[0][i], early[1][i]);
          out[0] = pair.low, out[p.turn_head / 2] = pair.high;
        }
        return;
      }
      out += other ? o - p.O : o;
      const bool silu_too = other && p.silu_second;
#pragma unroll
      for (int i = 0; i < 4; ++i, out += stride) {
        const float x = kAfter == RowsAfter::kSwiglu ? silu(y[i]) * z[i] : silu_too ? silu(y[i]) : y[i];
        if (row + i < p.R) *out = narrow<bf16>(x);
      }
    }
  }
};

}  // namespace mhla::cuda
