// Rows on CPU vectors. Every lane does the same three operations, so a channel's bits do not depend on its place in a
// vector. Adjacent pairs: x times (c, c) plus x with neighbours swapped times (-s, s), the line of the table spread out
// once for all heads of a token.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mhla/kernels/rope/rope_simd.cpp"
#include "hwy/foreach_target.h"
// foreach_target.h first: it includes this file once per instruction set
#include <algorithm>
#include <vector>

#include "mhla/kernels/common/simd/vec-inl.h"
#include "mhla/kernels/rope/rope_problem.h"

HWY_BEFORE_NAMESPACE();
namespace mhla {
namespace HWY_NAMESPACE {
namespace {

using Vector = hn::Vec<Full>;

template <class T>
HWY_INLINE Vector load_part(const T* from, std::int64_t count) {
  return count == kLanes ? load(Full(), from) : load_some(Full(), from, count);
}

// `slope`: backward, the row's input; null with the identity map.
template <class T, FeatureMap kMap, bool kBackward>
struct Row {
  const T *from, *slope;
  T* to;

  HWY_INLINE Vector input(std::int64_t channel, std::int64_t count) const {
    const Vector x = load_part(from + channel, count);
    return kBackward ? x : feature<kMap>(Full(), x);
  }
  HWY_INLINE void output(Vector x, std::int64_t channel, std::int64_t count) const {
    if constexpr (kBackward && kMap != FeatureMap::kIdentity)
      x = feature_gradient<kMap>(Full(), load_part(slope + channel, count), x);
    store_up_to(x, Full(), to + channel, count);
  }

  HWY_INLINE void turn_halves(const float* cos, const float* sin, std::int64_t pairs) const {
    for (std::int64_t j = 0; j < pairs; j += kLanes) {
      const std::int64_t n = HWY_MIN(kLanes, pairs - j);
      const Vector a = input(j, n), b = input(pairs + j, n), c = load_part(cos + j, n), s = load_part(sin + j, n);
      const Vector ac = hn::Mul(a, c), bs = hn::Mul(b, s), as = hn::Mul(a, s), bc = hn::Mul(b, c);
      output(kBackward ? hn::Add(ac, bs) : hn::Sub(ac, bs), j, n);
      output(kBackward ? hn::Sub(bc, as) : hn::Add(as, bc), pairs + j, n);
    }
  }

  // cos [D] and sin [D]: every value twice, the first sine of a pair with the sign that its channel wants.
  HWY_INLINE void turn_adjacent(const float* cos, const float* sin, std::int64_t D) const {
    for (std::int64_t j = 0; j < D; j += kLanes) {
      const std::int64_t n = HWY_MIN(kLanes, D - j);
      const Vector x = input(j, n);
      Vector other;
      if constexpr (kLanes > 1) {
        other = hn::Reverse2(Full(), x);
      } else {
        other = input(j ^ 1, n);
      }
      output(hn::Add(hn::Mul(x, load_part(cos + j, n)), hn::Mul(other, load_part(sin + j, n))), j, n);
    }
  }
};

template <class T, FeatureMap kMap, bool kBackward>
void turn_token(const RopeProblem& p, std::int64_t b, std::int64_t n, float* scratch) {
  const std::int64_t pairs = p.D / 2;
  const float *cos = p.cos.row<const float>(b, n), *sin = p.sin.row<const float>(b, n);
  if (!p.halves) {
    for (std::int64_t j = 0; j < pairs; ++j) {
      scratch[2 * j] = scratch[2 * j + 1] = cos[j];
      scratch[p.D + 2 * j] = kBackward ? sin[j] : -sin[j];
      scratch[p.D + 2 * j + 1] = kBackward ? -sin[j] : sin[j];
    }
  }
  for (const RopePart& part : p.part) {
    for (std::int64_t h = 0; h < part.heads; ++h) {
      const Row<T, kMap, kBackward> row{
          part.from.row<const T>(b, n, h),
          kBackward && kMap != FeatureMap::kIdentity ? part.slope.row<const T>(b, n, h) : nullptr,
          part.to.row<T>(b, n, h)};
      if (p.halves) {
        row.turn_halves(cos, sin, pairs);
      } else {
        row.turn_adjacent(scratch, scratch + p.D, p.D);
      }
    }
  }
}

constexpr std::int64_t kChannelsOfTask = 16384;  // some 10 microseconds of work

template <class T, FeatureMap kMap, bool kBackward>
void turn(const RopeProblem& p, Executor& executor) {
  const std::int64_t tokens = p.B * p.N, step = std::max<std::int64_t>(1, kChannelsOfTask / (p.heads() * p.D));
  std::vector<float> scratch;
  if (!p.halves) scratch.resize(static_cast<std::size_t>(2 * p.D * executor.concurrency()));
  executor.run((tokens + step - 1) / step, [&](std::int64_t task, int worker) {
    float* own = p.halves ? nullptr : scratch.data() + 2 * p.D * worker;
    const std::int64_t end = std::min(tokens, (task + 1) * step);
    for (std::int64_t token = task * step; token < end; ++token)
      turn_token<T, kMap, kBackward>(p, token / p.N, token % p.N, own);
  });
}

template <class T>
void turn_as(const RopeProblem& p, Executor& executor) {
  with_feature_map(p.map, [&](auto map) {
    if (p.backward) {
      turn<T, map(), true>(p, executor);
    } else {
      turn<T, map(), false>(p, executor);
    }
  });
}

void run(const RopeProblem& p, Executor& executor) {
  if (p.dtype == DType::kBF16) return turn_as<bf16>(p, executor);
  if (p.dtype == DType::kF16) return turn_as<f16>(p, executor);
  turn_as<float>(p, executor);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace mhla
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mhla {

HWY_EXPORT(run);

void rope_simd(const RopeProblem& problem, Workspace&, Executor& executor) {
  HWY_DYNAMIC_DISPATCH(run)(problem, executor);
}

}  // namespace mhla
#endif
