// The norm between two branches on CPU vectors, in f32: rows of 16 bits are widened before and rounded once after. A
// task has the tokens of a sample that share a part of the sums over tokens.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mhla/kernels/norm/modulated_norm_simd.cpp"
#include "hwy/foreach_target.h"
// foreach_target.h first: it includes this file once per instruction set
#include "mhla/kernels/norm/modulated_norm_job.h"
#include "mhla/kernels/norm/norm_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mhla {
namespace HWY_NAMESPACE {
namespace {

inline constexpr int kForwardBuffers = 7;    // gate, scale, shift; x, branch, s, y
inline constexpr int kBackwardBuffers = 10;  // gate, scale; s, dout, dsum, branch, dx, dbranch, unit, inner

// f(sample, part, first, end): tokens first to end of all, and the buffers of the thread.
template <class F>
void each_part(const ModulatedNormJob& p, Executor& executor, int buffers, const F& f) {
  ThreadBuffers memory(executor, p.X, buffers);
  const std::int64_t parts = modulated_parts(p.tokens);
  executor.run(p.samples * parts, [&](std::int64_t task, int worker) {
    const std::int64_t sample = task / parts, part = task % parts, first = sample * p.tokens;
    f(sample, task, first + part * kModulatedTokens, first + std::min(p.tokens, (part + 1) * kModulatedTokens),
      memory.of(worker));
  });
}

void forward(const ModulatedNormJob& p, Executor& executor) {
  const Vector one = hn::Set(Full(), 1.0f);
  each_part(
      p, executor, kForwardBuffers,
      [&](std::int64_t sample, std::int64_t, std::int64_t first, std::int64_t end, RowBuffers of_sample) {
        const float *const gate = of_sample.read(p.gate, sample), *const scale = of_sample.read(p.scale, sample),
                           *const shift = of_sample.read(p.shift, sample);
        for (std::int64_t row = first; row < end; ++row) {
          RowBuffers buffers = of_sample;
          const float *const x = buffers.read(p.x, row), *const branch = buffers.read(p.branch, row);
          float *const sum = buffers.begin(p.sum, row), *const y = buffers.begin(p.y, row);
          if (branch != nullptr) {
            each_vector(p.X, [&](std::int64_t c, std::int64_t n) {
              store_part(hn::MulAdd(load_part(gate + c, n), load_part(branch + c, n), load_part(x + c, n)), sum + c, n);
            });
            buffers.write(sum, p.sum, row);
          }
          const float* const s = branch != nullptr ? sum : x;
          const Stats stats = stats_of(s, p.X, /*centered=*/true, p.eps);
          const Vector mean = hn::Set(Full(), stats.mean), factor = hn::Set(Full(), stats.factor);
          each_vector(p.X, [&](std::int64_t c, std::int64_t n) {
            const Vector unit = hn::Mul(hn::Sub(load_part(s + c, n), mean), factor);
            store_part(hn::MulAdd(unit, hn::Add(one, load_part(scale + c, n)), load_part(shift + c, n)), y + c, n);
          });
          buffers.write(y, p.y, row);
        }
      });
}

// Of one token; adds to the part's sums of dshift, dscale and dgate.
void backward_row(const ModulatedNormJob& p, std::int64_t row, const float* gate, const float* scale, float* sums,
                  RowBuffers buffers) {
  const float *const s = buffers.read(p.x, row), *const dout = buffers.read(p.y, row),
                     *const dsum = buffers.read(p.sum, row), *const branch = buffers.read(p.branch, row);
  float *const dx = buffers.begin(p.dx, row), *const dbranch = buffers.begin(p.dbranch, row);
  float *const normed = buffers.take(), *const inner = buffers.take();
  float *const dshift = sums, *const dscale = sums + p.X, *const dgate = sums + 2 * static_cast<std::int64_t>(p.X);
  const Stats stats = stats_of(s, p.X, /*centered=*/true, p.eps);
  const Vector mean = hn::Set(Full(), stats.mean), factor = hn::Set(Full(), stats.factor), one = hn::Set(Full(), 1.0f);
  Vector along = hn::Zero(Full()), level = hn::Zero(Full());
  each_vector(p.X, [&](std::int64_t c, std::int64_t n) {
    const Vector unit = only(hn::Mul(hn::Sub(load_part(s + c, n), mean), factor), n), d = load_part(dout + c, n);
    store_part(hn::Add(load_part(dshift + c, n), d), dshift + c, n);
    store_part(hn::MulAdd(d, unit, load_part(dscale + c, n)), dscale + c, n);
    const Vector h = hn::Mul(d, hn::Add(one, load_part(scale + c, n)));
    along = hn::MulAdd(h, unit, along), level = hn::Add(level, h);
    store_part(unit, normed + c, n), store_part(h, inner + c, n);
  });
  const float share = 1.0f / static_cast<float>(p.X);
  const Vector a = hn::Set(Full(), total(along) * share), b = hn::Set(Full(), total(level) * share);
  each_vector(p.X, [&](std::int64_t c, std::int64_t n) {
    const Vector h = hn::NegMulAdd(a, load_part(normed + c, n), load_part(inner + c, n));
    Vector ds = hn::Mul(factor, hn::Sub(h, b));
    if (dsum != nullptr) ds = hn::Add(ds, load_part(dsum + c, n));
    store_part(ds, dx + c, n);
    if (branch == nullptr) return;
    store_part(hn::Mul(ds, load_part(gate + c, n)), dbranch + c, n);
    store_part(hn::MulAdd(ds, load_part(branch + c, n), load_part(dgate + c, n)), dgate + c, n);
  });
  buffers.write(dx, p.dx, row), buffers.write(dbranch, p.dbranch, row);
}

void backward(const ModulatedNormJob& p, Executor& executor) {
  const std::int64_t values = 3 * static_cast<std::int64_t>(p.X), parts = modulated_parts(p.tokens);
  each_part(p, executor, kBackwardBuffers,
            [&](std::int64_t sample, std::int64_t part, std::int64_t first, std::int64_t end, RowBuffers of_sample) {
              const float *const gate = of_sample.read(p.gate, sample), *const scale = of_sample.read(p.scale, sample);
              float* const sums = p.parts + part * values;
              std::fill(sums, sums + values, 0.0f);
              for (std::int64_t row = first; row < end; ++row) backward_row(p, row, gate, scale, sums, of_sample);
            });
  executor.run(p.samples, [&](std::int64_t sample, int) {
    float* const to = p.dmodulation + sample * values;
    std::fill(to, to + values, 0.0f);
    for (std::int64_t part = 0; part < parts; ++part) {
      const float* const from = p.parts + (sample * parts + part) * values;
      each_vector(values, [&](std::int64_t c, std::int64_t n) {
        store_part(hn::Add(load_part(to + c, n), load_part(from + c, n)), to + c, n);
      });
    }
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

void modulated_norm_simd(const ModulatedNormJob& job, Executor& executor) {
  HWY_DYNAMIC_DISPATCH(forward)(job, executor);
}
void modulated_norm_backward_simd(const ModulatedNormJob& job, Executor& executor) {
  HWY_DYNAMIC_DISPATCH(backward)(job, executor);
}

}  // namespace mhla
#endif
