// Finds and opens libmhla_rivals.so: beside the program, in ../lib next to it, or where MHLA_RIVALS points.
#pragma once

#include <string>

#include "apps/engine/rivals.h"

namespace mhla::apps {

// Where the library lies, or an empty string with `reason` filled. Opens nothing.
std::string find_rivals_library(std::string& reason);

class RivalsLibrary {
 public:
  RivalsLibrary();  // opens; check reason()
  [[nodiscard]] bool found() const { return reason_.empty(); }
  [[nodiscard]] const std::string& reason() const { return reason_; }
  [[nodiscard]] std::string describe() const;
  [[nodiscard]] mhla_rival_result time(const mhla_rival_request& request) const;

 private:
  std::string reason_;
  void (*describe_)(char*, int) = nullptr;
  int (*time_)(const mhla_rival_request*, mhla_rival_result*) = nullptr;
};

}  // namespace mhla::apps
