// The LibTorch rivals of `bench op`: one optional shared library that is opened when a rival is asked for, since
// LibTorch takes most of a second to start. The interface is plain C, so the two sides may come from different
// compilers. apps/rivals/ implements it.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MHLA_RIVALS_INTERFACE 1

struct mhla_rival_request {
  const char* rival;  // "plain" MHLA by LibTorch operators, "linear" attention, "softmax" attention
  const char* dtype;  // "f32" or "bf16"
  int causal;
  int backward;  // 0: forward; 1: forward and backward through autograd
  int threads;
  int64_t B, N, H, Hkv, D, E;
  int rank;            // of the layout: 1, 2, 3
  int64_t block_size;  // rank 1, and the chunk of the causal form
  int64_t grid[3];     // right-aligned: frames, rows, columns
  int64_t blocks[3];
  int64_t L;                    // rows of mix
  const float* q;               // [B, N, H, D]   relu_eps is applied by the rival, as our kernel does
  const float* k;               // [B, N, Hkv, D]
  const float* v;               // [B, N, Hkv, E]
  const float* mix;             // [L, L]
  const float* dout;            // [B, N, H, E], with backward
  const float* maybe_expected;  // [B, N, H, E]  our output, to hold "plain" to the same mathematics
  double scale;
  double eps;
  double min_seconds;  // time spent on each variant, once warm
  int min_repeats;
};

struct mhla_rival_result {
  double ms;  // median of the fastest variant
  double best_ms;
  double error;       // max |out - expected| / max |expected|; -1 when nothing was expected
  int threads;        // of the fastest variant
  char variant[128];  // its name
  char reason[512];   // why there is no time; empty when there is one
};

// All return 0, or 1 with `reason` filled.
int mhla_rivals_interface(void);                      // MHLA_RIVALS_INTERFACE of the library
void mhla_rivals_describe(char* text, int capacity);  // "LibTorch 1.13.1, BLAS /usr/lib/.../libopenblas.so.0"
int mhla_rivals_time(const struct mhla_rival_request* request, struct mhla_rival_result* result);

#ifdef __cplusplus
}
#endif
