// `mhla generate` behind apps/engine/train_interface.h.
#pragma once

#include "mhla/io/json.h"
#include "mhla/train/trainer.h"

namespace mhla::apps {

// Pieces of text as they come are progress: {"kind": "piece", "prompt": i, "text": ...}; then a row {"kind": "text"}
// for each prompt and one {"kind": "generated"}.
void generate_text(const JsonValue& request, train::Observer& observer);

}  // namespace mhla::apps
