// Initial mixing matrices: a weight that falls with the distance between blocks, then normalised.
// The paper normalises rows, the published code columns; they differ because a corner block has fewer
// near neighbours than an inner one.
#include <algorithm>
#include <cmath>
#include <vector>

#include "mhla/core/error.h"
#include "mhla/kernels/mixing/mix_matrix.h"
#include "mhla/kernels/mixing/mixing.h"

namespace mhla {
namespace {

constexpr std::string_view kTransformNames[] = {"linear", "cos", "exp", "gaussian", "local", "uniform"};
constexpr std::string_view kCausalNames[] = {"prefix", "linear", "exp"};
constexpr double kQuarterPi = 0.78539816339744830962;

std::array<std::int64_t, 3> position(const BlockGrid& grid, std::int64_t block) {
  const auto& n = grid.blocks;
  return {block / (n[1] * n[2]), block / n[2] % n[1], block % n[2]};
}

double distance(const BlockGrid& grid, std::int64_t i, std::int64_t b) {
  const auto x = position(grid, i);
  const auto y = position(grid, b);
  double sum = 0.0;
  for (int axis = 0; axis < 3; ++axis) {
    const auto step = static_cast<double>(x[axis] - y[axis]);
    sum += step * step;
  }
  return std::sqrt(sum);
}

// The farthest block from i is a corner: along every axis the longer way.
double farthest(const BlockGrid& grid, std::int64_t i) {
  const auto x = position(grid, i);
  double sum = 0.0;
  for (int axis = 0; axis < 3; ++axis) {
    const auto step = static_cast<double>(std::max(x[axis], grid.blocks[axis] - 1 - x[axis]));
    sum += step * step;
  }
  return std::sqrt(sum);
}

double weight(const MixInit& init, double d, double row_max, double global_max) {
  switch (init.transform) {
    case MixTransform::kLinear: return 1.0 - d / (init.official ? global_max : row_max);
    case MixTransform::kCos: return std::cos(kQuarterPi * d / global_max);
    case MixTransform::kExp: return std::exp(-d / init.exp_sigma);
    case MixTransform::kGaussian: {
      const double x = 3.0 * d / global_max;  // d / sigma
      return std::exp(-0.5 * x * x);
    }
    case MixTransform::kLocal: return d <= init.local_threshold ? 1.0 : 0.0;
    case MixTransform::kUniform: return 1.0;
  }
  fail("init_mix: transform ", static_cast<int>(init.transform), " is unknown");
}

// The diagonal weighs 1 in every transform, so no sum is 0.
void normalize_rows(MixMatrix& matrix) {
  for (std::int64_t i = 0; i < matrix.rows; ++i) {
    double* row = matrix.row(0, i);
    double sum = 0.0;
    for (std::int64_t b = 0; b < matrix.rows; ++b) sum += row[b];
    for (std::int64_t b = 0; b < matrix.rows; ++b) row[b] /= sum;
  }
}

void normalize_columns(MixMatrix& matrix) {
  std::vector<double> sum(static_cast<std::size_t>(matrix.rows), 0.0);
  for (std::int64_t i = 0; i < matrix.rows; ++i) {
    for (std::int64_t b = 0; b < matrix.rows; ++b) sum[b] += matrix.row(0, i)[b];
  }
  for (std::int64_t i = 0; i < matrix.rows; ++i) {
    for (std::int64_t b = 0; b < matrix.rows; ++b) matrix.row(0, i)[b] /= sum[b];
  }
}

void store_every_head(const MixMatrix& matrix, std::int64_t heads, const View& mix) {
  MixMatrix all(heads, matrix.rows);
  for (std::int64_t h = 0; h < heads; ++h) {
    std::copy(matrix.values.begin(), matrix.values.end(), all.row(h, 0));
  }
  store_mix(all, mix);
}

template <std::size_t Count>
int parse(std::string_view name, const std::string_view (&names)[Count], const char* what) {
  std::string known;
  for (std::size_t i = 0; i < Count; ++i) {
    if (names[i] == name) return static_cast<int>(i);
    known += str(i == 0 ? "" : ", ", names[i]);
  }
  fail(what, " '", name, "' is unknown, expected one of ", known);
}

}  // namespace

BlockGrid BlockGrid::of(const Layout& layout, std::int64_t N) {
  check_layout(layout, N, "block_grid");
  if (layout.rank == 1) return line(N / layout.block_size + (N % layout.block_size != 0 ? 1 : 0));
  return {layout.blocks};
}

std::int64_t BlockGrid::count() const {
  for (const std::int64_t n : blocks) {
    if (n < 1) fail("block grid ", blocks[0], "x", blocks[1], "x", blocks[2], ", expected at least one block per axis");
  }
  return checked_product({blocks[0], blocks[1], blocks[2]}, "block grid");
}

std::string describe(const BlockGrid& grid) {
  const auto& n = grid.blocks;
  if (n[0] != 1) return str(n[0], "x", n[1], "x", n[2]);
  return n[1] != 1 ? str(n[1], "x", n[2]) : str(n[2]);
}

std::string_view name_of(MixTransform transform) { return kTransformNames[static_cast<int>(transform)]; }
std::string_view name_of(CausalInit init) { return kCausalNames[static_cast<int>(init)]; }

MixTransform parse_mix_transform(std::string_view name) {
  return static_cast<MixTransform>(parse(name, kTransformNames, "mix transform"));
}

CausalInit parse_causal_init(std::string_view name) {
  return static_cast<CausalInit>(parse(name, kCausalNames, "causal mix init"));
}

void init_mix(const MixInit& init, const BlockGrid& grid, View mix) {
  const MixSize size = check_mix_output(mix, "init_mix", "mix");
  const std::int64_t M = grid.count();
  if (size.rows != M) {
    fail("init_mix: mix has shape ", shape_text(mix), ", expected ", M, " rows (blocks ", describe(grid), ")");
  }
  if (!(init.exp_sigma > 0.0) || !std::isfinite(init.exp_sigma)) {
    fail("init_mix: exp_sigma is ", init.exp_sigma, ", expected a finite number above 0");
  }
  if (!(init.local_threshold >= 0.0)) {
    fail("init_mix: local_threshold is ", init.local_threshold, ", expected a number of at least 0");
  }

  MixMatrix matrix(1, M);
  if (M == 1) {
    matrix.values[0] = 1.0;  // dmax is 0: linear and cos would be 0 / 0
  } else {
    const double global_max = farthest(grid, 0);
    for (std::int64_t i = 0; i < M; ++i) {
      const double row_max = farthest(grid, i);
      double* row = matrix.row(0, i);
      for (std::int64_t b = 0; b < M; ++b) row[b] = weight(init, distance(grid, i, b), row_max, global_max);
    }
    if (!init.official) {
      normalize_rows(matrix);
    } else if (init.transform != MixTransform::kGaussian) {
      normalize_columns(matrix);
    }
  }
  store_every_head(matrix, size.heads, mix);
}

void init_causal_mix(CausalInit init, View mix, double exp_sigma) {
  const MixSize size = check_mix_output(mix, "init_causal_mix", "mix");
  if (!(exp_sigma > 0.0) || !std::isfinite(exp_sigma)) {
    fail("init_causal_mix: exp_sigma is ", exp_sigma, ", expected a finite number above 0");
  }
  MixMatrix matrix(1, size.rows);
  for (std::int64_t i = 0; i < size.rows; ++i) {
    double* row = matrix.row(0, i);
    double sum = 0.0;
    for (std::int64_t b = i; b >= 0; --b) {
      switch (init) {
        case CausalInit::kPrefix: row[b] = 1.0; break;
        case CausalInit::kLinear: row[b] = static_cast<double>(b + 1); break;
        case CausalInit::kExp: row[b] = std::exp(-static_cast<double>(i - b) / exp_sigma); break;
      }
      sum += row[b];
    }
    for (std::int64_t b = 0; b <= i; ++b) row[b] /= sum;
  }
  store_every_head(matrix, size.heads, mix);
}

}  // namespace mhla
