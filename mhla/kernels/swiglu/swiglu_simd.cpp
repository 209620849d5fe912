// SwiGLU on CPU vectors.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mhla/kernels/swiglu/swiglu_simd.cpp"
#include "hwy/foreach_target.h"
// foreach_target.h first: it includes this file once per instruction set
#include "mhla/kernels/common/simd/rows-inl.h"
#include "mhla/kernels/swiglu/swiglu_job.h"

HWY_BEFORE_NAMESPACE();
namespace mhla {
namespace HWY_NAMESPACE {
namespace {

// f(T(), element, count) for every vector of the job.
template <class F>
void each_value(const SwigluJob& job, Executor& executor, const F& f) {
  constexpr std::int64_t kTask = 16384;
  with_value_type(job.dtype, [&](auto value) {
    executor.run((job.count + kTask - 1) / kTask, [&](std::int64_t task, int) {
      const std::int64_t first = task * kTask;
      each_vector(std::min(kTask, job.count - first), [&](std::int64_t c, std::int64_t n) { f(value, first + c, n); });
    });
  });
}

void forward(const SwigluJob& job, Executor& executor) {
  each_value(job, executor, [&](auto value, std::int64_t i, std::int64_t n) {
    using T = decltype(value);
    const Vector gate = load_part(static_cast<const T*>(job.gate) + i, n);
    const Vector up = load_part(static_cast<const T*>(job.up) + i, n);
    store_part(hn::Mul(hn::Mul(gate, sigmoid(gate)), up), static_cast<T*>(job.out) + i, n);
  });
}

void backward(const SwigluJob& job, Executor& executor) {
  const Vector one = hn::Set(Full(), 1.0f);
  each_value(job, executor, [&](auto value, std::int64_t i, std::int64_t n) {
    using T = decltype(value);
    const Vector gate = load_part(static_cast<const T*>(job.gate) + i, n);
    const Sigmoid share(gate);
    const Vector up = load_part(static_cast<const T*>(job.up) + i, n);
    const Vector dout = load_part(static_cast<const T*>(job.dout) + i, n);
    const Vector slope = hn::Mul(share.s, hn::MulAdd(gate, share.rest, one));
    store_part(hn::Mul(hn::Mul(dout, up), slope), static_cast<T*>(job.dgate) + i, n);
    store_part(hn::Mul(dout, hn::Mul(gate, share.s)), static_cast<T*>(job.dup) + i, n);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace mhla
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mhla {

HWY_EXPORT(forward);
HWY_EXPORT(backward);

void swiglu_simd(const SwigluJob& job, Executor& executor) { HWY_DYNAMIC_DISPATCH(forward)(job, executor); }
void swiglu_backward_simd(const SwigluJob& job, Executor& executor) { HWY_DYNAMIC_DISPATCH(backward)(job, executor); }

}  // namespace mhla
#endif
