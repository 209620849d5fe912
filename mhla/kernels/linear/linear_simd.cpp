// Dot products on CPU vectors. A tile has R rows and C outputs, each with one vector of partial sums over K, added up
// at the end: what is done for one output does not depend on R, C or its place in a tile. A task is a block of outputs,
// whose weights stay in L2 while all rows pass.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mhla/kernels/linear/linear_simd.cpp"
#include "hwy/foreach_target.h"
// foreach_target.h first: it includes this file once per instruction set
#include "mhla/kernels/common/simd/vec-inl.h"
#include "mhla/kernels/linear/linear_impl.h"

HWY_BEFORE_NAMESPACE();
namespace mhla {
namespace HWY_NAMESPACE {
namespace {

// Sums R * C, a row's vector and C weights: 6 * 4 + 5 of 32 registers, 3 * 4 + 4 of 16 (one is reused).
constexpr std::int64_t kTileRows = kLanes >= 16 ? 6 : 3, kTileOuts = 4;
constexpr std::int64_t kTaskOuts = 32;  // 128 KiB of weights at K = 1,024 in f32
constexpr std::int64_t kParallelProducts = std::int64_t{1} << 15;

template <int R, int C, class T>
HWY_INLINE void tile(const LinearProblem<T>& p, std::int64_t n, std::int64_t o) {
  const Full d;
  const T* x = p.x + n * p.x_stride;
  const T* w = p.weight + o * p.weight_stride;
  hn::Vec<Full> sums[R][C];
  MHLA_UNROLL(8)
  for (int r = 0; r < R; ++r) MHLA_UNROLL(4)
  for (int c = 0; c < C; ++c) sums[r][c] = hn::Zero(d);
  const auto add = [&](auto&& row, auto&& weight) HWY_ATTR {
    hn::Vec<Full> weights[C];
    MHLA_UNROLL(4)
    for (int c = 0; c < C; ++c) weights[c] = weight(c);
    MHLA_UNROLL(8)
    for (int r = 0; r < R; ++r) {
      const auto value = row(r);
      MHLA_UNROLL(4)
      for (int c = 0; c < C; ++c) sums[r][c] = hn::MulAdd(value, weights[c], sums[r][c]);
    }
  };
  // Rows of 16 bits are short streams, of which the hardware asks for the first lines too late: those of the tile after
  // this one. A decode step takes 20.3 ms instead of 22.5; in f32 33.8 instead of 31.0.
  const bool ahead = sizeof(T) == 2 && R <= 2 && n < 2 && o + 2 * C <= p.O;
  const std::int64_t next = C * p.weight_stride;
  std::int64_t k = 0;
  for (; k + kLanes <= p.K; k += kLanes) {
    if (ahead && (k * static_cast<std::int64_t>(sizeof(T))) % 64 == 0) {
      MHLA_UNROLL(4)
      for (int c = 0; c < C; ++c) hwy::Prefetch(w + c * p.weight_stride + next + k);
    }
    add([&](int r) HWY_ATTR { return load(d, x + r * p.x_stride + k); },
        [&](int c) HWY_ATTR { return load(d, w + c * p.weight_stride + k); });
  }
  if (k < p.K)
    add([&](int r) HWY_ATTR { return load_some(d, x + r * p.x_stride + k, p.K - k); },
        [&](int c) HWY_ATTR { return load_some(d, w + c * p.weight_stride + k, p.K - k); });
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) {
      float sum = hn::GetLane(hn::SumOfLanes(d, sums[r][c]));
      if (p.maybe_bias != nullptr) sum += static_cast<float>(to_f64(p.maybe_bias[o + c]));
      store_f64(p.out, kDTypeOf<T>, (n + r) * p.out_stride + o + c, sum);
    }
}

template <int R, class T>
HWY_INLINE void outs_of(const LinearProblem<T>& p, std::int64_t n, std::int64_t first, std::int64_t last) {
  std::int64_t o = first;
  for (; o + kTileOuts <= last; o += kTileOuts) tile<R, kTileOuts>(p, n, o);
  for (; o < last; ++o) tile<R, 1>(p, n, o);
}

template <class T>
void linear_any(const LinearProblem<T>& p, Executor& executor) {
  const std::int64_t tasks = (p.O + kTaskOuts - 1) / kTaskOuts;
  const auto task = [&](std::int64_t index, int) HWY_ATTR {
    const std::int64_t first = index * kTaskOuts, last = HWY_MIN(p.O, first + kTaskOuts);
    std::int64_t n = 0;
    for (; n + kTileRows <= p.N; n += kTileRows) outs_of<kTileRows>(p, n, first, last);
    for (; n + 2 <= p.N; n += 2) outs_of<2>(p, n, first, last);
    if (n < p.N) outs_of<1>(p, n, first, last);
  };
  if (p.N * p.O * p.K >= kParallelProducts && tasks > 1) {
    executor.run(tasks, task);
  } else {
    for (std::int64_t index = 0; index < tasks; ++index) task(index, 0);
  }
}

void linear_f32(const LinearProblem<float>& p, Executor& executor) { linear_any(p, executor); }
void linear_bf16(const LinearProblem<bf16>& p, Executor& executor) { linear_any(p, executor); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace mhla
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mhla {

HWY_EXPORT(linear_f32);
HWY_EXPORT(linear_bf16);

void linear_simd(const LinearProblem<float>& problem, Executor& executor) {
  HWY_DYNAMIC_DISPATCH(linear_f32)
  (problem, executor);
}
void linear_simd(const LinearProblem<bf16>& problem, Executor& executor) {
  HWY_DYNAMIC_DISPATCH(linear_bf16)
  (problem, executor);
}

}  // namespace mhla
#endif
