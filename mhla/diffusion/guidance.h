// Classifier-free guidance: out = null + scale (conditional - null) on some channels, the others are those of the
// conditional answer. Conditional and null rows go through the network together, or one after the other.
#pragma once

#include <array>

#include "mhla/io/fields.h"
#include "mhla/models/denoiser.h"

namespace mhla {

struct GuidanceOptions {
  double scale = 1.0;
  std::int64_t channels = 0;
  std::array<double, 2> interval{0.0, 1e9};
  bool together = true;

  template <class Self, class Visit>
  static void fields(Self& o, Visit&& visit) {
    visit("scale", o.scale, "strength of the guidance; 1 is none");
    visit("channels", o.channels, "channels that are guided: 3 as the published DiT samples, 0 for all");
    visit("interval", o.interval, "times between which the guidance acts, both ends included");
    visit("together", o.together,
          "conditional and null rows in one pass; false: one after the other, in half the memory");
  }
  bool operator==(const GuidanceOptions&) const = default;
};
void check(const GuidanceOptions& options);

// `channels` leading ones are mixed, the rest (variance, unguided latents) is that of `conditional`.
torch::Tensor guided(const torch::Tensor& conditional, const torch::Tensor& null, double scale, std::int64_t channels);

class GuidedDenoiser : public Denoiser {
 public:
  // `negative`: what to move away from, one row or a row per sample; without one the model's null class.
  GuidedDenoiser(Denoiser& model, const GuidanceOptions& options, Conditioning negative = {});
  torch::Tensor denoise(const torch::Tensor& x, const torch::Tensor& t, const Conditioning& condition) override;
  [[nodiscard]] Conditioning unconditional(const Conditioning& condition) const override {
    return model_.unconditional(condition);
  }

 private:
  Denoiser& model_;
  GuidanceOptions options_;
  Conditioning negative_;
};

}  // namespace mhla
