// mhla verify: every available candidate against the f64 reference, by the accuracy rule of docs/numerics.md.
#pragma once

#include <string>

#include "apps/output.h"

namespace mhla::apps {

// `backend` empty: every candidate there is. Returns the exit code: 0 all good, 1 a check failed.
int verify_self(const std::string& backend, const Output& out);

}  // namespace mhla::apps
