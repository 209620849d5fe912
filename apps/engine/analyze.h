// `mhla analyze` for the table of apps/engine/engine.h.
#pragma once

#include "apps/engine/engine.h"

namespace mhla::apps {

// Throws mhla::Error for the caller's mistakes and mhla::RunFailed for what fails on the way.
void analyze(const AnalyzeRequest& request, PictureObserver& observer);

}  // namespace mhla::apps
