// Threads of ATen. LibTorch has two pools: OpenMP's, and one for quantised operators, which at::set_num_threads() makes
// with a thread for every core before it looks at the number; where these cannot be started it waits for ever. Its size
// is a flag of LibTorch that no header declares.
#pragma once

#include <ATen/Parallel.h>
#include <dlfcn.h>

#include <cstdint>

namespace mhla::ops {

inline void set_torch_threads(int threads) {
  for (const char* name : {"_ZN3fLI22FLAGS_pthreadpool_sizeE", "_ZN3c1022FLAGS_pthreadpool_sizeE"}) {  // gflags, c10
    if (auto* size = static_cast<std::int32_t*>(dlsym(RTLD_DEFAULT, name))) *size = threads;
  }
  at::set_num_threads(threads);
}

}  // namespace mhla::ops
