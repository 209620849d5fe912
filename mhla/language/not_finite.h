// NaN or infinite values where numbers were expected, as damaged or overflowing weights give: no mistake of the
// caller's, hence no mhla::Error.
#pragma once

#include <stdexcept>

namespace mhla {

class NotFinite : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace mhla
