// Work on weights in libmhla_weights.so (MHLA_WEIGHTS points elsewhere).
#pragma once

#include <string>
#include <vector>

#include "mhla/io/json.h"

namespace mhla::apps {

class WeightsLibrary {
 public:
  WeightsLibrary();                                                          // opens; check reason()
  [[nodiscard]] const std::string& reason() const { return reason_; }        // empty: found
  [[nodiscard]] std::vector<JsonValue> run(const JsonValue& request) const;  // throws, mhla::Error for mistakes

 private:
  std::string reason_;
  int (*run_)(const char*, void (*)(void*, const char*), void*, char*, std::size_t) = nullptr;
};

}  // namespace mhla::apps
