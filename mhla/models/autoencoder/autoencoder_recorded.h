// Recorded cases of diffusers' AutoencoderKL and AutoencoderDC, computed again.
#pragma once

#include "mhla/models/recorded.h"

namespace mhla {

RecordedFamilies autoencoder_recorded();

}  // namespace mhla
