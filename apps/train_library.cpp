#include "apps/train_library.h"

#include <dlfcn.h>

#include "apps/commands.h"
#include "apps/output.h"
#include "apps/plugin.h"
#include "apps/train_interface.h"
#include "mhla/core/error.h"

namespace mhla::apps {

int run_in_train_library(const JsonValue& request, const RowHandler& handle) {
  constexpr const char* kName = "libmhla_train.so";
  std::string reason;
  void* library = open_plugin(kName, "MHLA_TRAIN", reason);
  if (library == nullptr) fail(reason);
  auto* interface = reinterpret_cast<int (*)()>(dlsym(library, "mhla_train_interface"));
  auto* run = reinterpret_cast<int (*)(const char*, mhla_train_row, void*, char*, std::size_t)>(
      dlsym(library, "mhla_train_run"));
  if (interface == nullptr || run == nullptr) fail(kName, " lacks the functions of apps/train_interface.h");
  if (interface() != MHLA_TRAIN_INTERFACE)
    fail(kName, " speaks interface ", interface(), ", expected ", MHLA_TRAIN_INTERFACE);
  const auto take = [](void* context, int progress, const char* json) {
    (*static_cast<const RowHandler*>(context))(parse_json(json, "a row of the run"), progress != 0);
  };
  RowHandler kept = handle;
  char text[8192] = {};
  const int code = run(write_json(request).c_str(), take, &kept, text, sizeof text);
  if (code != kDone) complain(text);
  return code;
}

}  // namespace mhla::apps
