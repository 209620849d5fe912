// Recorded cases of the published diffusion code, computed again.
#pragma once

#include "mhla/models/recorded.h"

namespace mhla {

RecordedFamilies diffusion_recorded();

}  // namespace mhla
