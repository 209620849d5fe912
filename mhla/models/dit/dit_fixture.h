// Small diffusion transformers for tests.
#pragma once

#include "mhla/models/dit/dit.h"
#include "mhla/modules/modules_fixture.h"

namespace mhla {

// 6 x 4 tokens of 2 x 2, blocks 3 x 2. With weights that are not 0 anywhere, so that every part is seen in the output.
inline DitConfig small_dit(const std::string& attention = "mhla", const std::string& name = "dit_d32") {
  DitConfig c = dit_config(name, attention);
  c.image = {12, 8}, c.classes = 5, c.dim = 32, c.depth = 2, c.heads = 2, c.blocks = {3, 2};
  c.channels = 3;
  return c;
}

inline void randomize(torch::nn::Module& model) {
  const torch::NoGradGuard no_gradient;
  for (const auto& item : model.named_parameters()) {
    if (item.value().requires_grad() && item.key().find(".mix") == std::string::npos)
      item.value().add_(torch::randn_like(item.value()) * 0.1);
  }
}

inline Dit make_dit(const DitConfig& c) {
  torch::manual_seed(1);
  Dit model(c);
  randomize(*model);
  model->eval();
  return model;
}

struct DitInputs {
  torch::Tensor x, t, y;
};
inline DitInputs inputs_for(const DitConfig& c, std::int64_t B = 2) {
  torch::manual_seed(5);
  return {torch::randn({B, c.channels, c.image[0], c.image[1]}), torch::randint(0, 1000, {B}).to(torch::kFloat),
          torch::randint(0, c.classes + 1, {B}, torch::kLong)};
}

inline torch::Tensor run(Dit& model, const DitInputs& in) { return model->forward(in.x, in.t, in.y); }

}  // namespace mhla
