// A streaming test where its candidate works: tensors of a case on the host, or copied to CUDA device 0 between bands
// of NaN, and brought back by finish().
#pragma once

#include "mhla/kernels/streaming/streaming_fixture.h"
#include "mhla/testing/run_case_device.h"

namespace mhla {

class Placed {
 public:
  Placed(const Case& c, const CaseInputs& host, std::string_view candidate)
      : c_(c), out_(c.dtype, {c.B, c.N, c.H, c.E}), inputs_(host.alias()), view_(out_.view()), place_(0, nullptr) {
    if (!on_device(candidate)) return;
    place_.move_input(inputs_.q, "q"), place_.move_input(inputs_.k, "k"), place_.move_input(inputs_.v, "v");
    place_.move_input(inputs_.maybe_q_den, "q_den"), place_.move_input(inputs_.maybe_k_den, "k_den");
    place_.move_output(view_, out_.guarded_bytes(), "out");
  }
  // Tokens [t, t + count) of batch elements [b, b + states), into the same place of the output.
  void append(const std::vector<StreamingState*>& states, std::int64_t t, std::int64_t count, std::int64_t b = 0,
              const RunOptions& run = {}) {
    mhla::append(inputs_, states, t, count, b, view_, run);
  }
  const Tensor& finish() {
    place_.finish(c_.name());
    return out_;
  }
  [[nodiscard]] const CaseInputs& inputs() const { return inputs_; }
  [[nodiscard]] View out() const { return view_; }

 private:
  Case c_;
  Tensor out_;
  CaseInputs inputs_;
  View view_;
  DevicePlace place_;
};

}  // namespace mhla
