// What is in a set: sizes, classes, mean and standard deviation per channel, damaged images. Sums are of integers, so
// the result has the same bits for every number of threads.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "mhla/core/threads.h"
#include "mhla/data/image_set.h"

namespace mhla {

struct ImageStats {
  std::int64_t looked_at = 0;           // images, those damaged among them
  std::int64_t pixels = 0;              // of good ones
  std::vector<std::int64_t> per_class;  // of the whole set
  std::vector<double> mean, std;        // of x / 255, per channel
  int min_height = 0, max_height = 0, min_width = 0, max_width = 0;
  std::int64_t damaged = 0;
  std::vector<std::string> damage;  // the first of them, "name: reason"
};

// Decodes `count` items spread evenly over the set, or all with 0. `progress` is called now and then, from any thread,
// one call at a time, with the images done so far.
ImageStats image_stats(const ImageSet& set, std::int64_t count, Executor& executor,
                       const std::function<void(std::int64_t)>& progress = {}, std::size_t max_named = 20);

}  // namespace mhla
