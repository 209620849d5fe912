#include "mhla/kernels/common/reference.h"

#include <algorithm>
#include <cmath>

#include "mhla/core/error.h"

namespace mhla::reference {
namespace {

template <class V>
std::int64_t row_offset(const V& x, const Sequence& sequence, std::int64_t token, std::int64_t head) {
  return sequence.batch * x.stride[0] + (sequence.start + token) * x.stride[1] + head * x.stride[2];
}

}  // namespace

Positions::Positions(const Layout& layout, std::int64_t length) {
  const BlockMap map(layout, length);
  token.reserve(static_cast<std::size_t>(length));
  begin.push_back(0);
  for (std::int64_t block = 0; block < map.blocks(); ++block) {
    for (std::int64_t run = 0; run < map.runs(block); ++run) {
      for (std::int64_t w = 0; w < map.run_length(block); ++w) token.push_back(map.run_start(block, run) + w);
    }
    begin.push_back(tokens());
  }
}

Positions::Positions(const Layout& layout, const Part& part) {
  const BlockMap map(layout, part.tokens);
  const std::vector<std::int64_t> held = tokens_of_blocks(map, part.first, part.blocks);
  const Positions whole(layout, part.tokens);
  begin.push_back(0);
  for (std::int64_t block = part.first; block < part.first + part.blocks; ++block) {
    for (std::int64_t t = whole.begin[block]; t < whole.begin[block + 1]; ++t) {
      token.push_back(std::lower_bound(held.begin(), held.end(), whole.token[t]) - held.begin());
    }
    begin.push_back(tokens());
  }
}

Array gather(const ConstView& x, const Sequence& sequence, const Positions& positions, std::int64_t head) {
  const std::int64_t size = x.shape[3];
  Array rows(static_cast<std::size_t>(positions.tokens() * size));
  auto next = rows.begin();
  for (const std::int64_t token : positions.token) {
    const std::int64_t offset = row_offset(x, sequence, token, head);
    for (std::int64_t j = 0; j < size; ++j) *next++ = load_f64(x.data, x.dtype, offset + j);
  }
  return rows;
}

Array map_features(FeatureMap map, const Array& x) {
  Array features(x.size());
  std::transform(x.begin(), x.end(), features.begin(), [map](double value) { return phi(map, value); });
  return features;
}

void through_features(FeatureMap map, const Array& x, Array& gradient) {
  for (std::size_t index = 0; index < x.size(); ++index) {
    const double slope = phi_slope(map, x[index]);
    // A zero slope blocks the gradient altogether, infinite or not.
    gradient[index] = slope == 0 ? 0 : gradient[index] * slope;
  }
}

void scatter(const View& x, const Sequence& sequence, const Positions& positions, std::int64_t head,
             const Array& rows) {
  const std::int64_t size = x.shape[3];
  auto next = rows.begin();
  for (const std::int64_t token : positions.token) {
    const std::int64_t offset = row_offset(x, sequence, token, head);
    for (std::int64_t j = 0; j < size; ++j) store_f64(x.data, x.dtype, offset + j, *next++);
  }
}

void scatter_features(const Problem& p, const View& maybe_dx, const View& maybe_dx_den, const Sequence& sequence,
                      const Positions& positions, std::int64_t head, const Array& x, const Array& x_den, Array& dx,
                      Array& dx_den) {
  if (!p.has_den()) add_scaled(dx.data(), dx_den.data(), 1.0, static_cast<std::int64_t>(dx.size()));
  if (maybe_dx.given()) {
    through_features(p.feature_map, x, dx);
    scatter(maybe_dx, sequence, positions, head, dx);
  }
  if (maybe_dx_den.given()) {
    through_features(p.feature_map, x_den, dx_den);
    scatter(maybe_dx_den, sequence, positions, head, dx_den);
  }
}

double dot(const double* a, const double* b, std::int64_t size) {
  double sum = 0;
  for (std::int64_t j = 0; j < size; ++j) sum += a[j] * b[j];
  return sum;
}

void add_scaled(double* to, const double* from, double factor, std::int64_t size) {
  for (std::int64_t j = 0; j < size; ++j) to[j] += factor * from[j];
}

void add_outer(double* S, const double* a, std::int64_t D, const double* b, std::int64_t E) {
  for (std::int64_t d = 0; d < D; ++d) add_scaled(S + d * E, b, a[d], E);
}

void add_vector_matrix(double* out, const double* a, std::int64_t D, const double* S, std::int64_t E) {
  for (std::int64_t d = 0; d < D; ++d) add_scaled(out, S + d * E, a[d], E);
}

void add_matrix_vector(double* out, const double* S, std::int64_t D, const double* b, std::int64_t E) {
  for (std::int64_t d = 0; d < D; ++d) out[d] += dot(S + d * E, b, E);
}

MixGradient::MixGradient(const Problem& p) : p_(p) {
  for (const Sequence& sequence : p.sequences) {
    rows_.push_back(p.part.given() ? p.M : std::min(p.L, BlockMap(p.layout, sequence.length).blocks()));
  }
  parts_.resize(p.sequences.size() * static_cast<std::size_t>(p.H));
  for (std::size_t index = 0; index < parts_.size() && p.dmix.given(); ++index) {
    const std::int64_t rows = rows_[index / static_cast<std::size_t>(p.H)];
    parts_[index].assign(static_cast<std::size_t>(rows * rows), 0.0);
  }
}

Array& MixGradient::part(std::int64_t sequence, std::int64_t head) {
  return parts_[static_cast<std::size_t>(sequence * p_.H + head)];
}

void MixGradient::store() const {
  if (!p_.dmix.given()) return;
  const View& dmix = p_.dmix;
  for (std::int64_t m = 0; m < p_.Hm; ++m) {
    Array total(static_cast<std::size_t>(p_.L * p_.L), 0.0);
    for (std::int64_t head = 0; head < p_.H; ++head) {
      if (p_.Hm > 1 && head != m) continue;
      for (std::size_t sequence = 0; sequence < rows_.size(); ++sequence) {
        const Array& part = parts_[sequence * static_cast<std::size_t>(p_.H) + static_cast<std::size_t>(head)];
        const std::int64_t rows = rows_[sequence];
        for (std::int64_t i = 0; i < rows; ++i) add_scaled(&total[i * p_.L], &part[i * rows], 1.0, rows);
      }
    }
    for (std::int64_t i = 0; i < p_.L; ++i) {
      for (std::int64_t b = 0; b < p_.L; ++b) {
        store_f64(dmix.data, dmix.dtype, m * dmix.stride[0] + i * dmix.stride[1] + b * dmix.stride[2],
                  total[i * p_.L + b]);
      }
    }
  }
}

double mix_at(const Problem& p, std::int64_t head, std::int64_t row, std::int64_t column) {
  const std::int64_t m = p.Hm == 1 ? 0 : head;
  return load_f64(p.mix.data, p.mix.dtype, m * p.mix.stride[0] + row * p.mix.stride[1] + column * p.mix.stride[2]);
}

std::string fit(const Problem& p) { return p.q.device == kCpu ? "" : str("memory is on cuda:", p.q.device); }

}  // namespace mhla::reference
