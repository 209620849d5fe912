// The small parts both reference kernels are made of: gathering a head's tokens as f64,
// and three loops over small dense matrices. Everything is f64; only scatter() rounds, once.
#pragma once

#include <cstdint>
#include <vector>

#include "mhla/kernels/common/problem.h"

namespace mhla::reference {

using Array = std::vector<double>;

inline Array zeros(std::int64_t count) { return Array(static_cast<std::size_t>(count), 0.0); }

// The tokens of one sequence in block order: block i holds positions [begin[i], begin[i + 1]).
struct Positions {
  std::vector<std::int64_t> token;  // [n]      token of each position, counted from the start of the sequence
  std::vector<std::int64_t> begin;  // [M + 1]
  Positions(const Layout& layout, std::int64_t length);
  Positions(const Layout& layout, const Part& part);  // of the local blocks, tokens as tokens_of_blocks() numbers them
  [[nodiscard]] std::int64_t tokens() const { return static_cast<std::int64_t>(token.size()); }
  [[nodiscard]] std::int64_t blocks() const { return static_cast<std::int64_t>(begin.size()) - 1; }
};

// Head `head` of `x` [B, N, heads, size] over one sequence, in block order: [n, size].
Array gather(const ConstView& x, const Sequence& sequence, const Positions& positions, std::int64_t head);
Array map_features(FeatureMap map, const Array& x);                                // phi(x)
void through_features(FeatureMap map, const Array& x, Array& gradient);            // gradient *= phi'(x)
void scatter(const View& x, const Sequence& sequence, const Positions& positions,  // rounds once to x.dtype
             std::int64_t head, const Array& rows);

// Gradients of one head's features to the tensors they came from, through the feature map, where wanted: dx and dx_den
// apart when the problem has q_den and k_den, else their sum to dx.
void scatter_features(const Problem& p, const View& maybe_dx, const View& maybe_dx_den, const Sequence& sequence,
                      const Positions& positions, std::int64_t head, const Array& x, const Array& x_den, Array& dx,
                      Array& dx_den);

double dot(const double* a, const double* b, std::int64_t size);
void add_scaled(double* to, const double* from, double factor, std::int64_t size);            // to += factor from
void add_outer(double* S, const double* a, std::int64_t D, const double* b, std::int64_t E);  // S += a b^T
void add_vector_matrix(double* out, const double* a, std::int64_t D, const double* S, std::int64_t E);  // out += a^T S
void add_matrix_vector(double* out, const double* S, std::int64_t D, const double* b, std::int64_t E);  // out += S b

// Partial gradients of mix, one [rows, rows] array per (sequence, query head), summed into p.dmix over sequences,
// then over the heads that share a matrix, always in this order. Entries that no sequence uses become exactly 0.
class MixGradient {
 public:
  explicit MixGradient(const Problem& p);
  Array& part(std::int64_t sequence, std::int64_t head);
  [[nodiscard]] std::int64_t rows(std::int64_t sequence) const { return rows_[static_cast<std::size_t>(sequence)]; }
  void store() const;

 private:
  const Problem& p_;
  std::vector<std::int64_t> rows_;  // min(L, M_s)
  std::vector<Array> parts_;        // [sequence * H + head]
};

double mix_at(const Problem& p, std::int64_t head, std::int64_t row, std::int64_t column);

// Calls task(sequence index, sequence, positions, kv head) for every sequence and kv head, in parallel.
template <class Task>
void for_each_head(const Problem& p, Executor& executor, const Task& task) {
  executor.run(static_cast<std::int64_t>(p.sequences.size()) * p.Hkv, [&](std::int64_t index, int) {
    const std::int64_t s = index / p.Hkv;
    const Sequence& sequence = p.sequences[static_cast<std::size_t>(s)];
    task(s, sequence, Positions(p.layout, sequence.length), index % p.Hkv);
  });
}

// "memory is on cuda:0" for a problem that is not in host memory, else empty: the references take everything else.
std::string fit(const Problem& p);

}  // namespace mhla::reference
