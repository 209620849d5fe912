// Recorded cases of transformers' umT5 encoder, computed again.
#pragma once

#include "mhla/models/recorded.h"

namespace mhla {

RecordedFamilies umt5_recorded();

}  // namespace mhla
