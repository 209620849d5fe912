// An evaluation that several processes share: each computes its part, then all have the numbers of all parts.
#pragma once

#include <vector>

#include "mhla/train/options.h"
#include "mhla/train/stop_signal.h"

namespace mhla::train {

// Thrown on every rank where a signal cut the part of one of them short.
struct StoppedTogether : Stopped {
  explicit StoppedTogether(int by) : signal(by) {}
  int signal;
};

// What every rank computed, by rank; alone: `mine`. Each evaluation calls this once.
std::vector<std::vector<double>> gather_evaluation(const Place& place, const std::vector<double>& mine);
// The same, added up in the order of the ranks.
std::vector<double> sum_evaluation(const Place& place, const std::vector<double>& mine);
// Instead of these, by a rank whose part a signal cut short. Throws StoppedTogether; alone it returns.
void leave_evaluation(const Place& place, int signal);

}  // namespace mhla::train
