#include "apps/cli/plugin.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

#include "apps/cli/host.h"
#include "mhla/core/error.h"

namespace mhla::apps {

std::string find_plugin(const char* name, const char* variable, std::string& reason) {
  reason.clear();
  if (const char* chosen = std::getenv(variable); chosen != nullptr && *chosen != 0) {
    if (std::filesystem::exists(chosen)) return chosen;
    reason = str(variable, " points to ", chosen, ", which does not exist");
    return {};
  }
  const std::filesystem::path here = executable_directory();
  for (const std::filesystem::path& place : {here / name, here / ".." / "lib" / name})
    if (std::filesystem::exists(place)) return place.lexically_normal().string();
  reason = str(name, " is neither beside the program nor in ../lib: LibTorch was not found when mhla was built");
  return {};
}

void* open_plugin(const char* name, const char* variable, std::string& reason) {
  const std::string path = find_plugin(name, variable, reason);
  if (!reason.empty()) return nullptr;
  // RTLD_GLOBAL: LibTorch compares type information across its own libraries.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    const char* why = dlerror();
    reason = str(path, " could not be opened: ", why == nullptr ? "no reason given" : why);
  }
  return library;
}

}  // namespace mhla::apps
