#include "apps/cli/train_library.h"

#include <dlfcn.h>
#include <malloc.h>

#include <climits>
#include <cstdlib>

#include "apps/cli/output.h"
#include "apps/cli/plugin.h"
#include "apps/commands.h"
#include "apps/engine/train_interface.h"
#include "mhla/core/error.h"

namespace mhla::apps {
namespace {

// LibTorch, OpenBLAS and the kernels have a pool of threads each. By default the idle workers of one keep a core busy
// for milliseconds that another could use, and large tensors go back to the system with every operator: with this a
// training step of deit_tiny took 0.60 s on two cores, without 1.62. What the user has set stays. To be called before
// the libraries are loaded: they read it then.
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

}  // namespace

int run_in_train_library(const JsonValue& request, const RowHandler& handle) {
  constexpr const char* kName = "libmhla_train.so";
  std::string reason;
  share_the_machine();
  void* library = open_plugin(kName, "MHLA_TRAIN", reason);
  if (library == nullptr) fail(reason);
  auto* interface = reinterpret_cast<int (*)()>(dlsym(library, "mhla_train_interface"));
  auto* run = reinterpret_cast<int (*)(const char*, mhla_train_row, void*, char*, std::size_t)>(
      dlsym(library, "mhla_train_run"));
  if (interface == nullptr || run == nullptr) fail(kName, " lacks the functions of apps/engine/train_interface.h");
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
