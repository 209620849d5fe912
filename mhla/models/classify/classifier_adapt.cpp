// A classifier of given weights as another configuration: resized, with another attention, with a new head.
#include "mhla/core/error.h"
#include "mhla/models/classify/classifier.h"

namespace mhla {
namespace {

bool is_head(const std::string& name) { return name.rfind("head.", 0) == 0; }

AnyClassifier with_new_head(const Classifier& model, const ClassifierConfig& config) {
  AnyClassifier other = make_classifier(config);
  Weights state = state_of(model);
  for (const auto& [name, value] : state_of(*other)) {
    if (is_head(name)) state[name] = value;
  }
  load_state(*other, state);
  other->train(model.is_training());
  return other;
}

}  // namespace

AnyClassifier adapted(AnyClassifier model, const ClassifierConfig& config) {
  check(config);
  ClassifierConfig size = model->config();
  size.image = config.image, size.pad = config.pad, size.blocks = config.blocks;
  if (size != model->config()) model = resized(*model, size);
  ClassifierConfig attention = config;
  attention.classes = size.classes;
  if (attention.attention != size.attention) model = with_attention(*model, attention);
  if (config.classes != size.classes) model = with_new_head(*model, config);
  if (config != model->config())
    fail("adapted: config differs from the model's in more than image, pad, blocks, attention and classes");
  return model;
}

}  // namespace mhla
