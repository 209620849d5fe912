// The rivals for the table of apps/engine/engine.h.
#pragma once

#include <string>

#include "apps/engine/rivals/request.h"

namespace mhla::rivals {

std::string describe();  // "LibTorch 1.13.1, BLAS /usr/lib/.../libopenblas.so.0"
// The fastest variant of the rival. Throws with the reason where there is no time.
void time_rival(const apps::RivalRequest& request, apps::RivalResult& result);

}  // namespace mhla::rivals
