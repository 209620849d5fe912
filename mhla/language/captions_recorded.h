// Recorded cases of the tokenizers that captions go through, computed again.
#pragma once

#include "mhla/io/recorded_arrays.h"

namespace mhla {

RecordedArraysFamilies captions_recorded();

}  // namespace mhla
