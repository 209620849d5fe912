// Cross entropy on CPU vectors: a row is read for its largest logit, for the sum of exponentials and for the gradient,
// the second and third time from the cache.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mhla/kernels/cross_entropy/cross_entropy_simd.cpp"
#include "hwy/foreach_target.h"
// foreach_target.h first: it includes this file once per instruction set
#include <cmath>
#include <limits>

#include "mhla/kernels/common/simd/rows-inl.h"
#include "mhla/kernels/cross_entropy/cross_entropy_job.h"

HWY_BEFORE_NAMESPACE();
namespace mhla {
namespace HWY_NAMESPACE {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();

// e^x for x <= 0; Highway's Exp() makes 0 of NaN.
HWY_INLINE Vector exponential(Vector x) { return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(Full(), x)); }

template <class T>
float largest_of(const T* x, std::int64_t V) {
  Vector largest = hn::Set(Full(), -kInfinity);
  each_vector(V, [&](std::int64_t c, std::int64_t n) {
    Vector some = load_part(x + c, n);
    if (n < kLanes) {
      const auto there = hn::FirstN(Full(), static_cast<std::size_t>(n));
      some = hn::IfThenElse(there, some, hn::Set(Full(), -kInfinity));
    }
    largest = hn::IfThenElse(hn::Gt(some, largest), some, largest);  // skips NaN: the sum keeps it
  });
  return hn::GetLane(hn::MaxOfLanes(Full(), largest));
}

template <class T>
void one_row(const CrossEntropyJob& job, std::int64_t row) {
  const std::int64_t V = job.vocab, target = job.targets[row];
  T* const x = static_cast<T*>(job.logits) + row * V;
  const auto fill = [&](float value) {
    each_vector(V, [&](std::int64_t c, std::int64_t n) { store_part(hn::Set(Full(), value), x + c, n); });
  };
  if (target == job.ignored || target < 0 || target >= V) {
    job.losses[row] = target == job.ignored ? 0.0f : kNan;
    if (job.gradient) fill(job.losses[row]);
    return;
  }
  const float most = largest_of(x, V);
  const Vector largest = hn::Set(Full(), most);
  const float sum = sum_of(V, [&](std::int64_t c, std::int64_t n, Vector so_far) {
    return hn::Add(so_far, only(exponential(hn::Sub(load_part(x + c, n), largest)), n));
  });
  const float at_target = hn::GetLane(load_part(x + target, 1)), log_sum = std::log(sum);
  job.losses[row] = log_sum + (most - at_target);
  if (!job.gradient) return;
  const Vector log_of_all = hn::Set(Full(), log_sum);
  each_vector(V, [&](std::int64_t c, std::int64_t n) {
    Vector share = exponential(hn::Sub(hn::Sub(load_part(x + c, n), largest), log_of_all));
    if (target >= c && target < c + n) {
      const auto before = hn::FirstN(Full(), static_cast<std::size_t>(target - c));
      const auto until = hn::FirstN(Full(), static_cast<std::size_t>(target - c + 1));
      share = hn::Sub(share, hn::IfThenZeroElse(before, hn::IfThenElseZero(until, hn::Set(Full(), 1.0f))));
    }
    store_part(share, x + c, n);
  });
}

void all_rows(const CrossEntropyJob& job, Executor& executor) {
  const std::int64_t rows_of_task = std::max<std::int64_t>(1, 16384 / job.vocab);
  with_value_type(job.dtype, [&](auto value) {
    executor.run((job.rows + rows_of_task - 1) / rows_of_task, [&](std::int64_t task, int) {
      const std::int64_t end = std::min(job.rows, (task + 1) * rows_of_task);
      for (std::int64_t row = task * rows_of_task; row < end; ++row) one_row<decltype(value)>(job, row);
    });
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace mhla
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mhla {

HWY_EXPORT(all_rows);

void cross_entropy_simd(const CrossEntropyJob& job, Executor& executor) {
  HWY_DYNAMIC_DISPATCH(all_rows)(job, executor);
}

}  // namespace mhla
#endif
