// Inception score: exp of the mean KL divergence of a classifier's p(y|x) from its mean over images, over parts of the
// set. The published numbers differ in how they cut the set, so the way is an option with a name.
#pragma once

#include <cstdint>

#include "mhla/core/view.h"

namespace mhla {

struct ScoreParts {
  std::int64_t part = 5000;  // images of a part, the last may be smaller; 0: `splits` parts
  std::int64_t splits = 10;  // equal parts, where part is 0
  bool shuffled = false;     // in numpy's order for `seed` first
  std::uint32_t seed = 2020;

  static ScoreParts adm() { return {}; }
  static ScoreParts torch_fidelity() { return {.part = 0, .splits = 10, .shuffled = true, .seed = 2020}; }
};

struct InceptionScore {
  double mean = 0.0;
  double deviation = 0.0;  // of the parts, over their number
  std::int64_t parts = 0;
};

// ADM and torch-fidelity take the logits without the bias of the last layer.
InceptionScore inception_score(const ConstView& logits /* [N, classes] */, const ScoreParts& parts = {});

}  // namespace mhla
