// Rows of any length on whole vectors: the last one may have fewer lanes, and what is not there reads as 0. Arithmetic
// is f32 whatever the rows are.
#if defined(MHLA_KERNELS_COMMON_SIMD_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MHLA_KERNELS_COMMON_SIMD_ROWS_INL_H_
#undef MHLA_KERNELS_COMMON_SIMD_ROWS_INL_H_
#else
#define MHLA_KERNELS_COMMON_SIMD_ROWS_INL_H_
#endif

#include "mhla/kernels/common/simd/vec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mhla {
namespace HWY_NAMESPACE {

using Vector = hn::Vec<Full>;

// f(column, count) for every vector of X columns, `count` of whose lanes exist.
template <class F>
HWY_INLINE void each_vector(std::int64_t X, const F& f) {
  for (std::int64_t column = 0; column < X; column += kLanes) f(column, HWY_MIN(kLanes, X - column));
}
template <class T>
HWY_INLINE Vector load_part(const T* from, std::int64_t count) {
  return count == kLanes ? load(Full(), from) : load_some(Full(), from, count);
}
template <class T>
HWY_INLINE void store_part(Vector x, T* to, std::int64_t count) {
  store_up_to(x, Full(), to, count);
}
HWY_INLINE Vector only(Vector x, std::int64_t count) {
  return count == kLanes ? x : hn::IfThenElseZero(hn::FirstN(Full(), static_cast<std::size_t>(count)), x);
}
HWY_INLINE float total(Vector x) { return hn::GetLane(hn::SumOfLanes(Full(), x)); }

// The sum of f(column, count, sum so far) over all vectors of X columns, in four parts that do not wait for each other:
// one after the other the additions of 192 columns take longer than their memory.
template <class F>
HWY_INLINE float sum_of(std::int64_t X, const F& f) {
  Vector a = hn::Zero(Full()), b = a, c = a, d = a;
  std::int64_t column = 0;
  for (; column + 4 * kLanes <= X; column += 4 * kLanes) {
    a = f(column, kLanes, a), b = f(column + kLanes, kLanes, b);
    c = f(column + 2 * kLanes, kLanes, c), d = f(column + 3 * kLanes, kLanes, d);
  }
  for (; column < X; column += kLanes) a = f(column, HWY_MIN(kLanes, X - column), a);
  return total(hn::Add(hn::Add(a, b), hn::Add(c, d)));
}

// s = 1 / (1 + e^-x), and 1 - s without cancellation. Highway's Exp() is wrong above 177, and e^88 is the last that is
// finite: below -88 both are 0. NaN gives some numbers: what they are multiplied by keeps it.
struct Sigmoid {
  Vector s, rest;
  HWY_INLINE explicit Sigmoid(Vector x) {
    const Vector one = hn::Set(Full(), 1.0f), least = hn::Set(Full(), -88.0f);
    const Vector e = hn::Exp(Full(), hn::Neg(hn::Max(least, x)));
    s = hn::IfThenZeroElse(hn::Lt(x, least), hn::Div(one, hn::Add(one, e)));
    rest = hn::Mul(e, s);
  }
};
HWY_INLINE Vector sigmoid(Vector x) { return Sigmoid(x).s; }

// f(T()) with the type of the values.
template <class F>
HWY_INLINE void with_value_type(DType dtype, const F& f) {
  dtype == DType::kF32 ? f(float()) : dtype == DType::kBF16 ? f(bf16()) : f(f16());
}

}  // namespace HWY_NAMESPACE
}  // namespace mhla
HWY_AFTER_NAMESPACE();

#endif
