// The limits of the machine, measured in the same run as what is compared with them: a large matrix product, a copy
// through memory, and a streaming read at a given footprint.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "apps/cli/openblas.h"
#include "mhla/core/threads.h"
#include "mhla/core/workspace.h"

namespace mhla::apps {

// The 2048^3 f32 product of OpenBLAS. sample() runs it once; the best rate so far is kept.
class GemmRuler {
 public:
  static constexpr std::int64_t kSize = 2048;
  explicit GemmRuler(int threads);
  [[nodiscard]] bool found() const { return blas_.found(); }
  [[nodiscard]] const std::string& reason() const { return blas_.reason(); }
  [[nodiscard]] double sample();  // GFLOP/s of this product

 private:
  OpenBlas blas_;
  int threads_;
  AlignedBuffer a_, b_, c_;
};

// Bytes read plus bytes written per second, in GB/s, best of several copies of four times the last-level cache.
double copy_bandwidth(Executor& executor);

// Bytes read per second in GB/s when `buffers` of `bytes` each are read in turn, best of several rounds: the
// bandwidth of whatever level of memory holds that much. Every worker reads its share of each buffer, without waiting
// for the others.
double read_bandwidth(Executor& executor, std::int64_t bytes, std::int64_t buffers);

// Peak of the memory this process holds while `work` runs, less what it held before. Negative where the system does
// not tell.
std::int64_t peak_extra_bytes(const std::function<void()>& work);

}  // namespace mhla::apps
