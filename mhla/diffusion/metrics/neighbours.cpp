#include "mhla/diffusion/metrics/neighbours.h"

#include <algorithm>
#include <limits>

#include "mhla/core/error.h"
#include "mhla/diffusion/metrics/blas.h"
#include "mhla/diffusion/metrics/features.h"

namespace mhla {
namespace {

constexpr const char* kNeighbours = "neighbours";
constexpr std::int64_t kRowsAtOnce = 1024;  // rows of both sides at a time: 8 MiB of distances

struct Block {
  std::vector<double> rows, squares;  // [count, d], [count]
  std::int64_t first = 0, count = 0;
};

void read_block(const ConstView& features, std::int64_t first, const char* name, Block& block) {
  const std::int64_t d = features.shape[1];
  block.first = first;
  block.count = std::min(kRowsAtOnce, features.shape[0] - first);
  block.rows.resize(static_cast<std::size_t>(block.count * d));
  widen_rows(features, first, block.count, block.rows.data(), kNeighbours, name);
  block.squares.assign(static_cast<std::size_t>(block.count), 0.0);
  for (std::int64_t i = 0; i < block.count; ++i)
    for (std::int64_t j = 0; j < d; ++j)
      block.squares[static_cast<std::size_t>(i)] +=
          block.rows[static_cast<std::size_t>(i * d + j)] * block.rows[static_cast<std::size_t>(i * d + j)];
}

// |a|^2 + |b|^2 - 2 a.b loses everything where a is nearly b: there the difference itself is squared, and copies are at
// distance 0 exactly.
double squared_distance(const double* a, const double* b, double squares, double product, std::int64_t d) {
  const double fast = squares - 2.0 * product;
  if (fast > 1e-9 * squares) return fast;
  double sum = 0.0;
  for (std::int64_t j = 0; j < d; ++j) sum += (a[j] - b[j]) * (a[j] - b[j]);
  return sum;
}

// Calls visit(i, j, squared distance) for all pairs, the rows of `b` in order for every row of `a`.
template <class Visit>
void each_pair(const ConstView& a, const char* a_name, const ConstView& b, const char* b_name, const Visit& visit) {
  const std::int64_t d = a.shape[1];
  Block rows, others;
  std::vector<double> products;
  for (std::int64_t i = 0; i < a.shape[0]; i += kRowsAtOnce) {
    read_block(a, i, a_name, rows);
    for (std::int64_t j = 0; j < b.shape[0]; j += kRowsAtOnce) {
      read_block(b, j, b_name, others);
      products.resize(static_cast<std::size_t>(rows.count * others.count));
      row_products(rows.rows.data(), static_cast<int>(rows.count), others.rows.data(), static_cast<int>(others.count),
                   static_cast<int>(d), products.data());
      for (std::int64_t r = 0; r < rows.count; ++r)
        for (std::int64_t c = 0; c < others.count; ++c)
          visit(
              i + r, j + c,
              squared_distance(rows.rows.data() + r * d, others.rows.data() + c * d,
                               rows.squares[static_cast<std::size_t>(r)] + others.squares[static_cast<std::size_t>(c)],
                               products[static_cast<std::size_t>(r * others.count + c)], d));
    }
  }
}

std::vector<double> radii_of(const ConstView& features, const char* name, std::int64_t k) {
  // The k smallest so far of every row, ascending.
  std::vector<double> best(static_cast<std::size_t>(features.shape[0] * k), std::numeric_limits<double>::infinity());
  each_pair(features, name, features, name, [&](std::int64_t i, std::int64_t j, double squared) {
    if (i == j) return;
    double* mine = best.data() + i * k;
    if (squared >= mine[k - 1]) return;
    std::int64_t at = k - 1;
    for (; at > 0 && mine[at - 1] > squared; --at) mine[at] = mine[at - 1];
    mine[at] = squared;
  });
  std::vector<double> radii;
  for (std::int64_t i = 0; i < features.shape[0]; ++i) radii.push_back(best[static_cast<std::size_t>(i * k + k - 1)]);
  return radii;
}

double share(const std::vector<char>& hits) {
  return static_cast<double>(std::count(hits.begin(), hits.end(), 1)) / static_cast<double>(hits.size());
}

}  // namespace

std::vector<double> squared_radii(const ConstView& features, std::int64_t k) {
  check_features(features, kNeighbours, "features");
  if (k < 1) fail(kNeighbours, ": k is ", k, ", expected at least 1");
  check_enough(features.shape[0], k + 1, kNeighbours, "features");
  return radii_of(features, "features", k);
}

NeighbourMetrics neighbour_metrics(const ConstView& samples, const ConstView& reference, std::int64_t k) {
  if (k < 1) fail(kNeighbours, ": k is ", k, ", expected at least 1");
  check_sets(samples, reference, k + 1, kNeighbours);
  const std::vector<double> own = radii_of(samples, "samples", k), theirs = radii_of(reference, "reference", k);
  std::vector<char> precise(own.size(), 0), recalled(theirs.size(), 0), covered(theirs.size(), 0);
  std::int64_t inside = 0;
  each_pair(samples, "samples", reference, "reference", [&](std::int64_t i, std::int64_t j, double squared) {
    const auto sample = static_cast<std::size_t>(i), real = static_cast<std::size_t>(j);
    if (squared <= theirs[real]) precise[sample] = 1;
    if (squared <= own[sample]) recalled[real] = 1;
    if (squared < theirs[real]) ++inside, covered[real] = 1;
  });
  return {.precision = share(precise),
          .recall = share(recalled),
          .density = static_cast<double>(inside) / (static_cast<double>(k) * static_cast<double>(own.size())),
          .coverage = share(covered)};
}

std::vector<Nearest> nearest_rows(const ConstView& samples, const ConstView& reference) {
  check_sets(samples, reference, 1, kNeighbours);
  std::vector<Nearest> nearest(static_cast<std::size_t>(samples.shape[0]),
                               {0, std::numeric_limits<double>::infinity()});
  each_pair(samples, "samples", reference, "reference", [&](std::int64_t i, std::int64_t j, double squared) {
    Nearest& best = nearest[static_cast<std::size_t>(i)];
    if (squared < best.squared_distance) best = {j, squared};
  });
  return nearest;
}

}  // namespace mhla
