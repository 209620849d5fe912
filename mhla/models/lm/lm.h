// A language model with any causal attention of the zoo, in one pass or streaming.
//   x = embeddings[tokens]
//   x = x + attn(attn_norm(x)); x = x + mlp(mlp_norm(x))     per block; Mamba's have no MLP, and there are more
//   hidden = norm(x); logits = hidden . embeddings^T          or lm_head where the tables are not tied
// Parameters have the published names but for those of the attention.
#pragma once

#include "mhla/kernels/mixing/mixing.h"
#include "mhla/models/lm/lm_config.h"
#include "mhla/models/parts.h"
#include "mhla/modules/mhla_attention.h"
#include "mhla/modules/rope.h"
#include "mhla/modules/weight_names.h"

namespace mhla {

// x + branch, where the sum waits for the norm that follows: one pass on a GPU instead of two.
struct LmStream {
  torch::Tensor x, branch;  // [B, N, dim]; no branch: x alone
  [[nodiscard]] torch::Tensor settled() const { return branch.defined() ? x + branch : x; }
  torch::Tensor norm(RmsNorm& norm);  // of the sum; the stream is settled after it
};

class LmBlockImpl : public torch::nn::Module {
 public:
  LmBlockImpl(const LmConfig& config, std::int64_t mlp_width, const std::shared_ptr<RopeCache>& rope);
  LmStream forward(LmStream stream, const torch::Tensor& cu_seqlens);
  torch::Tensor stream(const torch::Tensor& x, AttentionState& state, const torch::Tensor& positions);
  [[nodiscard]] const AnyAttention& attention() const { return attn_; }

  // stream() of MHLA in parts (mhla_attention.h): all before the operator, and all after it.
  MhlaAttentionImpl::StreamStep open_step(const torch::Tensor& x, const RopeTable& table, AttentionState* maybe_state);
  torch::Tensor close_step(const torch::Tensor& x, const MhlaAttentionImpl::StreamStep& step);

 private:
  torch::Tensor before(const torch::Tensor& x) { return attn_norm_(x); }  // what the attention is given
  torch::Tensor behind(const torch::Tensor& x, const torch::Tensor& attended);

  RmsNorm attn_norm_{nullptr}, mlp_norm_{nullptr};
  AnyAttention attn_;
  Swiglu mlp_{nullptr};
};
TORCH_MODULE(LmBlock);

// The attention of a block where it is MHLA, else null.
inline MhlaAttentionImpl* mhla_of(const LmBlock& block) { return block->attention()->as<MhlaAttentionImpl>(); }

// What a model has seen of a batch of sequences, each at its own place. Moves, and copies by select() alone.
struct LmState {
  std::vector<AttentionState> layers;

  [[nodiscard]] std::int64_t batch() const { return static_cast<std::int64_t>(layers.front().positions.size()); }
  [[nodiscard]] const std::vector<std::int64_t>& positions() const { return layers.front().positions; }  // [B]
  [[nodiscard]] std::int64_t bytes() const;
};
LmState select(const LmState& state, const std::vector<std::int64_t>& sequences);  // copies: forks, other batches
LmState join(std::vector<LmState> states);                                         // one batch of all sequences

class LanguageModelImpl : public torch::nn::Module {
 public:
  explicit LanguageModelImpl(const LmConfig& config);  // random weights from LibTorch's generator

  // ---- In one pass. tokens [B, N] i64; cu_seqlens [S + 1]: B = 1 holds packed documents, none sees another.

  torch::Tensor hidden(const torch::Tensor& tokens, const torch::Tensor& cu_seqlens = {});  // [B, N, dim]
  torch::Tensor logits(const torch::Tensor& hidden) const;                                  // [..., vocab]
  torch::Tensor forward(const torch::Tensor& tokens, const torch::Tensor& cu_seqlens = {}) {
    return logits(hidden(tokens, cu_seqlens));
  }
  [[nodiscard]] const torch::Tensor& head() const;  // [vocab, dim]
  void set_recompute(bool on) { recompute_ = on; }  // blocks compute themselves again for their gradients

  // ---- A few tokens at a time: what one pass gives over all of them, without gradients.

