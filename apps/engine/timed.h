// How the rows of `mhla bench model` are measured.
#pragma once

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>
#include <vector>

#include "mhla/train/torch.h"

namespace mhla::apps {

// The most memory this process has held since forget_peak(), in MiB; 0 where the system does not say.
inline void forget_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }
inline double peak_mib() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    double kib = 0;
    if (word == "VmHWM:" && status >> kib) return kib / 1024.0;
  }
  return 0;
}

struct Timed {
  double ms = 0, spread = 0;
  std::int64_t runs = 0;
};

// The median of so many milliseconds, and the spread of the middle half.
inline Timed timed_of(std::vector<double> ms) {
  std::sort(ms.begin(), ms.end());
  const auto at = [&](double part) { return ms[static_cast<std::size_t>(part * static_cast<double>(ms.size() - 1))]; };
  return {at(0.5), (at(0.75) - at(0.25)) / at(0.5), static_cast<std::int64_t>(ms.size())};
}

template <class Work>
double milliseconds_of(const torch::Device& device, const Work& work) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  work();
  if (device.is_cuda()) torch::cuda::synchronize(device.index());
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

template <class Work>
Timed time_of(const torch::Device& device, double min_seconds, const Work& work) {
  const auto once = [&] { return milliseconds_of(device, work); };
  once(), once();
  std::vector<double> ms;
  double total = 0;
  while (total < 1e3 * min_seconds || ms.size() < 5) ms.push_back(once()), total += ms.back();
  return timed_of(ms);
}

}  // namespace mhla::apps
