// Recorded cases of transformers' Gemma2Model, computed again.
#pragma once

#include "mhla/models/recorded.h"

namespace mhla {

RecordedFamilies gemma2_recorded();

}  // namespace mhla
