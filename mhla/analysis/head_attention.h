// The attention of one head on one sample, as factors, and what is said about its matrix A [N, N] without writing A
// down:
//   softmax   A[t,s] = exp(scale q_t . k_s) / its row sum
//   others    A[t,s] = mix[b(t), b(s)] q_t . k_s / den_t          q and k are features
// Entropy goes row by row, O(N) memory. Singular values of the second kind come from a matrix of side
// sum_b min(C_b, D): with Q_b / den = U_b R_b and K_b = V_b T_b, those of A are those of [mix[i,b] R_i T_b^T]. Softmax
// has no such form and is written down up to `largest` tokens; above, its stable rank alone is computed, by power
// iteration over rows that are made when they are needed.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "mhla/analysis/attention_stats.h"
#include "mhla/analysis/matrix.h"

namespace mhla {

struct HeadAttention {
  bool softmax = false;
  double scale = 1.0;                  // of softmax
  Matrix q, k;                         // [N, D]
  std::vector<std::int64_t> block_of;  // [N], in [0, M)
  Matrix mix;                          // [M, M]; empty: one block of weight 1
  std::vector<double> den;             // [N]; empty for softmax
};

// Throws mhla::Error naming the field whose size or value is wrong.
void check(const HeadAttention& head);

// Row t of A into weights [N].
void attention_row(const HeadAttention& head, std::int64_t t, double* weights);
Matrix attention_matrix(const HeadAttention& head);

// What Table 1 says a rank cannot pass: N for softmax, D for one block, min(N, D rank(mix), sum_b min(C_b, D)) with
// blocks. `D`: columns of q.
std::int64_t rank_bound(const HeadAttention& head);

enum class SpectrumMethod : std::uint8_t { kDense, kBlocks, kNone };
const char* name_of(SpectrumMethod method);  // "dense", "blocks", "rows": how the stable rank was found

struct HeadSummary {
  SpectrumMethod method = SpectrumMethod::kNone;
  std::optional<std::int64_t> rank;      // singular values above N eps of the largest
  std::optional<std::int64_t> rank_1pc;  // above 1 % of the largest
  std::optional<double> effective_rank;
  double stable_rank = 0.0;  // sum sigma^2 / sigma_max^2
  RowEntropy entropy;
};

// `largest`: side of a matrix whose singular values are computed; 1024 takes about a second.
HeadSummary summarize(const HeadAttention& head, std::int64_t largest = 1024);

// Singular values above rounding and zeros for the rest, descending, min(N, side) of them; `method` says which matrix
// they came from. Empty where both are larger than `largest`.
std::vector<double> attention_spectrum(const HeadAttention& head, std::int64_t largest, SpectrumMethod& method);
// Frobenius norm and largest singular value by rows, O(N) memory.
double stable_rank_by_rows(const HeadAttention& head);

}  // namespace mhla
