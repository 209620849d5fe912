// One operator call on a CUDA device as `bench op` times it. A sample is the time between two events around the call on
// a stream of its own; before each, a buffer of at least twice the second-level cache is written, so that nothing is
// found there, and while the device is busy with that the call is put in the queue, so that launching it costs no time.
#pragma once

#include <string>

#include "apps/bench/problem.h"
#include "apps/bench/timing.h"
#include "mhla/core/cuda.h"

namespace mhla::apps {

class DeviceProblem {
 public:
  DeviceProblem(const OpShape& shape, DType dtype, Pass pass, const std::string& backend, int device);

  void run();               // once, and waits
  OpTensors& bring_back();  // the tensors on the host, with the outputs of the last run
  struct Times {
    Samples device;  // between the events
    Samples host;    // until the call returned
  };
  [[nodiscard]] Times time(int repeat, double min_seconds);
  [[nodiscard]] std::int64_t flushed() const { return flush_.size(); }  // bytes written before each call
  [[nodiscard]] std::int64_t workspace() const { return workspace_.size(); }
  [[nodiscard]] std::int64_t kept() const { return kept_.size(); }  // bytes that forward leaves for backward
  // Forward and backward together, and the candidate has no backward for this: the list chose one, as it does for
  // users.
  [[nodiscard]] bool backward_by_list() const { return pass_ == Pass::kBoth && backward_run_.candidate.empty(); }

 private:
  void move(ConstView& view);
  void move(View& view);
  void bring_back(const View& from, Tensor& to) const;
  void call();
  std::int64_t backward_workspace();

  OpShape shape_;
  Pass pass_;
  std::string backend_;
  int device_;
  DeviceStream stream_;
  RunOptions run_, backward_run_;
  OpTensors host_;
  OpViews views_;
  std::vector<DeviceBuffer> memory_;
  DeviceBuffer workspace_, kept_, flush_;
};

// Bytes read plus bytes written per second of a copy on the device, in GB/s, best of several.
double device_copy_bandwidth(int device);

}  // namespace mhla::apps
