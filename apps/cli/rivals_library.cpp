#include "apps/cli/rivals_library.h"

#include <dlfcn.h>

#include <cstring>

#include "apps/cli/plugin.h"
#include "mhla/core/error.h"

namespace mhla::apps {

namespace {

constexpr const char *kName = "libmhla_rivals.so", *kVariable = "MHLA_RIVALS";

}  // namespace

std::string find_rivals_library(std::string& reason) { return find_plugin(kName, kVariable, reason); }

RivalsLibrary::RivalsLibrary() {
  void* library = open_plugin(kName, kVariable, reason_);
  if (library == nullptr) return;
  auto* interface = reinterpret_cast<int (*)()>(dlsym(library, "mhla_rivals_interface"));
  describe_ = reinterpret_cast<decltype(describe_)>(dlsym(library, "mhla_rivals_describe"));
  time_ = reinterpret_cast<decltype(time_)>(dlsym(library, "mhla_rivals_time"));
  if (interface == nullptr || describe_ == nullptr || time_ == nullptr) {
    reason_ = str(kName, " lacks the functions of apps/engine/rivals.h");
  } else if (interface() != MHLA_RIVALS_INTERFACE) {
    reason_ = str(kName, " speaks interface ", interface(), ", expected ", MHLA_RIVALS_INTERFACE);
  }
}

std::string RivalsLibrary::describe() const {
  if (!found()) return reason_;
  char text[1024] = {};
  describe_(text, sizeof text);
  return text;
}

mhla_rival_result RivalsLibrary::time(const mhla_rival_request& request) const {
  mhla_rival_result result{};
  if (found()) {
    time_(&request, &result);
  } else {
    std::strncpy(result.reason, reason_.c_str(), sizeof result.reason - 1);
  }
  return result;
}

}  // namespace mhla::apps
