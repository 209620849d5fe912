// A network on a GPU without the host's share: after a few calls of one shape its kernels are recorded as a CUDA graph
// and replayed from then on. A small network at 256 tokens otherwise waits for the host, which launches every kernel.
#pragma once

#include <memory>
#include <vector>

#include "mhla/models/denoiser.h"

namespace mhla {

class GraphDenoiser : public Denoiser {
 public:
  // Networks that cannot be recorded (Denoiser::can_be_recorded) and those on a CPU are called as they are.
  explicit GraphDenoiser(Denoiser& model);
  ~GraphDenoiser() override;
  torch::Tensor denoise(const torch::Tensor& x, const torch::Tensor& t, const Conditioning& condition) override;
  [[nodiscard]] Conditioning unconditional(const Conditioning& condition) const override {
    return model_.unconditional(condition);
  }
  [[nodiscard]] bool replayed() const { return replayed_; }  // the last call

 private:
  struct Recording;
  Denoiser& model_;
  std::unique_ptr<Recording> recording_;
  std::vector<std::int64_t> last_kind_;
  int alike_ = 0;  // calls in a row of that kind
  bool replayed_ = false;
};

}  // namespace mhla
