// `mhla generate` for the table of apps/engine/engine.h.
#pragma once

#include "apps/engine/engine.h"

namespace mhla::apps {

// Pieces of text as they come, then a row {"kind": "text"} for each prompt and one {"kind": "generated"}.
void generate_text(const GenerateRequest& request, TextObserver& observer);

}  // namespace mhla::apps
