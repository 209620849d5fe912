// A set whose images are decoded and brought to size once, then kept in memory: for epochs over files that are slow to
// decode. What comes out has the bits of a set without it.
#pragma once

#include "mhla/data/augment.h"

namespace mhla {

// Bytes that such a set keeps once every image was seen.
double cached_bytes(const ImageSet& set, const Augment& augment);

// `augment` says the size, the channels and the fit, which must not be random. An image that cannot be decoded is an
// Error at every call.
ImageSetPtr cached_images(ImageSetPtr set, const Augment& augment);

}  // namespace mhla
