// Recorded cases of the published diffusion code, computed again.
#pragma once

#include "mhla/models/recorded.h"

namespace mhla {

std::vector<std::string> diffusion_families();
// Every output and gradient of a case of that family, by the names of the golden file.
Weights recompute_diffusion(const std::string& family, const RecordedCase& recorded);

}  // namespace mhla
