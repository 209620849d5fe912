// Recorded cases of Wan's autoencoder, computed again.
#pragma once

#include "mhla/models/recorded.h"

namespace mhla {

RecordedFamilies wan_vae_recorded();

}  // namespace mhla
