// Recorded cases of the published Wan transformers, computed again.
#pragma once

#include "mhla/models/recorded.h"

namespace mhla {

RecordedFamilies wan_recorded();

}  // namespace mhla
