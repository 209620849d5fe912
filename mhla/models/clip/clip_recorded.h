// Recorded cases of transformers' CLIPModel and OpenAI's network, computed again.
#pragma once

#include "mhla/models/recorded.h"

namespace mhla {

RecordedFamilies clip_recorded();

}  // namespace mhla
