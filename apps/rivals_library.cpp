#include "apps/rivals_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "apps/host.h"
#include "mhla/core/error.h"

namespace mhla::apps {

std::string find_rivals_library(std::string& reason) {
  static constexpr const char* kName = "libmhla_rivals.so";
  reason.clear();
  if (const char* chosen = std::getenv("MHLA_RIVALS"); chosen != nullptr && *chosen != 0) {
    if (std::filesystem::exists(chosen)) return chosen;
    reason = str("MHLA_RIVALS points to ", chosen, ", which does not exist");
    return {};
  }
  const std::filesystem::path here = executable_directory();
  for (const std::filesystem::path& place : {here / kName, here / ".." / "lib" / kName})
    if (std::filesystem::exists(place)) return place.lexically_normal().string();
  reason = str(kName, " is neither beside the program nor in ../lib: LibTorch was not found when mhla was built");
  return {};
}

RivalsLibrary::RivalsLibrary() {
  const std::string path = find_rivals_library(reason_);
  if (!reason_.empty()) return;
  // RTLD_GLOBAL: LibTorch compares type information across its own libraries.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    const char* why = dlerror();
    reason_ = str(path, " could not be opened: ", why == nullptr ? "no reason given" : why);
    return;
  }
  auto* interface = reinterpret_cast<int (*)()>(dlsym(library, "mhla_rivals_interface"));
  describe_ = reinterpret_cast<decltype(describe_)>(dlsym(library, "mhla_rivals_describe"));
  time_ = reinterpret_cast<decltype(time_)>(dlsym(library, "mhla_rivals_time"));
  if (interface == nullptr || describe_ == nullptr || time_ == nullptr) {
    reason_ = str(path, " lacks the functions of apps/rivals.h");
  } else if (interface() != MHLA_RIVALS_INTERFACE) {
    reason_ = str(path, " speaks interface ", interface(), ", expected ", MHLA_RIVALS_INTERFACE);
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
