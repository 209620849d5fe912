// Recorded cases of whole language models, computed again.
#pragma once

#include "mhla/models/recorded.h"

namespace mhla {

RecordedFamilies lm_recorded();

}  // namespace mhla
