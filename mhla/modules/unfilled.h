// While it lives, initial values are not drawn on this thread: uniform_ and normal_ leave memory as it is. For models
// whose weights are all read or written right after they are made: drawing them takes seconds per billion.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace mhla {

class UnfilledWeights {
 public:
  UnfilledWeights();

 private:
  c10::impl::IncludeDispatchKeyGuard guard_;
};

}  // namespace mhla
