#include "apps/cli/weights_library.h"

#include <dlfcn.h>

#include "apps/cli/plugin.h"
#include "apps/commands.h"
#include "apps/engine/weights_interface.h"
#include "mhla/core/error.h"

namespace mhla::apps {

WeightsLibrary::WeightsLibrary() {
  constexpr const char* kName = "libmhla_weights.so";
  void* library = open_plugin(kName, "MHLA_WEIGHTS", reason_);
  if (library == nullptr) return;
  auto* interface = reinterpret_cast<int (*)()>(dlsym(library, "mhla_weights_interface"));
  run_ = reinterpret_cast<decltype(run_)>(dlsym(library, "mhla_weights_run"));
  if (interface == nullptr || run_ == nullptr) {
    reason_ = str(kName, " lacks the functions of apps/engine/weights_interface.h");
  } else if (interface() != MHLA_WEIGHTS_INTERFACE) {
    reason_ = str(kName, " speaks interface ", interface(), ", expected ", MHLA_WEIGHTS_INTERFACE);
  }
}

std::vector<JsonValue> WeightsLibrary::run(const JsonValue& request) const {
  if (!reason_.empty()) fail(reason_);
  std::vector<JsonValue> rows;
  const auto take = [](void* context, const char* json) {
    static_cast<std::vector<JsonValue>*>(context)->push_back(parse_json(json, "a row about weights"));
  };
  char reason[16384] = {};
  const int code = run_(write_json(request).c_str(), take, &rows, reason, sizeof reason);
  if (code == kCallersMistake) fail(reason);
  if (code != kDone) throw std::runtime_error(reason);
  return rows;
}

}  // namespace mhla::apps
