// Random queries and keys with the structure that image tokens have: each channel is a smooth random field over the
// grid, shared by q and k, plus noise of each token's own.
#pragma once

#include <cstdint>

#include "mhla/analysis/matrix.h"

namespace mhla::apps {

struct DemoField {
  Matrix q, k;  // [side^2, size]
};

// Fields vary over about an eighth of the side; the standard deviation of the smooth part is twice that of the noise.
DemoField make_field(std::int64_t side, std::int64_t size, std::uint64_t seed);

}  // namespace mhla::apps
