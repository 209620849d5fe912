#include "mhla/train/shared_eval.h"

#include "mhla/core/error.h"
#include "mhla/core/run_failed.h"
#include "mhla/train/distributed/team.h"

namespace mhla::train {
namespace {

// The signal that cut a part short, or 0, comes before the numbers.
std::vector<std::vector<double>> gather_parts(const Place& place, int signal, const std::vector<double>& mine) {
  std::vector<double> message{static_cast<double>(signal)};
  message.insert(message.end(), mine.begin(), mine.end());
  std::vector<std::vector<double>> all = place.maybe_team->gather(message, "an evaluation");
  for (std::vector<double>& part : all) {
    if (part.front() != 0.0) throw StoppedTogether(static_cast<int>(part.front()));
    part.erase(part.begin());
  }
  return all;
}

}  // namespace

std::vector<std::vector<double>> gather_evaluation(const Place& place, const std::vector<double>& mine) {
  if (place.maybe_team == nullptr) return {mine};
  return gather_parts(place, 0, mine);
}

std::vector<double> sum_evaluation(const Place& place, const std::vector<double>& mine) {
  std::vector<double> total(mine.size(), 0.0);
  for (const std::vector<double>& part : gather_evaluation(place, mine)) {
    if (part.size() != total.size())
      throw RunFailed(str("ranks have ", part.size(), " and ", total.size(), " numbers of an evaluation"));
    for (std::size_t i = 0; i < total.size(); ++i) total[i] += part[i];
  }
  return total;
}

void leave_evaluation(const Place& place, int signal) {
  if (place.maybe_team != nullptr) gather_parts(place, signal, {});
}

}  // namespace mhla::train
