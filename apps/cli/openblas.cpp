#include "apps/cli/openblas.h"

#include <dlfcn.h>

#include "apps/cli/host.h"
#include "mhla/core/error.h"

namespace mhla::apps {
namespace {

// The C interface of BLAS: order, transposes and sizes are int in the 32-bit build that Debian ships.
using Sgemm = void (*)(int, int, int, int, int, int, float, const float*, int, const float*, int, float, float*, int);
constexpr int kRowMajor = 101, kNoTranspose = 111;

}  // namespace

OpenBlas::OpenBlas() {
  void* library = nullptr;
  bound_library_threads();
  for (const char* name : {"libopenblas.so.0", "libopenblas.so"}) {
    library = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
    if (library != nullptr) break;
  }
  if (library == nullptr) {
    reason_ = "libopenblas.so.0 was not found (Debian package libopenblas0-pthread)";
    return;
  }
  set_threads_ = reinterpret_cast<void (*)(int)>(dlsym(library, "openblas_set_num_threads"));
  sgemm_ = dlsym(library, "cblas_sgemm");
  if (set_threads_ == nullptr || sgemm_ == nullptr) {
    reason_ = "libopenblas.so.0 has no openblas_set_num_threads or cblas_sgemm";
    return;
  }
  Dl_info place{};
  if (dladdr(sgemm_, &place) != 0 && place.dli_fname != nullptr) path_ = place.dli_fname;
  using Text = char* (*)();
  if (auto* config = reinterpret_cast<Text>(dlsym(library, "openblas_get_config"))) config_ = config();
  if (auto* core = reinterpret_cast<Text>(dlsym(library, "openblas_get_corename"))) core_ = core();
}

void OpenBlas::set_threads(int threads) const {
  if (!found()) fail("openblas: ", reason_);
  set_threads_(threads);
}

void OpenBlas::multiply(std::int64_t n, const float* a, const float* b, float* c) const {
  if (!found()) fail("openblas: ", reason_);
  const int size = static_cast<int>(n);
  reinterpret_cast<Sgemm>(sgemm_)(kRowMajor, kNoTranspose, kNoTranspose, size, size, size, 1.0f, a, size, b, size, 0.0f,
                                  c, size);
}

}  // namespace mhla::apps
