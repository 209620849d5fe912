// `mhla data encode`: images to latents and captions to states, once for many trainings (mhla/data/latent_set.h).
#pragma once

#include "apps/engine/requests.h"
#include "mhla/train/observer.h"

namespace mhla::apps {

// Fills --out, or what is missing or damaged in it, shard by shard: a run that is killed goes on where it was, and the
// bytes are those of one that was not. Rows of kind "start" and "end"; progress with the time left.
void encode_data(const EncodeRequest& request, train::Observer& observer);

}  // namespace mhla::apps
