// A checked call as the kernels take it.
#pragma once

#include "mhla/core/executor.h"
#include "mhla/kernels/norm/modulated_norm.h"

namespace mhla {

struct ModulatedRows {  // [B, N, X] contiguous, or rows of samples [B, X]
  void* data = nullptr;
  std::int64_t stride = 0;  // from a row to the next
  DType dtype = DType::kF32;
};

struct ModulatedNormJob {
  ModulatedRows x, branch, sum, y;   // y: dout, sum: of dsum in the backward pass
  ModulatedRows gate, scale, shift;  // a row per sample
  ModulatedRows dx, dbranch;
  float* dmodulation = nullptr;  // [B, 3, X]
  float* parts = nullptr;        // [B, parts, 3, X]
  std::int64_t samples = 0, tokens = 0;
  int X = 0;
  float eps = 0;
  void* stream = nullptr;
};

inline constexpr int kModulatedColumns = 5120, kModulatedTokens = 64;  // tokens of a block of threads, of a task

// Sums over the tokens of a sample come in parts, by their number alone.
constexpr std::int64_t modulated_parts(std::int64_t tokens) {
  return (tokens + kModulatedTokens - 1) / kModulatedTokens;
}

void modulated_norm_cuda(const ModulatedNormJob& job);
void modulated_norm_backward_cuda(const ModulatedNormJob& job);
void modulated_norm_simd(const ModulatedNormJob& job, Executor& executor);
void modulated_norm_backward_simd(const ModulatedNormJob& job, Executor& executor);

}  // namespace mhla
