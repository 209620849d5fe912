// What libmhla_golden.so offers: golden cases of whole modules, recomputed through mhla/modules. It is opened when a
// case needs it, so that mhla itself starts without LibTorch. Plain C, every tensor f64 and contiguous.
#pragma once

#include <stddef.h>
#include <stdint.h>

#define MHLA_GOLDEN_INTERFACE 1

#ifdef __cplusplus
extern "C" {
#endif

struct mhla_golden_tensor {
  const char* name;  // as in the file, without "<case>/"
  const double* data;
  int rank;
  const int64_t* shape;
};

// Everything but the expected values: in.*, param.* and dout where the case has gradients.
struct mhla_golden_request {
  const char* family;   // name_of(GoldenFamily)
  const char* config;   // JSON
  const char* backend;  // "simd": f32 on the CPU, "ref": f64 on the CPU, "cuda": f32 on device 0
  int count;
  const struct mhla_golden_tensor* tensors;
};

typedef void (*mhla_golden_result)(void* context, const struct mhla_golden_tensor* tensor);

int mhla_golden_interface(void);
int mhla_golden_can(const char* backend);  // whether this LibTorch can run it
// Calls `result` for out, init.mixing and every gradient. 0, or 1 with `reason` filled in.
int mhla_golden_compute(const struct mhla_golden_request* request, mhla_golden_result result, void* context,
                        char* reason, size_t reason_size);

#ifdef __cplusplus
}
#endif
