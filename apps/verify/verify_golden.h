// mhla verify --golden: recomputes every case of the golden files through every available candidate.
#pragma once

#include <string>

#include "apps/cli/output.h"

namespace mhla::apps {

// `path` is a file or a folder of *.safetensors. `backend` empty: every candidate there is. Returns the exit code:
// 0 all agree, 1 a tensor is further off than the limit or nothing was checked, 2 something could not be judged.
int verify_golden(const std::string& path, const std::string& backend, const Output& out);

}  // namespace mhla::apps
