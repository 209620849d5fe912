// Golden cases of whole modules, recomputed by libmhla_golden.so (MHLA_GOLDEN points elsewhere).
#pragma once

#include <map>
#include <string>

#include "apps/engine/golden_modules.h"
#include "mhla/testing/tensor.h"

namespace mhla::apps {

class GoldenLibrary {
 public:
  GoldenLibrary();                                                     // opens; check reason()
  [[nodiscard]] const std::string& reason() const { return reason_; }  // empty: found
  [[nodiscard]] bool can(const std::string& backend) const { return reason_.empty() && can_(backend.c_str()) != 0; }
  // Results by name, f64. `inputs` are f64; throws mhla::Error with the library's reason.
  [[nodiscard]] std::map<std::string, Tensor> compute(const std::string& family, const std::string& config,
                                                      const std::string& backend,
                                                      const std::map<std::string, Tensor>& inputs) const;

 private:
  std::string reason_;
  int (*can_)(const char*) = nullptr;
  int (*compute_)(const mhla_golden_request*, mhla_golden_result, void*, char*, std::size_t) = nullptr;
};

}  // namespace mhla::apps
