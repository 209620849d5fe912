// Gemma-2 as a text encoder: token ids to hidden states. Weights may have 16 bits; on the CPU everything that passes
// through is f32, on a GPU it has the type of the weights.
//   x = E[id] sqrt(C);  n(x) = x / sqrt(mean x^2 + eps) (1 + w)
//   x += n2(attention(n1(x)));  x += n4(down(gelu(gate y) * up y)), y = n3(x);  out = n(x)
//   scores = cap tanh(q.k / (sqrt(scalar) cap)), then the mask: causal, padding, in every second layer a window
#pragma once

#include <memory>

#include "mhla/models/text_encoder/gemma2_config.h"
#include "mhla/modules/rope.h"
#include "mhla/modules/weight_names.h"

namespace mhla {

class Gemma2LayerImpl;

class Gemma2Impl : public torch::nn::Module {
 public:
  // All weights are 0: load them.
  explicit Gemma2Impl(const Gemma2Config& config, torch::ScalarType dtype = torch::kFloat);

  // ids and mask [B, T], padding on the right has mask 0: hidden states after the last norm, [B, T, C]. `maybe_states`
  // gets the embedded tokens and the result of every layer.
  torch::Tensor forward(const torch::Tensor& ids, const torch::Tensor& mask,
                        std::vector<torch::Tensor>* maybe_states = nullptr);
  [[nodiscard]] const Gemma2Config& config() const { return config_; }

 private:
  Gemma2Config config_;
  torch::Tensor table_, norm_;  // [vocab, C], [C]
  std::vector<std::shared_ptr<Gemma2LayerImpl>> layers_;
  std::shared_ptr<RopeCache> rope_;
};
TORCH_MODULE(Gemma2);

// What SANA takes of a text: position 0 and the last `count` - 1 of states [B, T, C] and mask [B, T].
struct SelectedStates {
  torch::Tensor states, mask;  // [B, count, C], [B, count]
};
SelectedStates select_states(const torch::Tensor& states, const torch::Tensor& mask, std::int64_t count = 300);

// Names of Gemma2Model; those of Gemma2ForCausalLM have `model.` before them, and its lm_head is passed over. What does
// not fit is refused with the lists of what is missing and what is left over, and nothing changes.
void load_published(Gemma2Impl& model, const Weights& published);

// A folder with transformers' config.json and weights in one file or shards.
Gemma2 load_gemma2(const std::filesystem::path& folder, torch::ScalarType dtype = torch::kBFloat16);
void save_gemma2(const Gemma2Impl& model, const std::filesystem::path& folder, double shard_bytes = 5e9);

}  // namespace mhla
