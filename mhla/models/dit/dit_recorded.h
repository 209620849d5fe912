// Recorded cases of the published diffusion transformers, computed again.
#pragma once

#include "mhla/models/recorded.h"

namespace mhla {

RecordedFamilies dit_recorded();

}  // namespace mhla
