// The second exception type of the library.
#pragma once

#include <stdexcept>

namespace mhla {

// The work failed while it ran, by no mistake of the caller: a full disk, a folder that went away, a loss that is NaN.
// Programs end with exit code 1; after an Error, the caller's mistake, with 2.
class RunFailed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace mhla
