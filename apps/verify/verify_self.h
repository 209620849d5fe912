// mhla verify: every available candidate against the f64 reference, by the accuracy rule of docs/numerics.md.
#pragma once

#include <string>
#include <vector>

#include "apps/cli/output.h"

namespace mhla::apps {

// `backend` empty: every candidate there is. `dtypes` empty: f32, bf16 and f16. `quick`: a small part of the cases, for
// slow tools that watch memory.
// Returns the exit code: 0 all good, 1 a check failed.
int verify_self(const std::string& backend, const std::vector<std::string>& dtypes, bool quick, const Output& out);

}  // namespace mhla::apps
