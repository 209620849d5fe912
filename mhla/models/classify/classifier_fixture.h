// Classifiers for tests.
#pragma once

#include "mhla/models/classify/classifier.h"

namespace mhla {

inline AnyClassifier seeded_classifier(const ClassifierConfig& c) {
  torch::manual_seed(1);
  return make_classifier(c);
}

}  // namespace mhla
