// Recorded cases of SANA, original and diffusers', and of SANA with MHLA, computed again.
#pragma once

#include "mhla/models/recorded.h"

namespace mhla {

RecordedFamilies sana_recorded();

}  // namespace mhla
