#include "mhla/analysis/attention_stats.h"

#include <cmath>

#include "mhla/analysis/spectrum.h"

namespace mhla {

RowEntropy row_entropy(const Matrix& attention) {
  check_finite(attention, "row_entropy", "attention");
  RowEntropy result;
  double total = 0.0;
  for (std::int64_t t = 0; t < attention.rows; ++t) {
    const double* row = attention.row(t);
    double sum = 0.0;
    for (std::int64_t s = 0; s < attention.columns; ++s) sum += std::abs(row[s]);
    if (sum == 0.0) continue;
    for (std::int64_t s = 0; s < attention.columns; ++s) {
      const double p = std::abs(row[s]) / sum;
      if (p > 0.0) total -= p * std::log(p);
    }
    ++result.rows;
  }
  if (result.rows == 0) return result;
  result.mean_nats = total / static_cast<double>(result.rows);
  if (attention.columns > 1) result.normalized = result.mean_nats / std::log(static_cast<double>(attention.columns));
  return result;
}

AttentionSummary summarize_attention(const Matrix& attention, std::optional<double> tolerance) {
  AttentionSummary summary;
  summary.tolerance = tolerance.value_or(rank_tolerance(attention.rows, attention.columns));
  const std::vector<double> singular = singular_values(attention);
  summary.rank = numerical_rank(singular, summary.tolerance);
  summary.effective_rank = effective_rank(singular);
  summary.entropy = row_entropy(attention);
  return summary;
}

}  // namespace mhla
