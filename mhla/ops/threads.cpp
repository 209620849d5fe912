// One number of threads for three pools. ATen may start with one thread, OpenBLAS and the kernels with all.
#include "mhla/core/threads.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>

#include "mhla/core/limits.h"
#include "mhla/ops/ops.h"
#include "mhla/ops/torch.h"
#include "mhla/ops/torch_pool.h"

namespace mhla::ops {
namespace {

// OMP_NUM_THREADS is how launchers say that several processes share the machine.
int environment_threads() {
  const char* value = std::getenv("OMP_NUM_THREADS");
  return value == nullptr ? 0 : std::max(0, std::atoi(value));
}

const bool started = [] {
  if (const int threads = environment_threads(); threads > 0)
    set_default_threads(std::min(threads, hardware_threads()));
  return true;
}();

void set_from_python(std::int64_t threads) {
  if (const ThreadCount count = set_num_threads(threads); !count.fewer.empty()) TORCH_WARN(count.fewer);
}

TORCH_LIBRARY_FRAGMENT(mhla, m) {
  m.def("set_num_threads(int threads) -> ()", set_from_python);
  m.def("num_threads() -> int", num_threads);
}

}  // namespace

ThreadCount set_num_threads(std::int64_t threads) {
  (void)started;
  expect_within("set_num_threads", "threads", threads, limits::kThreads);
  const ThreadCount count =
      usable_threads(threads > 0 ? threads : std::min<std::int64_t>(environment_threads(), limits::kThreads.most));
  set_default_threads(count.threads);
  set_torch_threads(count.threads);
  if (void* openblas = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_NOLOAD)) {  // only where LibTorch brought it
    using Setter = void (*)(int);
    if (const auto set = reinterpret_cast<Setter>(dlsym(openblas, "openblas_set_num_threads"))) set(count.threads);
    dlclose(openblas);
  }
  return count;
}

std::int64_t num_threads() { return default_threads(); }

}  // namespace mhla::ops
