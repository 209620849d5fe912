// Rows on CPU vectors, in f32: rows of 16 bits are widened before and rounded once after. Lanes past the last column
// hold zeros, which add nothing to any sum.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mhla/kernels/norm/norm_simd.cpp"
#include "hwy/foreach_target.h"
// foreach_target.h first: it includes this file once per instruction set
#include "mhla/kernels/norm/norm_job.h"
#include "mhla/kernels/norm/norm_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mhla {
namespace HWY_NAMESPACE {
namespace {

inline constexpr int kForwardBuffers = 3, kBackwardBuffers = 7;  // x, gate, y; x, dy, gate, dgate, dx, x^, dx^

void forward_row(const NormJob& p, std::int64_t row, RowBuffers buffers) {
  const float *x = buffers.read(p.x, row), *gate = buffers.read(p.gate, row);
  float* const y = buffers.begin(p.y, row);
  const Stats s = stats_of(x, p.X, p.centered, p.eps);
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
  buffers.write(y, p.y, row);
}

// Adds to dweight and dbias of the part.
void backward_row(const NormJob& p, std::int64_t row, float* dweight, float* dbias, RowBuffers buffers) {
  const float *x = buffers.read(p.x, row), *dy = buffers.read(p.y, row), *gate = buffers.read(p.gate, row);
  float *const dgate = buffers.begin(p.dgate, row), *const dx = buffers.begin(p.dx, row);
  float *const normed = buffers.take(), *const inner = buffers.take();  // x^, dx^
  const Stats s = stats_of(x, p.X, p.centered, p.eps);
  const Vector mean = hn::Set(Full(), s.mean), factor = hn::Set(Full(), s.factor), one = hn::Set(Full(), 1.0f);
  Vector along = hn::Zero(Full()), level = hn::Zero(Full());
  each_vector(p.X, [&](std::int64_t c, std::int64_t n) {
    const Vector weight = load_part(static_cast<const float*>(p.weight.data) + c, n);
    const Vector unit = only(hn::Mul(hn::Sub(load_part(x + c, n), mean), factor), n);
    Vector d = load_part(dy + c, n);
    if (gate != nullptr) {
      const Vector g = load_part(gate + c, n);
      const Sigmoid share(g);
      Vector y = hn::Mul(unit, weight);
      if (p.bias != nullptr) y = hn::Add(y, load_part(p.bias + c, n));
      const Vector slope = hn::Mul(share.s, hn::MulAdd(g, share.rest, one));
      store_part(hn::Mul(hn::Mul(d, y), slope), dgate + c, n);
      d = only(hn::Mul(d, hn::Mul(g, share.s)), n);
    }
    store_part(hn::MulAdd(d, unit, load_part(dweight + c, n)), dweight + c, n);
    store_part(hn::Add(d, load_part(dbias + c, n)), dbias + c, n);
    const Vector h = hn::Mul(d, weight);
    along = hn::MulAdd(h, unit, along);
    level = hn::Add(level, h);
    store_part(unit, normed + c, n), store_part(h, inner + c, n);
  });
  const float share = 1.0f / static_cast<float>(p.X);
  const Vector a = hn::Set(Full(), total(along) * share), b = hn::Set(Full(), p.centered ? total(level) * share : 0.0f);
  each_vector(p.X, [&](std::int64_t c, std::int64_t n) {
    const Vector h = hn::NegMulAdd(a, load_part(normed + c, n), load_part(inner + c, n));
    store_part(hn::Mul(factor, hn::Sub(h, b)), dx + c, n);
  });
  buffers.write(dgate, p.dgate, row), buffers.write(dx, p.dx, row);
}

constexpr std::int64_t kRowsOfTask = 32;

void forward(const NormJob& p, Executor& executor) {
  ThreadBuffers buffers(executor, p.X, kForwardBuffers);
  executor.run((p.rows + kRowsOfTask - 1) / kRowsOfTask, [&](std::int64_t task, int worker) {
    const std::int64_t end = std::min(p.rows, (task + 1) * kRowsOfTask);
    for (std::int64_t row = task * kRowsOfTask; row < end; ++row) forward_row(p, row, buffers.of(worker));
  });
}

void backward(const NormJob& p, Executor& executor) {
  const std::int64_t parts = norm_parts(p.rows);
  ThreadBuffers buffers(executor, p.X, kBackwardBuffers);
  executor.run(parts, [&](std::int64_t part, int worker) {
    float *dweight = p.parts + part * 2 * p.X, *dbias = dweight + p.X;
    std::fill(dweight, dweight + 2 * static_cast<std::int64_t>(p.X), 0.0f);
    const std::int64_t first = p.rows * part / parts, end = p.rows * (part + 1) / parts;
    for (std::int64_t row = first; row < end; ++row) backward_row(p, row, dweight, dbias, buffers.of(worker));
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
