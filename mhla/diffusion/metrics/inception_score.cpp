#include "mhla/diffusion/metrics/inception_score.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "mhla/core/error.h"
#include "mhla/diffusion/metrics/features.h"
#include "mhla/diffusion/metrics/numpy_shuffle.h"

namespace mhla {
namespace {

constexpr const char* kInceptionScore = "inception_score";

// In place: log softmax.
void to_log_probabilities(std::vector<double>& row) {
  const double largest = *std::max_element(row.begin(), row.end());
  double sum = 0.0;
  for (const double value : row) sum += std::exp(value - largest);
  const double shift = largest + std::log(sum);
  for (double& value : row) value -= shift;
}

// mean over x of sum p log p, minus sum q log q with q = mean of p: the mean of KL(p | q), in one pass.
double part_score(const ConstView& logits, const std::vector<std::int64_t>& order, std::int64_t begin,
                  std::int64_t end) {
  const auto classes = static_cast<std::size_t>(logits.shape[1]);
  std::vector<double> row(classes), q(classes, 0.0);
  double own = 0.0;
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t image = order.empty() ? i : order[static_cast<std::size_t>(i)];
    widen_rows(logits, image, 1, row.data(), kInceptionScore, "logits");
    to_log_probabilities(row);
    for (std::size_t c = 0; c < classes; ++c) {
      const double p = std::exp(row[c]);
      q[c] += p;
      own += p * row[c];
    }
  }
  const double count = static_cast<double>(end - begin);
  double mixed = 0.0;
  for (const double sum : q) {
    if (sum > 0.0) mixed += sum / count * std::log(sum / count);
  }
  return std::exp(own / count - mixed);
}

}  // namespace

InceptionScore inception_score(const ConstView& logits, const ScoreParts& parts) {
  check_features(logits, kInceptionScore, "logits");
  const std::int64_t N = logits.shape[0];
  if (parts.part < 0 || (parts.part == 0 && parts.splits < 1))
    fail(kInceptionScore, ": parts of ", parts.part, " images or ", parts.splits,
         " parts, expected one of them to be positive");
  check_enough(N, parts.part > 0 ? 1 : parts.splits, kInceptionScore, "logits");
  std::vector<std::int64_t> order;
  if (parts.shuffled) order = NumpyShuffle(parts.seed).permutation(N);
  std::vector<double> scores;
  if (parts.part > 0) {
    for (std::int64_t begin = 0; begin < N; begin += parts.part)
      scores.push_back(part_score(logits, order, begin, std::min(N, begin + parts.part)));
  } else {
    for (std::int64_t i = 0; i < parts.splits; ++i)
      scores.push_back(part_score(logits, order, i * N / parts.splits, (i + 1) * N / parts.splits));
  }
  InceptionScore score{.parts = static_cast<std::int64_t>(scores.size())};
  for (const double value : scores) score.mean += value / static_cast<double>(scores.size());
  for (const double value : scores)
    score.deviation += (value - score.mean) * (value - score.mean) / static_cast<double>(scores.size());
  score.deviation = std::sqrt(score.deviation);
  return score;
}

}  // namespace mhla
