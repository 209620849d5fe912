#include "apps/bench/verify.h"

#include <fmt/format.h>

#include <algorithm>

#include "mhla/core/error.h"
#include "mhla/testing/accuracy.h"

namespace mhla::apps {
namespace {

// The layout with its blocks thinned out until `tokens` fit: block sizes stay, whole blocks go.
Layout thinned(const Layout& layout, std::int64_t tokens) {
  Layout small = layout;
  if (layout.rank == 1) return small;
  std::array<std::int64_t, 3> step{};
  for (std::size_t axis = 0; axis < 3; ++axis)
    step[axis] = (layout.grid[axis] + layout.blocks[axis] - 1) / layout.blocks[axis];
  const auto count = [&] { return small.grid[0] * small.grid[1] * small.grid[2]; };
  while (count() > tokens) {
    const std::size_t axis =
        static_cast<std::size_t>(std::max_element(small.blocks.begin(), small.blocks.end()) - small.blocks.begin());
    if (small.blocks[axis] <= 2) break;
    --small.blocks[axis];
    small.grid[axis] = step[axis] * small.blocks[axis];
  }
  return small;
}

// Columns [0, columns) of head 0 of batch element 0, as f64: [1, N, 1, columns].
Tensor first_columns(const Tensor& x, std::int64_t columns) {
  const std::int64_t N = x.shape()[1], heads = x.shape()[2], size = x.shape()[3];
  Tensor part(DType::kF64, {1, N, 1, columns});
  for (std::int64_t t = 0; t < N; ++t)
    for (std::int64_t j = 0; j < columns; ++j) part.set(t * columns + j, x.at(t * heads * size + j));
  return part;
}

}  // namespace

std::string verify_reduced(const OpShape& shape, DType dtype, const std::string& backend) {
  Case c;
  c.form = shape.causal() ? Form::kCausal : Form::kBidirectional;
  c.dtype = dtype;
  c.normalizer = shape.causal() ? Normalizer::kNone : Normalizer::kPaper;
  c.B = 1;
  c.Hkv = 1;
  c.H = shape.H / shape.Hkv;
  c.D = shape.D;
  c.E = shape.E;
  constexpr std::int64_t kProducts = std::int64_t{1} << 24;  // N D E that reference and plain code do in a second
  const std::int64_t tokens = std::max<std::int64_t>(kProducts / (c.H * c.D * c.E), 64);
  c.layout = thinned(shape.layout, tokens);
  c.N = c.layout.rank == 1 ? std::min(shape.N, std::max(tokens, 2 * shape.layout.block_size))
                           : c.layout.grid[0] * c.layout.grid[1] * c.layout.grid[2];
  if (c.layout.rank != 1 && c.N > shape.N) c.layout = shape.layout, c.N = shape.N;
  if (c.blocks() <= 1) c.eps = 20;  // with one block mix cancels out, and dmix would be all rounding
  if (dtype == DType::kF16) c.eps = std::max(c.eps, 0.1);  // 1 / 1e-6 is beyond f16: plain code overflows
  try {
    return check_accuracy(c, backend);
  } catch (const Error& error) {
    return error.what();
  }
}

std::string verify_timed(const OpShape& shape, Pass pass, OpTensors& t) {
  const std::int64_t columns = std::min<std::int64_t>(shape.E, 8);
  OpShape one = shape;
  one.B = one.H = one.Hkv = 1;
  one.E = columns;
  OpTensors f64;
  f64.q = first_columns(t.q, shape.D);
  f64.k = first_columns(t.k, shape.D);
  f64.v = first_columns(t.v, columns);
  f64.mix = t.mix.to(DType::kF64);
  const bool backward = pass == Pass::kBackward;  // dv needs dout and the denominators alone
  const Tensor& timed = backward ? t.dv : t.out;
  if (backward) {
    f64.dout = first_columns(t.dout, columns);
    f64.dv = Tensor(DType::kF64, f64.v.shape());
  } else {
    f64.out = Tensor(DType::kF64, f64.v.shape());
  }
  if (backward && shape.H != shape.Hkv) return {};  // dv sums over the group: left to the reduced check
  RunOptions run;
  run.candidate = "ref";
  run_pass(one, pass == Pass::kBoth ? Pass::kForward : pass, views_of(f64), run);
  const Tensor got = first_columns(timed, columns);
  const double error = rms_error(got, backward ? f64.dv : f64.out);
  const double bound = (timed.dtype() == DType::kF32 ? 64.0 : 2.0) * epsilon_of(timed.dtype());
  if (error <= bound) return {};
  return fmt::format("the timed call is wrong: RMS error {:.3g} of {} against f64, at most {:.3g} expected", error,
                     backward ? "dv" : "out", bound);
}

}  // namespace mhla::apps
