// Repeated timing of one call: warm-up, then samples until enough time has passed.
#pragma once

#include <functional>
#include <vector>

namespace mhla::apps {

struct TimingOptions {
  double min_seconds = 0.2;
  int min_repeats = 5;
  int max_repeats = 100000;
};

// Seconds per call, in the order they were taken.
class Samples {
 public:
  void add(double seconds) { seconds_.push_back(seconds); }
  [[nodiscard]] int count() const { return static_cast<int>(seconds_.size()); }
  [[nodiscard]] double median_ms() const { return quantile(0.5) * 1e3; }
  [[nodiscard]] double best_ms() const { return quantile(0.0) * 1e3; }
  [[nodiscard]] double spread() const;               // middle half of the samples over the median
  [[nodiscard]] double quantile(double part) const;  // seconds; 0 without samples

 private:
  std::vector<double> seconds_;
};

double now_seconds();

// Calls `work(i)` with i = 0, 1, 2, ... and keeps one sample per call.
void take_samples(Samples& samples, const TimingOptions& options, const std::function<void(int)>& work);

// Long enough for the spinning workers of any pool to fall asleep, so that one library does not run on a core
// that the idle threads of another keep busy.
void let_workers_sleep();

}  // namespace mhla::apps
