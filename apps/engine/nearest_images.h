// Whether samples are copies of training images: the nearest training image of every sample, and for comparison of
// images that were held out of the training.
#pragma once

#include <string>

#include "apps/engine/image_source.h"
#include "mhla/train/observer.h"

namespace mhla::apps {

struct NearestSets {
  SourceImages &samples, &training;
  const ImageFeatures &of_samples, &of_training, &of_held_out;  // with rows
  std::string sheet;                                            // a PNG of the closest pairs; empty: none
};

// A row "metric" called nearest: the median distance of samples to their nearest training image over that of held-out
// images, with `copies`, the share of samples nearer than all but one in a hundred held-out images. Then rows "nearest"
// for the closest pairs. About 1: samples are as far from the training images as new images are; far below: copies.
void tell_nearest(const NearestSets& sets, train::Observer& observer);

}  // namespace mhla::apps
