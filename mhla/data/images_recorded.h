// Recorded cases of Pillow, torchvision and diffusers: crops, rounding, grids, computed again.
#pragma once

#include "mhla/io/recorded_arrays.h"

namespace mhla {

RecordedArraysFamilies images_recorded();

}  // namespace mhla
