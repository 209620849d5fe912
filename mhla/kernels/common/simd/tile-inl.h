// The one product of all CPU kernels: acc[r][c] = sum_k a(k, r) * b(k, c), a register tile of R rows and V
// vectors. Every element is one chain of fused multiply-adds over k = 0, 1, 2, ..., whatever the tile shape,
// so prefill, append and decode of the causal form round alike.
//
// Measured on a Zen 4 core (115 GF/s peak, f32): 4 rows x 2 vectors, 8 accumulators, runs at 99 % of peak from
// K = 16 on with AVX-512 and at 95 % with AVX2; 8 rows x 1 vector at 94 to 99 % and 85 %. Strides of a are
// template parameters: with run-time strides the address arithmetic costs more than the products.
#include "mhla/kernels/common/simd/vec-inl.h"

#if defined(MHLA_KERNELS_COMMON_SIMD_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHLA_KERNELS_COMMON_SIMD_TILE_INL_H_
#undef MHLA_KERNELS_COMMON_SIMD_TILE_INL_H_
#else
#define MHLA_KERNELS_COMMON_SIMD_TILE_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace mhla {
namespace HWY_NAMESPACE {

// Packed rows of q~, k~, v and their gradients: 256 floats at most, stored 272 apart. 17 cache lines is an odd
// number, so the rows of a block spread over all sets of the first-level cache.
inline constexpr std::int64_t kRow = 272;
// Tokens packed at a time: rows of k~ and v of 64 tokens at D = E = 128 are 64 KiB, in the second-level cache.
inline constexpr std::int64_t kTokens = 64;

template <int kValue>
using Int = std::integral_constant<int, kValue>;

// Runs one tile. `start(r, v)` gives the initial value, `finish(r, v, value)` takes the result. `between()` is called
// every fourth step, about once in 32 cycles: a prefetch there keeps memory busy without filling the miss buffers.
template <int R, int V, std::int64_t kAk, std::int64_t kAr, class DF, class Start, class Finish, class Between>
HWY_INLINE void tile(DF d, std::int64_t K, const float* HWY_RESTRICT a, const float* HWY_RESTRICT b,
                     std::int64_t b_stride, const Start& start, const Finish& finish, Between&& between) {
  constexpr std::int64_t L = static_cast<std::int64_t>(hn::MaxLanes(DF()));
  hn::Vec<DF> acc[R][V];
  MHLA_UNROLL(8)
  for (int r = 0; r < R; ++r) {
    MHLA_UNROLL(2)
    for (int v = 0; v < V; ++v) acc[r][v] = start(r, v);
  }
  // Half a vector is quick: a call every fourth step would take as long as the steps.
  constexpr bool kCalls = V * L >= kLanes;
  for (std::int64_t k = 0; k < K;) {
    for (const std::int64_t end = kCalls ? HWY_MIN(k + 4, K) : K; k < end; ++k) {
      hn::Vec<DF> row[V];
      MHLA_UNROLL(2)
      for (int v = 0; v < V; ++v) row[v] = hn::LoadU(d, b + v * L);
      b += b_stride;
      MHLA_UNROLL(8)
      for (int r = 0; r < R; ++r) {
        const auto x = hn::Set(d, a[r * kAr]);
        MHLA_UNROLL(2)
        for (int v = 0; v < V; ++v) acc[r][v] = hn::MulAdd(x, row[v], acc[r][v]);
      }
      a += kAk;
    }
    if constexpr (kCalls) between();
  }
  MHLA_UNROLL(8)
  for (int r = 0; r < R; ++r) {
    MHLA_UNROLL(2)
    for (int v = 0; v < V; ++v) finish(r, v, acc[r][v]);
  }
}

struct NoPrefetch {
  HWY_INLINE void operator()() const {}
};

// Rows [0, rows) in tiles of 8 / V, the rest in smaller ones. f(Int<R>, first row).
template <int V, class F>
HWY_INLINE void for_each_row_tile(std::int64_t rows, F&& f) {
  constexpr int kRows = V == 2 ? 4 : 8;
  std::int64_t r = 0;
  for (; r + kRows <= rows; r += kRows) f(Int<kRows>(), r);
  if constexpr (kRows == 8) {
    if (rows - r >= 4) f(Int<4>(), r), r += 4;
  }
  if (rows - r >= 2) f(Int<2>(), r), r += 2;
  if (rows - r >= 1) f(Int<1>(), r);
}

// A matrix of `rows` x `columns` between two products lies in panels: [panel][row][width], width 2, 1 or 1/2
// vectors. The panel that begins at column c begins at offset c * rows. f(tag, Int<V>, first column, columns used).
template <class F>
HWY_INLINE void for_each_panel(std::int64_t columns, F&& f) {
  std::int64_t c = 0;
  for (; c + 2 * kLanes <= columns; c += 2 * kLanes) f(Full(), Int<2>(), c, 2 * kLanes);
  const std::int64_t rest = columns - c;
  if (rest > kLanes + kHalf) {
    f(Full(), Int<2>(), c, rest);
  } else if (rest > kHalf) {
    f(Full(), Int<1>(), c, HWY_MIN(rest, kLanes));
    if (rest > kLanes) f(Half(), Int<1>(), c + kLanes, rest - kLanes);
  } else if (rest > 0) {
    f(Half(), Int<1>(), c, rest);
  }
}

// Columns with the padding of the last panel.
constexpr std::int64_t padded_columns(std::int64_t columns) {
  const std::int64_t rest = columns % (2 * kLanes), whole = columns - rest;
  return whole + (rest > kLanes + kHalf ? 2 * kLanes : round_up(rest, rest > kHalf && rest <= kLanes ? kLanes : kHalf));
}

// How a product continues what stands in its destination.
enum class Sum : std::uint8_t {
  kStart,  // overwrite
  kChain,  // go on with the chain of fused multiply-adds: the bits of one long product
  kAdd,    // add a chain of its own: rounding errors grow with the square root of both lengths, not of their product
};

// S[r][c] = or += sum_t a[t][r] b[t][c]: the summary of `tokens` packed rows, into panels. Columns of b beyond
// `columns` must be zero up to the padding. `between` as in tile(). Not inlined: one copy of these loops per
// instruction set.
template <class Between>
HWY_NOINLINE void summary_product(const float* a, const float* b, std::int64_t tokens, std::int64_t rows,
                                  std::int64_t columns, Sum sum, float* S, Between&& between) {
  for_each_panel(columns, [&](auto d, auto vectors, std::int64_t c, std::int64_t) HWY_ATTR {
    constexpr int V = decltype(vectors)::value;
    constexpr std::int64_t L = static_cast<std::int64_t>(hn::MaxLanes(decltype(d)()));
    float* panel = S + c * rows;
    for_each_row_tile<V>(rows, [&](auto count, std::int64_t r0) HWY_ATTR {
      constexpr int R = decltype(count)::value;
      float* to = panel + r0 * V * L;
      const auto zero = [&](int, int) HWY_ATTR { return hn::Zero(d); };
      const auto stored = [&](int r, int v) HWY_ATTR { return hn::LoadU(d, to + (r * V + v) * L); };
      const auto overwrite = [&](int r, int v, auto value) HWY_ATTR { hn::StoreU(value, d, to + (r * V + v) * L); };
      const auto add = [&](int r, int v, auto value) HWY_ATTR { overwrite(r, v, hn::Add(stored(r, v), value)); };
      switch (sum) {
        case Sum::kStart: tile<R, V, kRow, 1>(d, tokens, a + r0, b + c, kRow, zero, overwrite, between); break;
        case Sum::kChain: tile<R, V, kRow, 1>(d, tokens, a + r0, b + c, kRow, stored, overwrite, between); break;
        case Sum::kAdd: tile<R, V, kRow, 1>(d, tokens, a + r0, b + c, kRow, zero, add, between); break;
      }
    });
  });
}

// Terms of a read-out chain: several chains of 32, added up, are rounded less than one long chain.
inline constexpr std::int64_t kReadoutChain = 32;

// y[t][c] = sum_r x[t][r] S[r][c] for `tokens` packed rows x; S in panels.
// finish(d, t, c, used, value) takes one vector of row t at column c, of which `used` lanes count.
template <class Between, class Finish>
HWY_INLINE void readout_product(const float* x, const float* S, std::int64_t tokens, std::int64_t rows,
                                std::int64_t columns, Between&& between, const Finish& finish) {
  for_each_panel(columns, [&](auto d, auto vectors, std::int64_t c, std::int64_t used) HWY_ATTR {
    constexpr int V = decltype(vectors)::value;
    constexpr std::int64_t L = static_cast<std::int64_t>(hn::MaxLanes(decltype(d)()));
    const float* panel = S + c * rows;
    for_each_row_tile<V>(tokens, [&](auto count, std::int64_t t0) HWY_ATTR {
      constexpr int R = decltype(count)::value;
      const float* from = x + t0 * kRow;
      const auto zero = [&](int, int) HWY_ATTR { return hn::Zero(d); };
      // Whole vectors go straight from the registers to `finish`. A ragged end goes through memory: a branch for it in
      // `finish` would cost the hot loop one of its accumulators, which the compiler then keeps on the stack.
      const bool whole = used >= V * L;
      const auto last = [&](int r, int v, auto value) HWY_ATTR { finish(d, t0 + r, c + v * L, L, value); };
      if (whole && rows <= kReadoutChain) {
        tile<R, V, 1, kRow>(d, rows, from, panel, V * L, zero, last, between);
        return;
      }
      float sums[R * V * L];
      const auto sum = [&](int r, int v) HWY_ATTR { return hn::LoadU(d, sums + (r * V + v) * L); };
      const auto keep = [&](int r, int v, auto value) HWY_ATTR { hn::StoreU(value, d, sums + (r * V + v) * L); };
      const auto add = [&](int r, int v, auto value) HWY_ATTR { keep(r, v, hn::Add(sum(r, v), value)); };
      const auto add_last = [&](int r, int v, auto value) HWY_ATTR { last(r, v, hn::Add(sum(r, v), value)); };
      tile<R, V, 1, kRow>(d, HWY_MIN(rows, kReadoutChain), from, panel, V * L, zero, keep, between);
      for (std::int64_t k = kReadoutChain; k < rows; k += kReadoutChain) {
        const std::int64_t K = HWY_MIN(rows - k, kReadoutChain);
        if (whole && k + K == rows) {
          tile<R, V, 1, kRow>(d, K, from + k, panel + k * V * L, V * L, zero, add_last, between);
        } else {
          tile<R, V, 1, kRow>(d, K, from + k, panel + k * V * L, V * L, zero, add, between);
        }
      }
      if (whole) return;
      for (int r = 0; r < R; ++r) {
        for (int v = 0; v < V; ++v) finish(d, t0 + r, c + v * L, used - v * L, sum(r, v));
      }
    });
  });
}

// The same with the result in packed rows: to[t][c].
template <class Between>
HWY_NOINLINE void readout_rows(const float* x, const float* S, std::int64_t tokens, std::int64_t rows,
                               std::int64_t columns, Between&& between, float* to) {
  readout_product(x, S, tokens, rows, columns, between,
                  [&](auto d, std::int64_t t, std::int64_t c, std::int64_t, auto value)
                      HWY_ATTR { hn::StoreU(value, d, to + t * kRow + c); });
}

}  // namespace HWY_NAMESPACE
}  // namespace mhla
HWY_AFTER_NAMESPACE();

#endif
