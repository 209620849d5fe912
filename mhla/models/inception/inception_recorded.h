// Recorded cases of torch-fidelity's Inception-v3 with the weights of the formula, computed again.
#pragma once

#include "mhla/models/recorded.h"

namespace mhla {

RecordedFamilies inception_recorded();

}  // namespace mhla
