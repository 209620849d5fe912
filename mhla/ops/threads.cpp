// One number of threads for three pools. ATen may start with one thread, OpenBLAS and the kernels with all.
#include "mhla/core/threads.h"

#include <dlfcn.h>

#include <cstdlib>

#include "mhla/core/error.h"
#include "mhla/ops/ops.h"
#include "mhla/ops/torch.h"

namespace mhla::ops {
namespace {

// OMP_NUM_THREADS is how launchers say that several processes share the machine.
const bool started = [] {
  const char* value = std::getenv("OMP_NUM_THREADS");
  const int threads = value == nullptr ? 0 : std::atoi(value);
  if (threads > 0) set_default_threads(threads);
  return true;
}();

TORCH_LIBRARY_FRAGMENT(mhla, m) {
  m.def("set_num_threads(int threads) -> ()", set_num_threads);
  m.def("num_threads() -> int", num_threads);
}

}  // namespace

void set_num_threads(std::int64_t threads) {
  (void)started;
  if (threads < 1 || threads > 1024) fail("set_num_threads: threads is ", threads, ", expected 1 to 1024");
  const int count = static_cast<int>(threads);
  set_default_threads(count);
  at::set_num_threads(count);
  if (void* openblas = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_NOLOAD)) {  // only where LibTorch brought it
    using Setter = void (*)(int);
    if (const auto set = reinterpret_cast<Setter>(dlsym(openblas, "openblas_set_num_threads"))) set(count);
    dlclose(openblas);
  }
}

std::int64_t num_threads() { return default_threads(); }

}  // namespace mhla::ops
