// One of the LibTorch rivals of `mhla bench op`, to be timed on the inputs that our own kernel had. Memory is borrowed
// from the caller.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace mhla::apps {

struct RivalRequest {
  std::string rival;  // "plain" MHLA by LibTorch operators, "linear" attention, "softmax" attention
  std::string dtype;  // "f32" or "bf16"
  bool causal = false;
  bool backward = false;  // forward and backward through autograd
  int threads = 1;
  std::int64_t B = 0, N = 0, H = 0, Hkv = 0, D = 0, E = 0;
  int rank = 0;                                  // of the layout: 1, 2, 3
  std::int64_t block_size = 0;                   // rank 1, and the chunk of the causal form
  std::array<std::int64_t, 3> grid{}, blocks{};  // right-aligned: frames, rows, columns
  std::int64_t L = 0;                            // rows of mix
  const float* q = nullptr;                      // [B, N, H, D]   relu_eps is applied by the rival, as our kernel does
  const float* k = nullptr;                      // [B, N, Hkv, D]
  const float* v = nullptr;                      // [B, N, Hkv, E]
  const float* mix = nullptr;                    // [L, L]
  const float* dout = nullptr;                   // [B, N, H, E], with backward
  const float* maybe_expected = nullptr;         // [B, N, H, E]  our output, to hold "plain" to the same mathematics
  double scale = 1.0;
  double eps = 1e-6;
  double min_seconds = 0.5;  // time spent on each variant, once warm
  int min_repeats = 3;
};

struct RivalResult {
  double ms = 0;  // median of the fastest variant
  double best_ms = 0;
  double error = -1;    // max |out - expected| / max |expected|; -1 when nothing was expected
  int threads = 0;      // of the fastest variant
  std::string variant;  // its name
};

}  // namespace mhla::apps
