// SANA: latents, time and caption to a velocity, all of x's shape.
//   m = table + t_block(silu(t))                  six rows: shift, scale, gate of attention, then of the feed-forward
//   x += gate * attention(LN(x) (1 + scale) + shift)
//   x += cross_attention(x, caption)              neither norm nor gate
//   x += gate * glu_conv(LN(x) (1 + scale) + shift)
// Any grid: nothing of it is in the weights. MHLA's blocks are a number of rows and columns, the last ones smaller.
#pragma once

#include "mhla/models/denoiser.h"
#include "mhla/models/image_parts.h"
#include "mhla/models/sana/sana_config.h"
#include "mhla/modules/norms.h"
#include "mhla/modules/param_roles.h"
#include "mhla/modules/weight_names.h"

namespace mhla {

struct TokenGrid {
  std::int64_t rows = 0, columns = 0;
};

// Linear attention, MHLA or softmax attention over the tokens of a grid, with the same weights but for `mix`.
class SanaAttentionImpl : public torch::nn::Module, public HasParamRoles {
 public:
  explicit SanaAttentionImpl(const SanaConfig& config);
  torch::Tensor forward(const torch::Tensor& x, TokenGrid grid);  // [B, N, C]
  [[nodiscard]] std::map<std::string, ParamRole> param_roles() const override;
  void constrain();  // after an optimiser step: the range of mix

  torch::Tensor mix;  // [M, M]; undefined without MHLA

 private:
  SanaConfig config_;
  torch::nn::Linear qkv_{nullptr}, proj_{nullptr};
  RmsNorm q_norm_{nullptr}, k_norm_{nullptr};
};
TORCH_MODULE(SanaAttention);

class SanaCrossAttentionImpl : public torch::nn::Module {
 public:
  explicit SanaCrossAttentionImpl(const SanaConfig& config);
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& captions, const torch::Tensor& mask);

 private:
  std::int64_t heads_;
  torch::nn::Linear q_{nullptr}, kv_{nullptr}, proj_{nullptr};
  RmsNorm q_norm_{nullptr}, k_norm_{nullptr};
};
TORCH_MODULE(SanaCrossAttention);

class SanaBlockImpl : public torch::nn::Module {
 public:
  explicit SanaBlockImpl(const SanaConfig& config);
  torch::Tensor forward(torch::Tensor x, const torch::Tensor& captions, const torch::Tensor& t,
                        const torch::Tensor& mask, TokenGrid grid);
  [[nodiscard]] const SanaAttention& attention() const { return attn_; }

 private:
  double eps_;
  SanaAttention attn_;
  SanaCrossAttention cross_;
  GluConv mlp_;
  torch::Tensor table_;  // [6, C]
};
TORCH_MODULE(SanaBlock);

class SanaImpl : public torch::nn::Module, public Denoiser {
 public:
  explicit SanaImpl(const SanaConfig& config);

  // The velocity noise - x at times t [B] = 1000 s of flow matching (flow.h), whole or fractional numbers: truncate_t
  // says what becomes of fractions. Reads captions and, where there is one, captions_mask.
  torch::Tensor denoise(const torch::Tensor& x, const torch::Tensor& t, const Conditioning& condition) override;
  // Refused: guidance takes the text encoder's states of "" or of a negative caption. y_embedding is the caption of
  // dropped ones in training only.
  [[nodiscard]] Conditioning unconditional(const Conditioning& condition) const override;
  [[nodiscard]] bool can_be_recorded() const override { return true; }

  // x [B, channels, rows, columns]; t [B] from 0 to 1000; y [B, T, caption_dim]; mask [B, T], 0 for padding, or
  // undefined. A caption without a single token sees all of its padding.
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& t, const torch::Tensor& y,
                        const torch::Tensor& mask = {});
  void constrain();

  [[nodiscard]] const SanaConfig& config() const { return config_; }
  [[nodiscard]] const std::vector<SanaBlock>& blocks() const { return blocks_; }

  torch::Tensor y_embedding;  // [caption_tokens, caption_dim]: the caption of dropped ones in training, not learned

 private:
  torch::Tensor embed_captions(const torch::Tensor& y);  // [B, T, C]

  SanaConfig config_;
  torch::nn::Conv2d patches_{nullptr};
  torch::nn::Linear t_in_{nullptr}, t_out_{nullptr}, t_block_{nullptr}, y_in_{nullptr}, y_out_{nullptr};
  torch::nn::Linear final_{nullptr};
  RmsNorm y_norm_{nullptr};
  std::vector<SanaBlock> blocks_;
  torch::Tensor final_table_;  // [2, C]
};
TORCH_MODULE(Sana);

// ---- Weights

enum class SanaNames : std::uint8_t { kOriginal, kDiffusers };  // diffusers has no y_embedding

Weights to_published(const SanaConfig& config, const Weights& ours, SanaNames names);  // weights, or their gradients
// In either naming, or under our own names as a training keeps them. `pos_embed` is passed over, and y_embedding stays
// where the file has none. What does not fit is refused with the lists of what is missing and what is left over, and
// nothing changes.
void load_published(SanaImpl& model, const Weights& published);
Weights state_of(const SanaImpl& model);  // with y_embedding

// A model of the same weights with another attention or other blocks of MHLA, whose mixing matrices are resampled.
// `config` differs from the model's in attention, eps, features, blocks and mix_* only. Linear attention to MHLA with
// mix_init uniform starts as the same function, up to eps.
Sana with_attention(const SanaImpl& model, const SanaConfig& config);

// A folder with config.json (ours or diffusers') and weights in one file or shards, in either naming. Linear attention
// in diffusers' names is saved with diffusers' config, which says that eps is 1e-15 and t is not truncated.
Sana load_sana(const std::filesystem::path& folder, torch::ScalarType dtype = torch::kFloat);
void save_sana(const SanaImpl& model, const std::filesystem::path& folder, SanaNames names = SanaNames::kOriginal,
               double shard_bytes = 5e9);

}  // namespace mhla
