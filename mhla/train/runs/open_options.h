// Which run to open, which of its weights, and where to compute with them. Plain values without LibTorch.
#pragma once

#include <cstdint>
#include <string>

namespace mhla::train {

struct OpenOptions {
  std::string run;                // the folder
  std::string weights = "model";  // model, ema or best
  std::string device;             // empty: the run's
  std::int64_t batch = 0;         // 0: the run's
  std::int64_t threads = 0;       // 0: all

  // What every command that opens a run has. `run` and `batch` mean something else to each and are listed there.
  template <class Self, class Visit>
  static void fields(Self& o, Visit&& visit) {
    visit("weights", o.weights,
          "model, ema: the running average of the weights, or best: those of the best evaluation");
    visit("device", o.device, "cpu, cuda or cuda:N (default: as in training)");
    visit("threads", o.threads, "CPU threads; 0: all");
  }
};

}  // namespace mhla::train
