// A checked call as the candidates take it, forward or backward. Private to this folder.
#pragma once

#include <string>

#include "mhla/kernels/common/options.h"
#include "mhla/kernels/rope/rope.h"
// options.h first: candidate.h names Executor
#include "mhla/kernels/common/candidate.h"

namespace mhla {

struct RopeRows {  // rows of channels or of the table: element (b, n, h) begins at data + the sum of index times stride
  void* data = nullptr;
  std::int64_t stride[3] = {};  // of a batch element, a token, a head

  template <class T>
  [[nodiscard]] constexpr T* row(std::int64_t b, std::int64_t n, std::int64_t h = 0) const {
    return static_cast<T*>(data) + b * stride[0] + n * stride[1] + h * stride[2];
  }
};

struct RopePart {          // q or k
  RopeRows from, to;       // the input and the output; backward the gradients of output and input
  RopeRows slope;          // backward: the input, where the map is not the identity
  std::int64_t heads = 0;  // 0: not there
};

struct RopeProblem {
  RopePart part[2];  // q, k
  RopeRows cos, sin;
  std::int64_t B = 0, N = 0, D = 0;
  DType dtype = DType::kF32;
  FeatureMap map = FeatureMap::kIdentity;
  bool halves = true;
  bool backward = false;
  bool aligned =
      false;  // every row begins on 16 bytes and half a row is a multiple of them, lines of the table likewise
  int device = kCpu;
  void* stream = nullptr;

  [[nodiscard]] constexpr std::int64_t heads() const { return part[0].heads + part[1].heads; }
  [[nodiscard]] bool is_f64() const { return dtype == DType::kF64; }
  [[nodiscard]] std::string describe() const;  // "f64 on cuda:0"
};

void rope_ref(const RopeProblem& problem, Workspace& workspace, Executor& executor);
void rope_simd(const RopeProblem& problem, Workspace& workspace, Executor& executor);
void rope_cuda(const RopeProblem& problem, Workspace& workspace, Executor& executor);

}  // namespace mhla
