// The definition: pair by pair in f64, rounded once.
#include "mhla/kernels/common/reference.h"
#include "mhla/kernels/rope/rope_problem.h"

namespace mhla {
namespace {

// Element `channel` of row (b, n, h).
double load(const RopeRows& rows, DType dtype, const std::int64_t (&at)[3], std::int64_t channel) {
  const std::int64_t row = at[0] * rows.stride[0] + at[1] * rows.stride[1] + at[2] * rows.stride[2];
  return load_f64(rows.data, dtype, row + channel);
}
void store(const RopeRows& rows, DType dtype, const std::int64_t (&at)[3], std::int64_t channel, double value) {
  const std::int64_t row = at[0] * rows.stride[0] + at[1] * rows.stride[1] + at[2] * rows.stride[2];
  store_f64(rows.data, dtype, row + channel, value);
}

void turn_pair(const RopeProblem& p, const RopePart& part, const std::int64_t (&at)[3], std::int64_t pair) {
  const DType table = p.is_f64() ? DType::kF64 : DType::kF32;
  const std::int64_t line[3] = {at[0], at[1], 0};
  const double cos = load(p.cos, table, line, pair), sin = load(p.sin, table, line, pair);
  const std::int64_t first = p.halves ? pair : 2 * pair, second = p.halves ? pair + p.D / 2 : 2 * pair + 1;
  const double x = load(part.from, p.dtype, at, first), y = load(part.from, p.dtype, at, second);
  if (!p.backward) {
    const double a = phi(p.map, x), b = phi(p.map, y);
    store(part.to, p.dtype, at, first, a * cos - b * sin);
    store(part.to, p.dtype, at, second, a * sin + b * cos);
    return;
  }
  const auto through = [&](std::int64_t channel, double gradient) {
    if (p.map == FeatureMap::kIdentity) return gradient;
    const double slope = phi_slope(p.map, load(part.slope, p.dtype, at, channel));
    return slope == 0 ? 0 : gradient * slope;  // a zero slope blocks the gradient altogether, infinite or not
  };
  store(part.to, p.dtype, at, first, through(first, x * cos + y * sin));
  store(part.to, p.dtype, at, second, through(second, y * cos - x * sin));
}

}  // namespace

void rope_ref(const RopeProblem& p, Workspace&, Executor& executor) {
  executor.run(p.B * p.N, [&](std::int64_t token, int) {
    for (const RopePart& part : p.part) {
      for (std::int64_t h = 0; h < part.heads; ++h) {
        for (std::int64_t pair = 0; pair < p.D / 2; ++pair) turn_pair(p, part, {token / p.N, token % p.N, h}, pair);
      }
    }
  });
}

}  // namespace mhla
