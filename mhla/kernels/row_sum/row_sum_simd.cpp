// Sums of rows and GELU on CPU vectors. With tanh, s = sigmoid(2 u) and u = sqrt(2 / pi) (x + 0.044715 x^3):
//   gelu(x) = x s          gelu'(x) = s + 2 x s (1 - s) u'
// With the normal distribution P and its density p:
//   gelu(x) = x P(x)       gelu'(x) = P(x) + x p(x)
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

struct TanhGelu {
  static constexpr float kTwoRoots = 1.5957691216057308f, kCube = 0.044715f;  // 2 sqrt(2 / pi)
  // Past 16 sigmoid(2 u) is 0 or 1: the cube must not become infinite.
  static HWY_INLINE Vector within(Vector x) {
    return hn::Min(hn::Set(Full(), 16.0f), hn::Max(hn::Set(Full(), -16.0f), x));  // NaN second: it stays
  }

  static HWY_INLINE Vector value(Vector x) {
    const Vector y = within(x), cube = hn::Mul(hn::Mul(y, y), hn::Set(Full(), kCube));
    return hn::Mul(x, sigmoid(hn::Mul(hn::Set(Full(), kTwoRoots), hn::MulAdd(y, cube, y))));
  }
  static HWY_INLINE Vector slope(Vector x) {
    const Vector y = within(x), cube = hn::Mul(hn::Mul(y, y), hn::Set(Full(), kCube)), one = hn::Set(Full(), 1.0f);
    const Vector root = hn::Set(Full(), kTwoRoots);
    const Sigmoid share(hn::Mul(root, hn::MulAdd(y, cube, y)));
    const Vector inner = hn::Mul(root, hn::MulAdd(hn::Set(Full(), 3.0f), cube, one));  // 2 u'
    return hn::MulAdd(hn::Mul(y, hn::Mul(share.s, share.rest)), inner, share.s);
  }
};

// With t = 1 / (1 + 0.3 y), y = |x|: P(-y) = exp(-y^2 / 2) t q(t) / 2. The polynomial q is fitted to 5e-8 of its value
// for y up to 10.
struct ErfGelu {
  Vector x, bell, below;  // between -13 and 13; exp(-x^2 / 2); P(x)
  hn::Mask<Full> far;     // below -13, where exp() comes to the end of f32

  HWY_INLINE explicit ErfGelu(Vector given) {
    constexpr float kFit[] = {0.239210081f,  0.242222442f, 0.195511913f,  0.270993561f,
                              -0.133050187f, 0.440171826f, -0.330155852f, 0.0750962712f};
    const Vector most = hn::Set(Full(), 13.0f), one = hn::Set(Full(), 1.0f), half = hn::Set(Full(), 0.5f);
    far = hn::Lt(given, hn::Neg(most));
    x = hn::Min(most, hn::Max(hn::Neg(most), given));  // NaN second: it stays
    const Vector y = hn::Abs(x), t = hn::Div(one, hn::MulAdd(hn::Set(Full(), 0.3f), y, one));
    Vector q = hn::Set(Full(), kFit[7]);
    for (int i = 6; i >= 0; --i) q = hn::MulAdd(q, t, hn::Set(Full(), kFit[i]));
    bell = hn::Exp(Full(), hn::Neg(hn::Mul(half, hn::Mul(y, y))));
    const Vector tail = hn::Mul(hn::Mul(half, bell), hn::Mul(t, q));
    below = hn::IfThenElse(hn::Lt(x, hn::Zero(Full())), tail, hn::Sub(one, tail));
  }

  static HWY_INLINE Vector value(Vector x) {
    const ErfGelu at(x);
    return hn::IfThenZeroElse(at.far, hn::Mul(x, at.below));
  }
  static HWY_INLINE Vector slope(Vector x) {
    const ErfGelu at(x);
    const Vector density = hn::Mul(hn::Set(Full(), 0.3989422804f), at.bell);
    return hn::IfThenZeroElse(at.far, hn::MulAdd(at.x, density, at.below));
  }
};

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
template <class T, class Kind>
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
    const Vector d = hn::Mul(load_part(x + at, n), Kind::slope(load_part(pre + at, n)));
    store_part(d, dpre + at, n);
    return d;
  });
}

void sum_rows(const RowSumJob& job, Executor& executor) {
  const std::int64_t parts = row_sum_parts(job.rows);
  with_value_type(job.dtype, [&](auto value) {
    using T = decltype(value);
    const auto sum = job.gelu == Gelu::kErf ? sum_part<T, ErfGelu> : sum_part<T, TanhGelu>;
    executor.run(parts, [&](std::int64_t part, int) { sum(job, part, parts); });
  });
  add_rows(0, parts, job.columns, job.sum, [&](std::int64_t part, std::int64_t c, std::int64_t n) {
    return load_part(job.parts + part * job.columns + c, n);
  });
}

constexpr std::int64_t kTask = 16384;  // values

template <class T, class Kind>
void gelu_task(const GeluJob& job, std::int64_t task) {
  const T* const x = static_cast<const T*>(job.x) + task * kTask;
  T* const y = static_cast<T*>(job.y) + task * kTask;
  each_vector(std::min(kTask, job.count - task * kTask),
              [&](std::int64_t c, std::int64_t n) { store_part(Kind::value(load_part(x + c, n)), y + c, n); });
}

void gelu_values(const GeluJob& job, Executor& executor) {
  with_value_type(job.dtype, [&](auto value) {
    using T = decltype(value);
    const auto values = job.kind == Gelu::kErf ? gelu_task<T, ErfGelu> : gelu_task<T, TanhGelu>;
    executor.run((job.count + kTask - 1) / kTask, [&](std::int64_t task, int) { values(job, task); });
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
