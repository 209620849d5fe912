// Runs CUDA kernels on the CPU, thread by thread: enough of the language and of the instructions for the kernels of
// both forms, Hopper's included. Headers of this folder are found before the real ones (-I), so a plain C++ compiler
// builds the .cu files. Each thread of a block is a fiber with a stack of its own; it runs until it has to wait for
// others. Blocks run one after the other, those of a cluster together.
//   fibers.cpp    threads, the barriers of blocks and warps, who waits for what when nobody can go on
//   shared.h      shared memory and its addresses of 32 bits      mbarriers.cpp  barriers in shared memory
//   clusters.h    blocks of a cluster
//   previous.h    what a kernel that starts early must wait for
//   copies.cpp    cp.async and boxes of a tensor map              products.cpp   ldmatrix, stmatrix, mma, wgmma
// What the hardware leaves open is set by variables of the environment; kernels must not notice:
//   MHLA_EMULATOR_ORDER   forward | backward | shuffled   order of threads and of blocks
//       forward: all warps of a block step by step; backward: each as far as it can go, then the one before it;
//       shuffled: some warps of all blocks of a cluster whenever they can go on, before the others
//   MHLA_EMULATOR_COPIES  late | early    late: a copy arrives when somebody waits for it; its place is NaN until then
//   MHLA_EMULATOR_SUMS    late | early    when a wgmma reads shared memory: when somebody waits for it, or at once
//   MHLA_EMULATOR_BLOCKS  multiprocessors, so blocks of a persistent kernel: 2
//   MHLA_EMULATOR_TRACE   1: a line per launch (names of kernels: link with -rdynamic)
// What is wrong is thrown as std::runtime_error from the launch: a deadlock, an address outside of the shared memory
// that the launch asked for, lanes of a warp at different instructions. Sums of a wgmma are NaN until they were waited
// for, shared memory is NaN until it is written.
//
// One kernel alone, in a file mine.cpp (a .cu by `-x c++`) anywhere:
//
//   #include <cstdio>
//   #include <vector>
//   #include "mhla/kernels/common/cuda/sm90_ring.cuh"   // whatever the kernel needs
//
//   namespace mhla::sm90 {
//   __global__ void twice_kernel(const float* x, float* y) {
//     extern __shared__ __align__(1024) char memory[];  // this name or shared, unaligned, kept; others: shared.cpp
//     auto* const place = reinterpret_cast<float*>(memory) + threadIdx.x * 4;
//     copy16(shared_address(place), x + threadIdx.x * 4, true);
//     copy_commit();
//     copy_wait<0>();  // without it: NaN
//     for (int i = 0; i < 4; ++i) y[threadIdx.x * 4 + i] = 2 * place[i];
//   }
//   }  // namespace mhla::sm90
//
//   int main() {
//     std::vector<float> x(512, 1.5f), y(512);
//     // As a pass does it: launch_next("twice", kernel, grid, threads, bytes of shared memory, stream, arguments...)
//     mhla::sm80::launch_next("twice", mhla::sm90::twice_kernel, dim3(1), 128, 2048, nullptr, x.data(), y.data());
//     std::printf("%g %g\n", y[0], y[511]);
//   }
//
//   tests/gpu/emulate.sh mine.cpp && build/emulate/mine
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "tests/gpu/emulator/language.h"

namespace emulator {

enum class Order { kForward, kBackward, kShuffled };

extern Order order;
extern bool late_copies, late_sums;
extern int multiprocessors;

// Runs `body` in every thread of a grid, `shared_bytes` of dynamic shared memory each block; `cluster` blocks together.
void run(dim3 grid, dim3 block, dim3 cluster, std::size_t shared_bytes, void (*body)(const void* job), const void* job,
         const char* name = "kernel");

const char* kernel_name(void* kernel);  // as far as the linker tells

// Ends the launch with an error. Does not return.
[[noreturn]] void wrong(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Threads that meet at barrier `id`, `count` of them, or 0: all of the block that have not ended. Returns whether
// `value` was true for all.
bool block_barrier(bool value, int id = 0, int count = 0);

// All lanes of a warp meet; the last one does `work` on what each of them brought.
using Work = void (*)(void* const (&lanes)[32]);
void warp_meet(const char* what, void* mine, Work work);

}  // namespace emulator

#include "tests/gpu/emulator/warps.h"
