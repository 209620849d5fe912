// Recorded cases of ADM's evaluator, torch-fidelity and prdc, computed again.
#pragma once

#include "mhla/io/recorded_arrays.h"

namespace mhla {

RecordedArraysFamilies metrics_recorded();

}  // namespace mhla
