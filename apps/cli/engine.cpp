#include "apps/cli/engine.h"

#include <dlfcn.h>
#include <malloc.h>

#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <stdexcept>

#include "apps/cli/host.h"
#include "apps/commands.h"
#include "mhla/core/error.h"

namespace mhla::apps {
namespace {

constexpr const char *kName = "libmhla_engine.so", *kVariable = "MHLA_ENGINE";

// By default the idle workers of one pool keep a core busy for milliseconds that another could use, and large tensors
// go back to the system with every operator: with this a training step of deit_tiny took 0.60 s on two cores, without
// 1.62. What the user has set stays. To be called before the libraries are loaded: they read it then.
void share_the_machine() {
  setenv("OMP_WAIT_POLICY", "passive", /*overwrite=*/0);
  setenv("GOMP_SPINCOUNT", "2000", /*overwrite=*/0);         // some 10 us, as the kernels' workers wait
  setenv("OPENBLAS_THREAD_TIMEOUT", "14", /*overwrite=*/0);  // 2^14 cycles instead of 2^26
#ifdef __GLIBC__
  constexpr int kLargest = 32 << 20;  // that glibc allows: tensors up to this stay with the process
  mallopt(M_MMAP_THRESHOLD, kLargest);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
  mallopt(M_TOP_PAD, 2 * kLargest);
#endif
}

const Engine* open_once(std::string& reason, Cores cores) {
  const std::string path = find_engine(reason);
  if (!reason.empty()) return nullptr;
  if (cores == Cores::kShared) share_the_machine();
  bound_library_threads();
  // RTLD_GLOBAL: LibTorch compares type information across its own libraries.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    const char* why = dlerror();
    reason = str(path, " could not be opened: ", why == nullptr ? "no reason given" : why);
    return nullptr;
  }
  auto* table = reinterpret_cast<decltype(&mhla_engine)>(dlsym(library, "mhla_engine"));
  const Engine* engine = table == nullptr ? nullptr : table();
  if (engine == nullptr) {
    reason = str(path, " has no function mhla_engine, expected the library of this program");
  } else if (std::strcmp(engine->build, kEngineBuild) != 0) {
    reason = str(path, " is of ", engine->build, ", expected ", kEngineBuild);
  } else if (engine->layout != engine_layout()) {
    reason = str(path, " is of another build than this program, expected one of the same");
  }
  return reason.empty() ? engine : nullptr;
}

}  // namespace

std::string find_engine(std::string& reason) {
  reason.clear();
  if (const char* chosen = std::getenv(kVariable); chosen != nullptr && *chosen != 0) {
    if (std::filesystem::exists(chosen)) return chosen;
    reason = str(kVariable, " points to ", chosen, ", which does not exist");
    return {};
  }
  const std::filesystem::path here = executable_directory(), lib = (here / ".." / "lib").lexically_normal();
  for (const std::filesystem::path& place : {here / kName, lib / kName})
    if (std::filesystem::exists(place)) return place.string();
  reason = str(kName, " was not found in ", here.string(), " or ", lib.string(),
               ". If the program was copied, copy its lib folder beside its bin folder, or set ", kVariable,
               " to the path of the library; if it was built without LibTorch, build it again with LibTorch installed");
  return {};
}

const Engine* open_engine(std::string& reason, Cores cores) {
  static std::string why;
  static const Engine* const engine = open_once(why, cores);
  reason = why;
  return engine;
}

const Engine& open_engine() {
  std::string reason;
  const Engine* engine = open_engine(reason);
  if (engine == nullptr) fail(reason);
  return *engine;
}

void expect_done(const Outcome& outcome) {
  if (outcome.code == kCallersMistake) fail(outcome.reason);
  if (outcome.code != kDone) throw std::runtime_error(outcome.reason);
}

bool said_warning(const JsonValue& row) {
  const JsonValue* kind = row.find("kind");
  if (kind == nullptr || kind->as_string() != "warning") return false;
  complain(row.at("text").as_string());
  return true;
}

}  // namespace mhla::apps
