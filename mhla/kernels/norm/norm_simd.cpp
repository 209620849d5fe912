// Rows on CPU vectors, f32. Lanes behind the last column hold zeros, which add nothing to any sum.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mhla/kernels/norm/norm_simd.cpp"
#include "hwy/foreach_target.h"
// foreach_target.h first: it includes this file once per instruction set
#include <cmath>
#include <vector>

#include "mhla/kernels/common/simd/vec-inl.h"
#include "mhla/kernels/norm/norm_job.h"

HWY_BEFORE_NAMESPACE();
namespace mhla {
namespace HWY_NAMESPACE {
namespace {

using Vector = hn::Vec<Full>;

// f(column, count) for every vector of X columns, `count` of whose lanes exist.
template <class F>
HWY_INLINE void each_vector(int X, const F& f) {
  for (std::int64_t column = 0; column < X; column += kLanes) f(column, HWY_MIN(kLanes, X - column));
}
HWY_INLINE Vector load_part(const float* from, std::int64_t count) {
  return count == kLanes ? hn::LoadU(Full(), from) : load_some(Full(), from, count);
}
HWY_INLINE void store_part(Vector x, float* to, std::int64_t count) { store_up_to(x, Full(), to, count); }
HWY_INLINE Vector only(Vector x, std::int64_t count) {
  return count == kLanes ? x : hn::IfThenElseZero(hn::FirstN(Full(), static_cast<std::size_t>(count)), x);
}
HWY_INLINE float total(Vector x) { return hn::GetLane(hn::SumOfLanes(Full(), x)); }
HWY_INLINE Vector sigmoid(Vector x) {
  const Vector one = hn::Set(Full(), 1.0f);
  return hn::Div(one, hn::Add(one, hn::Exp(Full(), hn::Neg(x))));
}

// The sum of f(column, count, sum so far) over all vectors of X columns, in four parts that do not wait for each other:
// one after the other the additions of 192 columns take longer than their memory.
template <class F>
HWY_INLINE float sum_of(int X, const F& f) {
  Vector a = hn::Zero(Full()), b = a, c = a, d = a;
  std::int64_t column = 0;
  for (; column + 4 * kLanes <= X; column += 4 * kLanes) {
    a = f(column, kLanes, a), b = f(column + kLanes, kLanes, b);
    c = f(column + 2 * kLanes, kLanes, c), d = f(column + 3 * kLanes, kLanes, d);
  }
  for (; column < X; column += kLanes) a = f(column, HWY_MIN(kLanes, X - column), a);
  return total(hn::Add(hn::Add(a, b), hn::Add(c, d)));
}

float* row_of(const NormRows& rows, std::int64_t row) { return static_cast<float*>(rows.data) + row * rows.stride; }

struct Stats {
  float mean = 0, factor = 0;
};

Stats stats_of(const NormJob& p, const float* x) {
  const float share = 1.0f / static_cast<float>(p.X);
  Stats s;
  if (p.centered) {
    s.mean = share *
             sum_of(p.X, [&](std::int64_t c, std::int64_t n, Vector sum) { return hn::Add(sum, load_part(x + c, n)); });
  }
  const Vector mean = hn::Set(Full(), s.mean);
  const float squares = sum_of(p.X, [&](std::int64_t c, std::int64_t n, Vector sum) {
    const Vector d = only(hn::Sub(load_part(x + c, n), mean), n);
    return hn::MulAdd(d, d, sum);
  });
  s.factor = 1.0f / std::sqrt(squares * share + p.eps);
  return s;
}

void forward_row(const NormJob& p, std::int64_t row) {
  const float *x = row_of(p.x, row), *gate = p.gate.data == nullptr ? nullptr : row_of(p.gate, row);
  float* y = row_of(p.y, row);
  const Stats s = stats_of(p, x);
  const Vector mean = hn::Set(Full(), s.mean), factor = hn::Set(Full(), s.factor);
  each_vector(p.X, [&](std::int64_t c, std::int64_t n) {
    Vector v = hn::Mul(hn::Mul(hn::Sub(load_part(x + c, n), mean), factor),
                       load_part(static_cast<const float*>(p.weight.data) + c, n));
    if (p.bias != nullptr) v = hn::Add(v, load_part(p.bias + c, n));
    if (gate != nullptr) {
      const Vector g = load_part(gate + c, n);
      v = hn::Mul(v, hn::Mul(g, sigmoid(g)));
    }
    store_part(v, y + c, n);
  });
}

// Adds to dweight and dbias of the part. `scratch`: x^ and dx^ of the row.
void backward_row(const NormJob& p, std::int64_t row, float* dweight, float* dbias, float* scratch) {
  const float *x = row_of(p.x, row), *dy = row_of(p.y, row), *gate = p.gate.data ? row_of(p.gate, row) : nullptr;
  float *dgate = gate != nullptr ? row_of(p.dgate, row) : nullptr, *dx = row_of(p.dx, row), *inner = scratch + p.X;
  const Stats s = stats_of(p, x);
  const Vector mean = hn::Set(Full(), s.mean), factor = hn::Set(Full(), s.factor), one = hn::Set(Full(), 1.0f);
  Vector along = hn::Zero(Full()), level = hn::Zero(Full());
  each_vector(p.X, [&](std::int64_t c, std::int64_t n) {
    const Vector weight = load_part(static_cast<const float*>(p.weight.data) + c, n);
    const Vector unit = only(hn::Mul(hn::Sub(load_part(x + c, n), mean), factor), n);
    Vector d = load_part(dy + c, n);
    if (gate != nullptr) {
      const Vector g = load_part(gate + c, n), sig = sigmoid(g);
      Vector y = hn::Mul(unit, weight);
      if (p.bias != nullptr) y = hn::Add(y, load_part(p.bias + c, n));
      const Vector slope = hn::Mul(sig, hn::MulAdd(g, hn::Sub(one, sig), one));
      store_part(hn::Mul(hn::Mul(d, y), slope), dgate + c, n);
      d = only(hn::Mul(d, hn::Mul(g, sig)), n);
    }
    store_part(hn::MulAdd(d, unit, load_part(dweight + c, n)), dweight + c, n);
    store_part(hn::Add(d, load_part(dbias + c, n)), dbias + c, n);
    const Vector h = hn::Mul(d, weight);
    along = hn::MulAdd(h, unit, along);
    level = hn::Add(level, h);
    store_part(unit, scratch + c, n), store_part(h, inner + c, n);
  });
  const float share = 1.0f / static_cast<float>(p.X);
  const Vector a = hn::Set(Full(), total(along) * share), b = hn::Set(Full(), p.centered ? total(level) * share : 0.0f);
  each_vector(p.X, [&](std::int64_t c, std::int64_t n) {
    const Vector h = hn::NegMulAdd(a, load_part(scratch + c, n), load_part(inner + c, n));
    store_part(hn::Mul(factor, hn::Sub(h, b)), dx + c, n);
  });
}

constexpr std::int64_t kRowsOfTask = 32;

void forward(const NormJob& p, Executor& executor) {
  executor.run((p.rows + kRowsOfTask - 1) / kRowsOfTask, [&](std::int64_t task, int) {
    const std::int64_t end = std::min(p.rows, (task + 1) * kRowsOfTask);
    for (std::int64_t row = task * kRowsOfTask; row < end; ++row) forward_row(p, row);
  });
}

void backward(const NormJob& p, Executor& executor) {
  const std::int64_t parts = norm_parts(p.rows);
  std::vector<float> scratch(static_cast<std::size_t>(executor.concurrency()) * 2 * static_cast<std::size_t>(p.X));
  executor.run(parts, [&](std::int64_t part, int worker) {
    float *dweight = p.parts + part * 2 * p.X, *dbias = dweight + p.X;
    std::fill(dweight, dweight + 2 * static_cast<std::int64_t>(p.X), 0.0f);
    float* own = scratch.data() + static_cast<std::size_t>(worker) * 2 * static_cast<std::size_t>(p.X);
    const std::int64_t first = p.rows * part / parts, end = p.rows * (part + 1) / parts;
    for (std::int64_t row = first; row < end; ++row) backward_row(p, row, dweight, dbias, own);
  });
  float* const sums[] = {p.dweight, p.dbias};
  for (std::int64_t which = 0; which < 2; ++which) {
    if (sums[which] == nullptr) continue;
    std::fill(sums[which], sums[which] + p.X, 0.0f);
    for (std::int64_t part = 0; part < parts; ++part) {
      const float* from = p.parts + (part * 2 + which) * p.X;
      each_vector(p.X, [&](std::int64_t c, std::int64_t n) {
        store_part(hn::Add(load_part(sums[which] + c, n), load_part(from + c, n)), sums[which] + c, n);
      });
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace mhla
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mhla {

HWY_EXPORT(forward);
HWY_EXPORT(backward);

void norm_simd(const NormJob& job, Executor& executor) { HWY_DYNAMIC_DISPATCH(forward)(job, executor); }
void norm_backward_simd(const NormJob& job, Executor& executor) { HWY_DYNAMIC_DISPATCH(backward)(job, executor); }

}  // namespace mhla
#endif
