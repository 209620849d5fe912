// Sums of rows and tanh-GELU on CPU vectors. With s = sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3):
//   gelu(x) = x s        gelu'(x) = s + 2 x s (1 - s) u'
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mhla/kernels/row_sum/row_sum_simd.cpp"
#include "hwy/foreach_target.h"
// foreach_target.h first: it includes this file once per instruction set
#include "mhla/kernels/common/simd/rows-inl.h"
#include "mhla/kernels/row_sum/row_sum_job.h"

HWY_BEFORE_NAMESPACE();
namespace mhla {
namespace HWY_NAMESPACE {
namespace {

constexpr float kTwoRoots = 1.5957691216057308f, kCube = 0.044715f;  // 2 sqrt(2 / pi)

// Past 16 sigmoid(2 u) is 0 or 1: the cube must not become infinite.
HWY_INLINE Vector within(Vector x) {
  return hn::Min(hn::Set(Full(), 16.0f), hn::Max(hn::Set(Full(), -16.0f), x));  // NaN second: it stays
}

HWY_INLINE Vector gelu_of(Vector x) {
  const Vector y = within(x), cube = hn::Mul(hn::Mul(y, y), hn::Set(Full(), kCube));
  return hn::Mul(x, sigmoid(hn::Mul(hn::Set(Full(), kTwoRoots), hn::MulAdd(y, cube, y))));
}

HWY_INLINE Vector gelu_slope(Vector x) {
  const Vector y = within(x), cube = hn::Mul(hn::Mul(y, y), hn::Set(Full(), kCube)), one = hn::Set(Full(), 1.0f);
  const Vector root = hn::Set(Full(), kTwoRoots);
  const Sigmoid share(hn::Mul(root, hn::MulAdd(y, cube, y)));
  const Vector inner = hn::Mul(root, hn::MulAdd(hn::Set(Full(), 3.0f), cube, one));  // 2 u'
  return hn::MulAdd(hn::Mul(y, hn::Mul(share.s, share.rest)), inner, share.s);
}

// sum[c] = the sum of value(row, c, count) over rows first to end: sums of sixteen rows, then their sum, so that few
// roundings come one after the other.
template <class F>
HWY_INLINE void add_rows(std::int64_t first, std::int64_t end, std::int64_t columns, float* sum, const F& value) {
  constexpr std::int64_t kGroup = 16;
  std::fill(sum, sum + columns, 0.0f);
  for (std::int64_t group = first; group < end; group += kGroup) {
    const std::int64_t last = std::min(end, group + kGroup);
    each_vector(columns, [&](std::int64_t c, std::int64_t n) {
      Vector some = hn::Zero(Full());
      for (std::int64_t row = group; row < last; ++row) some = hn::Add(some, value(row, c, n));
      store_part(hn::Add(load_part(sum + c, n), some), sum + c, n);
    });
  }
}

// The rows of a part, dout gelu'(pre) where there is pre.
template <class T>
void sum_part(const RowSumJob& job, std::int64_t part, std::int64_t parts) {
  const std::int64_t C = job.columns, first = job.rows * part / parts, end = job.rows * (part + 1) / parts;
  const T *const x = static_cast<const T*>(job.x), *const pre = static_cast<const T*>(job.pre);
  T* const dpre = static_cast<T*>(job.dpre);
  float* const sum = job.parts + part * C;
  if (pre == nullptr) {
    add_rows(first, end, C, sum,
             [&](std::int64_t row, std::int64_t c, std::int64_t n) { return load_part(x + row * C + c, n); });
    return;
  }
  add_rows(first, end, C, sum, [&](std::int64_t row, std::int64_t c, std::int64_t n) {
    const std::int64_t at = row * C + c;
    const Vector d = hn::Mul(load_part(x + at, n), gelu_slope(load_part(pre + at, n)));
    store_part(d, dpre + at, n);
    return d;
  });
}

void sum_rows(const RowSumJob& job, Executor& executor) {
  const std::int64_t parts = row_sum_parts(job.rows);
  with_value_type(job.dtype, [&](auto value) {
    executor.run(parts, [&](std::int64_t part, int) { sum_part<decltype(value)>(job, part, parts); });
  });
  add_rows(0, parts, job.columns, job.sum, [&](std::int64_t part, std::int64_t c, std::int64_t n) {
    return load_part(job.parts + part * job.columns + c, n);
  });
}

void gelu_values(const GeluJob& job, Executor& executor) {
  constexpr std::int64_t kTask = 16384;
  with_value_type(job.dtype, [&](auto value) {
    using T = decltype(value);
    executor.run((job.count + kTask - 1) / kTask, [&](std::int64_t task, int) {
      const T* const x = static_cast<const T*>(job.x) + task * kTask;
      T* const y = static_cast<T*>(job.y) + task * kTask;
      each_vector(std::min(kTask, job.count - task * kTask),
                  [&](std::int64_t c, std::int64_t n) { store_part(gelu_of(load_part(x + c, n)), y + c, n); });
    });
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace mhla
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mhla {

HWY_EXPORT(sum_rows);
HWY_EXPORT(gelu_values);

void row_sum_simd(const RowSumJob& job, Executor& executor) { HWY_DYNAMIC_DISPATCH(sum_rows)(job, executor); }
void gelu_simd(const GeluJob& job, Executor& executor) { HWY_DYNAMIC_DISPATCH(gelu_values)(job, executor); }

}  // namespace mhla
#endif
