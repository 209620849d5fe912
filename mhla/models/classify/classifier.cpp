#include "mhla/models/classify/classifier.h"

#include "mhla/models/classify/deit.h"
#include "mhla/models/classify/vlt.h"

namespace mhla {

std::vector<torch::Tensor> Classifier::attention_inputs(const torch::Tensor& images) {
  std::vector<torch::Tensor> seen;
  record_ = &seen;
  try {
    forward(images);
  } catch (...) {
    record_ = nullptr;
    throw;
  }
  record_ = nullptr;
  return seen;
}

void Classifier::constrain() {
  for (const AttentionLayer& layer : layers_) layer.attention->constrain();
}

void Classifier::add_attention_layer(std::string name, AnyAttention attention, const Layout& layout) {
  layers_.push_back({std::move(name), std::move(attention), layout});
}

torch::Tensor Classifier::attend(Attention& attention, const torch::Tensor& tokens) {
  if (record_ != nullptr) record_->push_back(tokens.detach());
  return attention.forward(tokens);
}

void Classifier::expect_images(const torch::Tensor& images) const {
  const std::vector<std::int64_t> sizes{config_.channels, config_.image[0], config_.image[1]};
  if (images.dim() != 4 || images.sizes().slice(1) != c10::IntArrayRef(sizes)) {
    fail(config_.model, ": images have shape ", c10::str(images.sizes()), ", expected [B, ", sizes[0], ", ", sizes[1],
         ", ", sizes[2], "]; resized() makes a model for another size");
  }
}

AnyClassifier make_classifier(const ClassifierConfig& config) {
  check(config);
  if (config.family == "vlt") return std::make_shared<VltImpl>(config);
  return std::make_shared<DeitImpl>(config);
}

}  // namespace mhla
