// An image classifier: images in, logits out, with any attention of the zoo. A trainer knows this header alone.
#pragma once

#include <memory>

#include "mhla/models/classify/classifier_config.h"
#include "mhla/modules/attention.h"
#include "mhla/modules/weight_names.h"

namespace mhla {

// An attention inside a model, and the grid its tokens lie on.
struct AttentionLayer {
  std::string name;  // of the module: "blocks.0.attn"
  AnyAttention attention;
  Layout layout;  // token grid and, for mhla, its blocks; others have one block
};

class Classifier : public torch::nn::Module {
 public:
  explicit Classifier(ClassifierConfig config) : config_(std::move(config)) {}

  virtual torch::Tensor forward(const torch::Tensor& images /* [B, channels, rows, columns] */) = 0;  // [B, classes]
  // The tokens that every attention layer sees, [B, N, C] each, in the order of attention_layers().
  std::vector<torch::Tensor> attention_inputs(const torch::Tensor& images);

  void constrain();  // after an optimiser step: what must hold for the weights (MHLA: the range of mix)

  [[nodiscard]] const ClassifierConfig& config() const { return config_; }
  [[nodiscard]] const std::vector<AttentionLayer>& attention_layers() const { return layers_; }
  // Parameters that lie on a token grid and must be resampled for another image size, by name.
  [[nodiscard]] virtual std::vector<std::pair<std::string, Layout>> position_tables() const = 0;
  // forward() in two parts: what the head sees of images, [B, width], and its answer. Metrics compare sets of images by
  // the first.
  virtual torch::Tensor features(const torch::Tensor& images) = 0;
  virtual torch::Tensor head(const torch::Tensor& features) = 0;

 protected:
  void add_attention_layer(std::string name, AnyAttention attention, const Layout& layout);
  torch::Tensor attend(Attention& attention, const torch::Tensor& tokens);  // records them for attention_inputs
  void expect_images(const torch::Tensor& images) const;

 private:
  ClassifierConfig config_;
  std::vector<AttentionLayer> layers_;
  std::vector<torch::Tensor>* record_ = nullptr;
};
using AnyClassifier = std::shared_ptr<Classifier>;

// Random initial weights from LibTorch's generator: torch::manual_seed first.
AnyClassifier make_classifier(const ClassifierConfig& config);

// ---- Weights

// Parameters and buffers (running means of batch norms) by name: what a checkpoint holds.
Weights state_of(const torch::nn::Module& module);
// Every one gets its value, or nothing changes: an error lists what is missing, left over or of another shape.
void load_state(torch::nn::Module& module, const Weights& state);

// A model of the same weights for another image size or other blocks: position tables are interpolated (bicubic),
// mixing matrices resampled, everything else is copied. `config` differs from the model's in image and blocks alone.
AnyClassifier resized(const Classifier& model, const ClassifierConfig& config);

// A model of softmax attention with MHLA or linear attention in its place: q, k, v and the output projection (vlt: the
// gate and LePE too) stay, what softmax attention does not have keeps its initial value. `config` differs from the
// model's in attention, qkv_bias (deit: must be true) and qk_norm alone; `blocks`, `mix_*` and `features` are free.
AnyClassifier with_attention(const Classifier& model, const ClassifierConfig& config);

// The same model, or one of its weights as `config` says: resized(), then with_attention(), then another number of
// classes with a head of random weights. What else differs is refused.
AnyClassifier adapted(AnyClassifier model, const ClassifierConfig& config);

// Published names, out and in; README.md says which. What does not fit is refused with the list of what is missing and
// what is left over, and nothing changes.
Weights published_weights(const Classifier& model);
void load_published(Classifier& model, const Weights& published);

// model.safetensors and config.json in one folder.
void save_classifier(const Classifier& model, const std::filesystem::path& folder);
AnyClassifier load_classifier(const std::filesystem::path& folder);

}  // namespace mhla
