// A mixing matrix carried to another block grid: README.md, eq. 7 to 10.
//   new[i,j] = sum_{a,b} W[i,a] W[j,b] mix[a,b],  W linear interpolation between block centres (i + 0.5) / blocks,
// then row i is brought to the sum that the same W gives for the row sums of the source.
#include <algorithm>
#include <cmath>
#include <vector>

#include "mhla/core/error.h"
#include "mhla/kernels/mixing/mix_matrix.h"
#include "mhla/kernels/mixing/mixing.h"

namespace mhla {
namespace {

constexpr const char* kResample = "resample_mix";

// Below this share of sum |row| the row's own sum is what cancellation left: dividing by it would amplify noise.
constexpr double kCancelled = 1e-3;

struct Tap {
  std::int64_t block;
  double weight;
};
using Taps = std::vector<Tap>;  // at most 8, weights positive, sum 1

// Where the centre of block i of `to` falls among the centres of `from` blocks; beyond the outer centres, the edge.
Taps axis_taps(std::int64_t i, std::int64_t to, std::int64_t from) {
  const double centre = (static_cast<double>(i) + 0.5) * static_cast<double>(from) / static_cast<double>(to) - 0.5;
  const double x = std::clamp(centre, 0.0, static_cast<double>(from - 1));
  const auto low = static_cast<std::int64_t>(x);
  const double fraction = x - static_cast<double>(low);
  if (fraction == 0.0) return {{low, 1.0}};
  return {{low, 1.0 - fraction}, {low + 1, fraction}};
}

std::vector<Taps> grid_taps(const BlockGrid& from, const BlockGrid& to) {
  const auto& n = from.blocks;
  const auto& m = to.blocks;
  std::vector<Taps> taps;
  taps.reserve(static_cast<std::size_t>(to.count()));
  for (std::int64_t f = 0; f < m[0]; ++f) {
    const Taps frames = axis_taps(f, m[0], n[0]);
    for (std::int64_t r = 0; r < m[1]; ++r) {
      const Taps rows = axis_taps(r, m[1], n[1]);
      for (std::int64_t c = 0; c < m[2]; ++c) {
        Taps product;
        const Taps columns = axis_taps(c, m[2], n[2]);
        for (const Tap& x : frames) {
          for (const Tap& y : rows) {
            for (const Tap& z : columns) {
              product.push_back({(x.block * n[1] + y.block) * n[2] + z.block, x.weight * y.weight * z.weight});
            }
          }
        }
        taps.push_back(std::move(product));
      }
    }
  }
  return taps;
}

// One entry. Causal: only source entries on and below the diagonal, their weights renormalised. For j <= i the
// upper tap of i and the lower tap of j always meet there, so the weights never sum to 0.
double interpolate(const MixMatrix& mix, std::int64_t head, const Taps& query, const Taps& key, bool causal) {
  double value = 0.0;
  double seen = 0.0;
  for (const Tap& a : query) {
    const double* row = mix.row(head, a.block);
    for (const Tap& b : key) {
      if (causal && b.block > a.block) continue;
      const double weight = a.weight * b.weight;
      value += weight * row[b.block];
      seen += weight;
    }
  }
  return causal ? value / seen : value;
}

// Brings `row` to sum `target`. One factor does it, unless the row's own sum is lost in cancellation, or is of the
// other sign (the factor would turn the pattern over): then the area factor `from / to` that a smooth row needs,
// and the rest spread in proportion to |entry|. A row of zeros has no pattern: the sum is spread evenly.
void scale_row(double* row, std::int64_t count, double target, double area) {
  double sum = 0.0;
  double magnitude = 0.0;
  for (std::int64_t j = 0; j < count; ++j) {
    sum += row[j];
    magnitude += std::abs(row[j]);
  }
  if (magnitude == 0.0) {
    std::fill(row, row + count, target / static_cast<double>(count));
  } else if (std::abs(sum) > kCancelled * magnitude && target / sum > 0.0) {
    const double factor = target / sum;
    for (std::int64_t j = 0; j < count; ++j) row[j] *= factor;
  } else {
    const double missing = (target - area * sum) / magnitude;
    for (std::int64_t j = 0; j < count; ++j) row[j] = area * row[j] + missing * std::abs(row[j]);
  }
}

void check_sizes(const MixSize& source, const BlockGrid& from, const MixSize& result, const BlockGrid& to,
                 bool causal) {
  if (source.rows != from.count()) {
    fail(kResample, ": mix has ", source.rows, " rows, expected ", from.count(), " (blocks ", describe(from), ")");
  }
  if (result.rows != to.count()) {
    fail(kResample, ": out has ", result.rows, " rows, expected ", to.count(), " (blocks ", describe(to), ")");
  }
  if (source.heads != result.heads) {
    fail(kResample, ": out has ", result.heads, " heads, expected ", source.heads, " as mix has");
  }
  for (const BlockGrid& grid : {from, to}) {
    if (causal && (grid.blocks[0] != 1 || grid.blocks[1] != 1)) {
      fail(kResample, ": causal with blocks ", describe(grid), ", expected a 1D grid");
    }
  }
}

}  // namespace

void resample_mix(ConstView mix, const BlockGrid& from, View out, const BlockGrid& to, bool causal) {
  const MixSize target_size = check_mix_output(out, kResample, "out");
  const MixMatrix source = load_mix(mix, kResample, "mix");
  check_sizes({source.heads, source.rows}, from, target_size, to, causal);
  check_finite(source, causal, kResample, "mix");
  if (from == to) {
    store_mix(source, out);
    return;
  }

  const std::vector<Taps> taps = grid_taps(from, to);
  MixMatrix result(source.heads, target_size.rows);
  for (std::int64_t h = 0; h < source.heads; ++h) {
    std::vector<double> sums(static_cast<std::size_t>(source.rows), 0.0);
    for (std::int64_t a = 0; a < source.rows; ++a) {
      const double* row = source.row(h, a);
      for (std::int64_t b = 0; b < (causal ? a + 1 : source.rows); ++b) sums[a] += row[b];
    }
    for (std::int64_t i = 0; i < result.rows; ++i) {
      double* row = result.row(h, i);
      const std::int64_t end = causal ? i + 1 : result.rows;
      for (std::int64_t j = 0; j < end; ++j) row[j] = interpolate(source, h, taps[i], taps[j], causal);
      double target = 0.0;
      for (const Tap& a : taps[i]) target += a.weight * sums[a.block];
      scale_row(row, end, target, static_cast<double>(source.rows) / static_cast<double>(result.rows));
    }
  }
  store_mix(result, out);
}

}  // namespace mhla
