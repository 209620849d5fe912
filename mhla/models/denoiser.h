// What a network that removes noise offers to samplers and trainers: images and videos, classes and captions alike.
#pragma once

#include "mhla/core/error.h"
#include "mhla/modules/torch.h"

namespace mhla {

// What samples should show. A model reads its part and refuses a batch without it.
struct Conditioning {
  torch::Tensor labels;         // [B] int64: classes
  torch::Tensor captions;       // [B, T, C]: states of a text encoder
  torch::Tensor captions_mask;  // [B, T]: 1 where there is text, 0 for padding

  // The same with every row through `change`, undefined parts left out.
  template <class Change>
  [[nodiscard]] Conditioning each(Change&& change) const {
    const auto changed = [&](const torch::Tensor& part) { return part.defined() ? change(part) : part; };
    return {changed(labels), changed(captions), changed(captions_mask)};
  }
  // The rows of `a`, then those of `b`.
  static Conditioning join(const Conditioning& a, const Conditioning& b) {
    const auto both = [](const torch::Tensor& x, const torch::Tensor& y) {
      return x.defined() && y.defined() ? torch::cat({x, y}) : torch::Tensor();
    };
    return {both(a.labels, b.labels), both(a.captions, b.captions), both(a.captions_mask, b.captions_mask)};
  }
};

class Denoiser {
 public:
  virtual ~Denoiser() = default;
  // The prediction for noisy samples x [B, channels, ...] at times t [B]: noise or velocity, and after it as many
  // channels of variance where the model has learned one. t is what the model was trained on, 0 to 1000 as a rule.
  virtual torch::Tensor denoise(const torch::Tensor& x, const torch::Tensor& t, const Conditioning& condition) = 0;
  // Whether its kernels do not depend on values and nothing waits for the host, so that a CUDA graph can hold them.
  [[nodiscard]] virtual bool can_be_recorded() const { return false; }
  // The conditioning of "no class" for as many samples. Models of captions have none: theirs comes from a text encoder.
  [[nodiscard]] virtual Conditioning unconditional(const Conditioning& condition) const {
    (void)condition;
    fail("guidance: the model has no null class, expected a negative conditioning");
  }
};

}  // namespace mhla
