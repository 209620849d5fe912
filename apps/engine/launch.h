// mhla train --nproc N: N processes of this machine that train together, as torchrun would start them. And those of
// `mhla bench scale`, whose rows go to the observer.
#pragma once

#include "apps/engine/requests.h"
#include "mhla/train/observer.h"

namespace mhla::apps {

// Starts the processes, passes signals on, and waits for all. A process that dies is reported to the others at once.
// Throws SaidElsewhere with the exit code where they have said what went wrong.
void launch(const LaunchRequest& request, train::Observer& observer);

}  // namespace mhla::apps
