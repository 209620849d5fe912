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
  const std::filesystem::path here = executable_directory(), lib = (here / ".." / "lib").lexically_normal();
  for (const std::filesystem::path& place : {here / name, lib / name})
    if (std::filesystem::exists(place)) return place.string();
  reason = str(name, " was not found in ", here.string(), " or ", lib.string(),
               ". If the program was copied, copy its lib folder beside its bin folder, or set ", variable,
               " to the path of the library; if it was built without LibTorch, build it again with LibTorch installed");
  return {};
}

void* open_plugin(const char* name, const char* variable, std::string& reason) {
  const std::string path = find_plugin(name, variable, reason);
  if (!reason.empty()) return nullptr;
  bound_library_threads();
  // RTLD_GLOBAL: LibTorch compares type information across its own libraries.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    const char* why = dlerror();
    reason = str(path, " could not be opened: ", why == nullptr ? "no reason given" : why);
  }
  return library;
}

}  // namespace mhla::apps
