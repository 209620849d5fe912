// Small language models for tests.
#pragma once

#include "mhla/models/lm/lm.h"
#include "mhla/modules/modules_fixture.h"
#include "mhla/modules/zoo/zoo.h"

namespace mhla {

inline const std::vector<std::string> kCausal{"mhla", "softmax", "linear", "gla", "mamba", "mamba2", "gdn"};

inline LmConfig small_lm(const std::string& attention = "mhla") {
  LmConfig c;
  c.model = "mhla_10m", c.attention = attention;
  c.vocab = 97, c.dim = 64, c.layers = 2, c.heads = 2, c.mlp = 160, c.context = 128, c.chunk = 8;
  c.match = has_mlp(attention);
  return c;
}

inline LanguageModel make_lm(const LmConfig& c, double larger = 5) {
  torch::manual_seed(1);
  LanguageModel model(c);
  // Weights of deviation 0.02 leave this few channels nearly linear: larger ones, so that the blocks matter.
  const torch::NoGradGuard no_gradient;
  for (const auto& item : model->named_parameters()) {
    if (item.value().dim() == 2 && item.key().find(".mix") == std::string::npos) item.value().mul_(larger);
  }
  return model;
}

inline torch::Tensor tokens_of(std::int64_t B, std::int64_t N, std::int64_t vocab = 97) {
  torch::manual_seed(B * 1000 + N);
  return torch::randint(vocab, {B, N}, torch::kLong);
}

}  // namespace mhla
