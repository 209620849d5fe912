// What the operator costs by length, against the same in LibTorch, linear and softmax attention: a part of `mhla demo`.
#pragma once

#include <string>
#include <vector>

#include "apps/bench/bench.h"
#include "mhla/io/report.h"

namespace mhla::apps {

struct SpeedRow {
  std::int64_t N = 0, M = 0;
  double ours_ms = 0.0;
  double plain_ms = 0.0, linear_ms = 0.0, softmax_ms = 0.0;  // 0: no time
};

struct SpeedByLength {
  std::vector<SpeedRow> rows;
  std::string reason;  // why a time is missing, or empty
};

// One forward at every length: verified, timed, printed. A rival whose single call would take longer than `rival_limit`
// seconds is left out.
SpeedByLength time_by_length(int threads, double rival_limit, const Output& out);
void add_speed(HtmlReport& page, const SpeedByLength& speed);

}  // namespace mhla::apps
