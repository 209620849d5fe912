// Recorded cases of the published diffusion transformers, computed again.
#pragma once

#include "mhla/models/dit/dit_config.h"
#include "mhla/models/recorded.h"

namespace mhla {

std::vector<std::string> dit_families();
// Every output and gradient of a case of that family, by the names of the golden file.
Weights recompute_dit(const std::string& family, const RecordedCase& recorded);

}  // namespace mhla
