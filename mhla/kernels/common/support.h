// Who can compute a problem, as data: every candidate of an operation, fastest first, with its reason where it cannot.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "mhla/core/error.h"

namespace mhla {

struct Support {
  std::string name;        // "sm90", "sm80", "cuda", "simd", "ref"
  bool on_device = false;  // works on the memory of a CUDA device, otherwise on the host's
  std::string reason;      // empty: takes the problem; else why not
};

// No candidate takes the problem, or none has the name that was asked for.
class NoCandidate : public Error {
 public:
  NoCandidate(const std::string& message, std::vector<Support> asked) : Error(message), asked_(std::move(asked)) {}
  [[nodiscard]] const std::vector<Support>& asked() const { return asked_; }  // empty: the name is unknown

 private:
  std::vector<Support> asked_;
};

}  // namespace mhla