  [[nodiscard]] LmState begin(std::int64_t batch = 1) const;
  // T more tokens of every sequence, [B, T], `piece` at a time so that a long prompt needs little memory: the logits
  // behind the last of them, [B, vocab].
  torch::Tensor prefill(const torch::Tensor& tokens, LmState& state, std::int64_t piece = 2048);
  // One more token of every sequence, [B], wherever each stands: [B, vocab]. Many in a row: decoder.h.
  torch::Tensor decode(const torch::Tensor& tokens, LmState& state);
  torch::Tensor stream(const torch::Tensor& tokens, LmState& state);  // hidden of all of them, [B, T, dim]

  // ---- Sequences longer than mix has rows for (mixing.h). Attentions without one have no limit, but truncate_left
  // keeps the last `context` tokens of any.

  // hidden() keeps the last tokens (truncate_left: fewer come out than went in), or takes larger chunks, or goes on.
  // truncate_left and rechunk are one pass over a batch: begin() and cu_seqlens are refused with them.
  void set_length_policy(LengthPolicy policy);
  [[nodiscard]] LengthPolicy length_policy() const { return policy_; }
  [[nodiscard]] LengthPlan plan(std::int64_t tokens) const;  // what hidden() would do; throws where it would
  // The same in words: describe() of the plan for mhla; others have no chunks, and no end unless truncate_left cuts.
  [[nodiscard]] std::string describe_length(std::int64_t tokens) const;

  // Logits of a token have the same bits however a sequence is split and whatever else is in the batch. Inference in
  // f32 on the CPU, mhla and linear attention; slower for many tokens at once (exact.h).
  void set_exact(bool on);
  [[nodiscard]] bool exact() const { return exact_; }

  void constrain();  // after an optimiser step: the range of mix
  // Weights to bf16 or another float but for mixing matrices, which stay f32: for inference.
  void cast(torch::ScalarType dtype);
  // Floating-point operations per token of a forward pass over `tokens` tokens: 2 for every weight that is multiplied,
  // and what the attention does with its state or its pairs. Training takes three times that.
  [[nodiscard]] double flops_per_token(std::int64_t tokens) const;

  [[nodiscard]] const LmConfig& config() const { return config_; }
  [[nodiscard]] const std::vector<LmBlock>& blocks() const { return blocks_; }
  [[nodiscard]] torch::Tensor embed(const torch::Tensor& tokens) const;       // [..., dim]
  torch::Tensor normed(const torch::Tensor& x) { return norm_(x); }           // behind the last block
  void expect_step(const torch::Tensor& tokens, const LmState& state) const;  // [B, T], of this model
  [[nodiscard]] torch::Device device() const { return embeddings_->weight.device(); }

 private:
  void expect_tokens(const char* entry, const torch::Tensor& tokens, std::int64_t axes) const;

  LmConfig config_;
  bool recompute_ = false, exact_ = false;
  LengthPolicy policy_ = LengthPolicy::kError;
  torch::nn::Embedding embeddings_{nullptr};
  std::vector<LmBlock> blocks_;
  RmsNorm norm_{nullptr};
  torch::nn::Linear head_{nullptr};
};
TORCH_MODULE(LanguageModel);

// ---- Weights (lm_weights.cpp)

// Published names, out and in: fla's for every attention but Mamba's. A prefix "module." is dropped, a tied lm_head
// that is there must be the table. What does not fit is refused with both lists, and nothing changes.
Weights published_weights(const LanguageModelImpl& model);
void load_published(LanguageModelImpl& model, const Weights& published);

// model.safetensors and config.json in one folder.
void save_language_model(const LanguageModelImpl& model, const std::filesystem::path& folder);
LanguageModel load_language_model(const std::filesystem::path& folder);

// ---- States in files (lm_state_file.cpp)

// A state goes on with the weights that made it: the file has their checksum and is refused by others. `notes` is text
// of the caller's, given back by load.
void save_state(const LanguageModelImpl& model, const LmState& state, const std::filesystem::path& path,
                const std::map<std::string, std::string>& notes = {});
std::map<std::string, std::string> state_notes(const std::filesystem::path& path);  // alone, whatever model it is of
LmState load_state(const LanguageModelImpl& model, const std::filesystem::path& path,
                   std::map<std::string, std::string>* notes = nullptr);

}  // namespace mhla
