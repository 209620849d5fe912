#include "apps/bench/timing.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

namespace mhla::apps {

double Samples::quantile(double part) const {
  if (seconds_.empty()) return 0.0;
  std::vector<double> sorted = seconds_;
  std::sort(sorted.begin(), sorted.end());
  const double place = part * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(std::floor(place));
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  const double weight = place - static_cast<double>(below);
  return sorted[below] * (1.0 - weight) + sorted[above] * weight;
}

double Samples::spread() const {
  const double middle = quantile(0.5);
  return middle > 0.0 ? (quantile(0.75) - quantile(0.25)) / middle : 0.0;
}

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void take_samples(Samples& samples, const TimingOptions& options, const std::function<void(int)>& work) {
  const double start = now_seconds();
  for (int i = 0; i < options.max_repeats; ++i) {
    const double before = now_seconds();
    work(i);
    const double after = now_seconds();
    samples.add(after - before);
    if (i + 1 >= options.min_repeats && after - start >= options.min_seconds) return;
  }
}

void let_workers_sleep() { std::this_thread::sleep_for(std::chrono::milliseconds(60)); }

}  // namespace mhla::apps
