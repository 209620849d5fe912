// `mhla export` for the table of apps/engine/engine.h.
#pragma once

#include "apps/engine/requests.h"
#include "mhla/train/trainer.h"

namespace mhla::apps {

void export_model(const ExportRequest& request, train::Observer& observer);  // a row says what was written

}  // namespace mhla::apps
