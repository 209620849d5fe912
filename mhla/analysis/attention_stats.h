// How focused and how rich an attention matrix is: the entropy of its rows and its rank.
#pragma once

#include <cstdint>
#include <optional>

#include "mhla/analysis/matrix.h"

namespace mhla {

// Shannon entropy of a row's weights p_s = |A[t,s]| / sum_s |A[t,s]|: 0 when one token takes all, log N when all
// share alike. Magnitudes, because a negative mix or rotated features may give negative weights.
struct RowEntropy {
  double mean_nats = 0.0;   // over the rows that have weight
  double normalized = 0.0;  // mean_nats / log(columns); 0 for a single column
  std::int64_t rows = 0;    // rows that have weight; others (a query whose features are all 0) are left out
};

RowEntropy row_entropy(const Matrix& attention);  // refuses NaN and infinity

struct AttentionSummary {
  std::int64_t rank = 0;  // singular values above tolerance * the largest
  double effective_rank = 0.0;
  double tolerance = 0.0;  // the relative tolerance used
  RowEntropy entropy;
};

// The tolerance defaults to rank_tolerance() for f64.
AttentionSummary summarize_attention(const Matrix& attention, std::optional<double> rank_tolerance = {});

}  // namespace mhla
