// Products of a few rows by one warp, with the second operand straight from global memory into registers: for kernels
// that read a large matrix once, where a way through shared memory would cost more than the products. The sums are
// those of product.cuh, bit for bit: the same instructions on the same depths in the same order, zeros in the rows that
// are not there. Columns may be numbered as one likes, and are so that a lane reads neighbours: lane 4 g + q holds
// columns [kWide g, kWide g + kWide) at the eight depths depth_of(0..7) of a step of kDepth = 32.
#pragma once

#include "mhla/kernels/common/cuda/product.cuh"

namespace mhla::cuda {

inline constexpr int kLaneDepths = 8;  // of kDepth, spread over the four lanes of a group

template <int kWide>
using LaneOperand = float[kLaneDepths][kWide];

// `a` is the first operand in shared memory: row r at r * kPitch, depths from the start of the step on.
template <class A, int kWide>
class Quads;

// What the kinds of tensor-core arithmetic share: 16 rows, column n of tile j is column kWide n + j.
template <int kWide>
class FragmentQuads {
 public:
  static constexpr int kMostRows = 16, kOwn = 2 * kWide;
  // f(row, first column, kOwn values) for what this lane holds of the first `rows` rows.
  template <class F>
  __device__ void visit(int rows, const F& f) const {
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
#pragma unroll
    for (int down = 0; down < 2; ++down) {
      if (g + 8 * down >= rows) continue;
      float x[kOwn];
#pragma unroll
      for (int j = 0; j < kWide; ++j) x[j] = total_[j][2 * down], x[kWide + j] = total_[j][2 * down + 1];
      f(g + 8 * down, 2 * kWide * q, x);
    }
  }

 protected:
  float total_[kWide][4] = {};
};

template <int kWide>
class Quads<Bf16, kWide> : public FragmentQuads<kWide> {
 public:
  __device__ static int depth_of(int j) {
    return j / 4 * 16 + j % 4 / 2 * 8 + 2 * (static_cast<int>(threadIdx.x) % 4) + j % 2;
  }
  template <int kPitch>
  __device__ void add(const bf16* a, int rows, const LaneOperand<kWide>& b) {
    static_assert(kPitch % 2 == 0);
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const auto pair = [&](int row, int k) {
      return row < rows ? *reinterpret_cast<const std::uint32_t*>(a + row * kPitch + k) : 0u;
    };
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int k = 16 * half + 2 * q;
      const std::uint32_t x[4] = {pair(g, k), pair(g + 8, k), pair(g, k + 8), pair(g + 8, k + 8)};
#pragma unroll
      for (int j = 0; j < kWide; ++j) {
        multiply_add(this->total_[j], x, pack_bf16(b[4 * half][j], b[4 * half + 1][j]),
                     pack_bf16(b[4 * half + 2][j], b[4 * half + 3][j]));
      }
    }
  }
};

template <int kWide>
class Quads<Tf32, kWide> : public FragmentQuads<kWide> {
 public:
  __device__ static int depth_of(int j) { return j / 2 * 8 + j % 2 * 4 + static_cast<int>(threadIdx.x) % 4; }
  template <int kPitch>
  __device__ void add(const float* a, int rows, const LaneOperand<kWide>& b) {
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const auto one = [&](int row, int k) { return row < rows ? a[row * kPitch + k] : 0.0f; };
#pragma unroll
    for (int eighth = 0; eighth < 4; ++eighth) {
      const int k = 8 * eighth + q;
      const float x[4] = {one(g, k), one(g + 8, k), one(g, k + 4), one(g + 8, k + 4)};
#pragma unroll
      for (int j = 0; j < kWide; ++j) {
        const float y[2] = {Tf32::operand(b[2 * eighth][j]), Tf32::operand(b[2 * eighth + 1][j])};
        multiply_tf32(this->total_[j], x, y);
      }
    }
  }
};

// One row. A lane of a group runs one of the four chains of 8 of a step; every lane adds them up in their order.
template <int kWide>
class Quads<FullF32, kWide> {
 public:
  static constexpr int kMostRows = 1, kOwn = kWide;
  __device__ static int depth_of(int j) { return 8 * (static_cast<int>(threadIdx.x) % 4) + j; }
  template <int kPitch>
  __device__ void add(const float* a, int /*rows*/, const LaneOperand<kWide>& b) {
    const int lane = threadIdx.x % 32, group = lane / 4 * 4;
    float part[kWide] = {};
#pragma unroll
    for (int j = 0; j < kLaneDepths; ++j) {
      const float x = a[depth_of(j)];
#pragma unroll
      for (int w = 0; w < kWide; ++w) part[w] = fmaf(x, b[j][w], part[w]);
    }
#pragma unroll
    for (int w = 0; w < kWide; ++w) {
      float step = 0;
#pragma unroll
      for (int chain = 0; chain < 4; ++chain) step += lane_value(part[w], group + chain);
      total_[w] += step;
    }
  }
  template <class F>
  __device__ void visit(int /*rows*/, const F& f) const {
    const int lane = threadIdx.x % 32;
    if (lane % 4 == 0) f(0, kWide * (lane / 4), total_);
  }

 private:
  float total_[kWide] = {};
};

}  // namespace mhla::cuda
