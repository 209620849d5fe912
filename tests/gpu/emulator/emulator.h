// Runs CUDA kernels on the CPU, thread by thread: enough of the language for kernels/common/cuda. Found before the
// real headers (-I), it lets a plain C++ compiler build the .cu files. Each thread of a block is a fiber with a stack
// of its own; a fiber runs until it meets the others at a barrier of its block or warp. Blocks run one after the
// other, in an order a test can turn round: kernels must not notice.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#define __global__
#define __device__
#define __host__
#define __shared__ static  // one block at a time
#define __grid_constant__
#define __launch_bounds__(...)

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
struct alignas(16) float4 {
  float x, y, z, w;
};

namespace emulator {

enum class Order { kForward, kBackward, kShuffled };

struct Thread {
  dim3 threadIdx, blockIdx, gridDim;
};
extern Thread current;
extern Order order;  // of the threads of a block, and of blocks; MHLA_EMULATOR_ORDER sets it

// Runs `body` in every thread of a grid.
void run(dim3 grid, int threads, void (*body)(const void* job), const void* job);

bool block_barrier(bool value);                            // true when it was true in every thread
const float* warp_exchange(const float* mine, int count);  // of all 32 lanes: [lane * count]

}  // namespace emulator

#define threadIdx (emulator::current.threadIdx)
#define blockIdx (emulator::current.blockIdx)
#define gridDim (emulator::current.gridDim)

inline void __syncthreads() { emulator::block_barrier(true); }
inline bool __syncthreads_and(bool value) { return emulator::block_barrier(value); }
inline int min(int a, int b) { return a < b ? a : b; }
using std::isfinite;
