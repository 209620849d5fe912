// The encoder of umT5: token ids to hidden states, for captions of videos. Weights may have 16 bits; on the CPU
// everything that passes through is f32, on a GPU it has the type of the weights.
//   n(x) = x / sqrt(mean x^2 + eps) w
//   x += o(softmax(q.k + bias of key - query, padding left out) v), q, k, v of n1(x): no scale
//   x += wo(gelu(wi_0 y) * wi_1 y), y = n2(x);   out = n(x)
// Every layer has a table of biases of its own, by the kind of the distance (T5 has one for all layers).
#pragma once

#include "mhla/models/text_encoder/umt5_config.h"
#include "mhla/modules/weight_names.h"

namespace mhla {

class Umt5LayerImpl;

// The kind of each distance key - query, int64 as given: 0 to buckets - 1. Half of them are for keys behind the query,
// each half exact for small distances and logarithmic from there to `max_distance`.
torch::Tensor umt5_buckets(const torch::Tensor& distance, std::int64_t buckets, std::int64_t max_distance);

class Umt5Impl : public torch::nn::Module {
 public:
  // All weights are 0: load them.
  explicit Umt5Impl(const Umt5Config& config, torch::ScalarType dtype = torch::kFloat);

  // ids [B, T]; mask [B, T], 0 for padding, or undefined: hidden states after the last norm, [B, T, C]. States at
  // padding are computed, too, and mean nothing.
  torch::Tensor forward(const torch::Tensor& ids, const torch::Tensor& mask = {});
  [[nodiscard]] const Umt5Config& config() const { return config_; }

 private:
  Umt5Config config_;
  torch::Tensor table_, norm_;  // [vocab, C], [C]
  std::vector<std::shared_ptr<Umt5LayerImpl>> layers_;
};
TORCH_MODULE(Umt5);

enum class Umt5Names : std::uint8_t { kTransformers, kWan };  // UMT5EncoderModel, or Wan's own file

Weights to_published(const Umt5Impl& model, const Weights& ours, Umt5Names names);  // weights, or their gradients
// In either naming; encoder.embed_tokens, the table once more, is passed over. What does not fit is refused with the
// lists of what is missing and what is left over, and nothing changes.
void load_published(Umt5Impl& model, const Weights& published);

// A folder with transformers' config.json and weights in one file or shards, in either naming.
Umt5 load_umt5(const std::filesystem::path& folder, torch::ScalarType dtype = torch::kBFloat16);
void save_umt5(const Umt5Impl& model, const std::filesystem::path& folder, Umt5Names names = Umt5Names::kTransformers,
               double shard_bytes = 5e9);

}  // namespace mhla
