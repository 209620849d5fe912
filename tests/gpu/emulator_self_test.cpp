// What the emulator is for: mistakes that a kernel can make on a GPU and often get away with.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "mhla/kernels/common/cuda/intrinsics.cuh"
#include "mhla/kernels/common/cuda/sm90_barriers.cuh"
#include "mhla/kernels/common/cuda/sm90_clusters.cuh"
#include "mhla/kernels/common/cuda/warpgroup_narrow.cuh"
#include "mhla/testing/messages.h"
#include "tests/gpu/emulator/previous.h"

namespace mhla::sm90 {
namespace {

using namespace mhla::cuda;  // NOLINT(google-build-using-namespace)

template <class... P, class... A>
void launch(void (*kernel)(P...), int threads, std::size_t bytes, const A&... arguments) {
  cudaLaunchConfig_t config{};
  config.blockDim = dim3(static_cast<unsigned>(threads)), config.dynamicSmemBytes = bytes;
  cudaLaunchKernelEx(&config, kernel, P(arguments)...);
}

__global__ void copy_kernel(const float* from, float* to, bool waits) {
  extern __shared__ __align__(1024) char memory[];
  auto* const place = reinterpret_cast<float*>(memory) + threadIdx.x * 4;
  copy16(shared_address(place), from + threadIdx.x * 4, threadIdx.x != 1);
  copy_commit();
  if (waits) copy_wait<0>();
  to[threadIdx.x] = place[3];
}

TEST(Emulator, CopiesArriveWhenWaitedFor) {
  const std::vector<float> from(128, 2.5f);
  std::vector<float> to(32);
  launch(copy_kernel, 32, 512, from.data(), to.data(), true);
  EXPECT_EQ(to[0], 2.5f);
  EXPECT_EQ(to[1], 0.0f);
  launch(copy_kernel, 32, 512, from.data(), to.data(), false);
  EXPECT_TRUE(std::isnan(to[0]));
  const std::string wrong = message_of([&] { launch(copy_kernel, 32, 256, from.data(), to.data(), true); });
  EXPECT_TRUE(has(wrong, "thread 16: cp.async: 16 bytes at 256 of 256 bytes of shared memory")) << wrong;
}

// c = A B^T, or A B with rows of B as they lie, by one warpgroup; 64 x 64 values each.
__global__ void square_kernel(const std::uint16_t* from, float* to, bool transposed, bool waits) {
  extern __shared__ __align__(1024) char memory[];
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < 2 * 64 * 8; i += 128) {
    const int panel = i / 512, row = i / 8 % 64, c = i % 8;
    copy16(shared_address(memory) + panel * 8192 + panel_offset(row, c), from + i * 8, true);
  }
  copy_commit();
  copy_wait<0>();
  publish_shared();
  __syncthreads();
  Accumulator acc;
  const std::uint64_t a = panel_descriptor(shared_address(memory)), b = panel_descriptor(shared_address(memory + 8192));
  warpgroup_begin();
  for (int step = 0; step < 4; ++step) {
    if (transposed) {
      multiply_panel_by_rows(acc, a + step * kNextColumns, b + step * kNextRows, step > 0);
    } else {
      multiply_panels(acc, a + step * kNextColumns, b + step * kNextColumns, step > 0);
    }
  }
  warpgroup_commit();
  if (waits) warpgroup_wait<0>();
  for (int j = 0; j < 8; ++j) {
    for (int e = 0; e < 4; ++e)
      to[(thread / 32 * 16 + thread % 32 / 4 + e / 2 * 8) * 64 + j * 8 + thread % 4 * 2 + e % 2] = acc[j][e];
  }
}

TEST(Emulator, ProductsOfAWarpgroup) {
  std::vector<std::uint16_t> from(2 * 64 * 64);
  const auto value = [](int i) { return static_cast<float>(i * 7 % 13 - 6); };
  for (int i = 0; i < 2 * 64 * 64; ++i) from[static_cast<std::size_t>(i)] = to_bf16(value(i)).bits;
  std::vector<float> to(64 * 64);
  for (const bool transposed : {false, true}) {
    launch(square_kernel, 128, 16384, from.data(), to.data(), transposed, true);
    for (int row = 0; row < 64; ++row) {
      for (int column = 0; column < 64; ++column) {
        float want = 0;
        for (int k = 0; k < 64; ++k)
          want += value(row * 64 + k) * value(4096 + (transposed ? k * 64 + column : column * 64 + k));
        ASSERT_EQ(to[static_cast<std::size_t>(row * 64 + column)], want) << row << ", " << column;
      }
    }
  }
  launch(square_kernel, 128, 16384, from.data(), to.data(), false, false);
  EXPECT_TRUE(std::isnan(to[0]));
}

__global__ void wait_kernel(int arrivals) {
  extern __shared__ __align__(1024) char memory[];
  const std::uint32_t barrier = shared_address(memory);
  if (threadIdx.x == 0) barrier_init(barrier, 33);
  __syncthreads();
  if (static_cast<int>(threadIdx.x) < arrivals) barrier_arrive(barrier);
  if (threadIdx.x >= 32) barrier_wait(barrier, 0);
}

TEST(Emulator, SaysWhoWaitsForWhat) {
  launch(wait_kernel, 64, 8, 33);
  const std::string wrong = message_of([] { launch(wait_kernel, 64, 8, 32); });
  EXPECT_TRUE(has(wrong, "threads 32 to 63: mbarrier at 0, parity 0")) << wrong;
  EXPECT_TRUE(has(wrong, "1 of 33 arrivals and 0 bytes are missing")) << wrong;
  launch(wait_kernel, 64, 8, 33);  // what went wrong before is forgotten
}

__global__ void early_kernel(const float* from, float* to, bool reads_early, bool writes_early) {
  const float before = from[threadIdx.x];
  if (writes_early && threadIdx.x == 3) to[3] = 1;
  wait_for_previous();
  to[threadIdx.x] = reads_early ? before : from[threadIdx.x];
}

TEST(Emulator, ThePreviousKernelEndsWhenWaitedFor) {
  std::vector<float> from(32, 2.5f), to(32);
  const emulator::PreviousKernel previous(
      {std::as_writable_bytes(std::span(from)), std::as_writable_bytes(std::span(to))});
  launch(early_kernel, 32, 0, from.data(), to.data(), false, false);
  EXPECT_EQ(to[7], 2.5f);
  launch(early_kernel, 32, 0, from.data(), to.data(), true, false);
  EXPECT_TRUE(std::isnan(to[7]));
  const std::string wrong = message_of([&] { launch(early_kernel, 32, 0, from.data(), to.data(), false, true); });
  EXPECT_TRUE(has(wrong, "written before wait_for_previous(): byte 12 of memory 1")) << wrong;
}

enum class Exchange { kRight, kNotAwaited, kToOneThatEnded, kTooFew };

// Two blocks; the first one sends four numbers to the second.
__global__ void exchange_kernel(float* to, Exchange how) {
  extern __shared__ __align__(1024) char memory[];
  const std::uint32_t place = shared_address(memory), barrier = place + 16;
  const int rank = cluster_rank();
  if (threadIdx.x == 0) {
    barrier_init(barrier, 1);
    barrier_expect(barrier, rank == 1 && how != Exchange::kTooFew ? 16 : 32);
  }
  cluster_arrive();
  cluster_wait();
  if (rank == 0 && threadIdx.x == 5)
    send_to_block(address_in_block(place, 1), 1, 2, 3, 4, address_in_block(barrier, 1));
  if (rank == 0 || how == Exchange::kToOneThatEnded) return;
  if (how != Exchange::kNotAwaited) barrier_wait(barrier, 0);
  to[threadIdx.x] = reinterpret_cast<const float*>(memory)[threadIdx.x % 4];
  if (how == Exchange::kNotAwaited) barrier_wait(barrier, 0);
}

void launch_exchange(std::vector<float>& to, Exchange how) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension, attribute.val.clusterDim = {1, 2, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(3, 2), config.blockDim = dim3(128), config.dynamicSmemBytes = 32;
  config.attrs = &attribute, config.numAttrs = 1;
  cudaLaunchKernelEx(&config, exchange_kernel, to.data(), how);
}

TEST(Emulator, BlocksOfAClusterSendToEachOther) {
  std::vector<float> to(128);
  launch_exchange(to, Exchange::kRight);
  EXPECT_EQ(to[6], 3);
  launch_exchange(to, Exchange::kNotAwaited);
  EXPECT_TRUE(std::isnan(to[6]));
  const std::string ended = message_of([&] { launch_exchange(to, Exchange::kToOneThatEnded); });
  EXPECT_TRUE(has(ended, "st.async: block 1 of the cluster has ended")) << ended;
  const std::string missing = message_of([&] { launch_exchange(to, Exchange::kTooFew); });
  EXPECT_TRUE(has(missing, "0 of 1 arrivals and 16 bytes are missing")) << missing;
}

__global__ void divergent_kernel() {
  if (threadIdx.x == 3) {
    __syncwarp();
  } else {
    __shfl_sync(0xffffffffu, 1, 0);
  }
}

TEST(Emulator, LanesOfAWarpStayTogether) {
  const std::string wrong = message_of([] { launch(divergent_kernel, 32, 0); });
  EXPECT_TRUE(has(wrong, "thread 3: __syncwarp, other lanes of its warp are at __shfl_sync")) << wrong;
}

__global__ void past_end_kernel() {
  extern __shared__ __align__(1024) char memory[];
  memory[64 + threadIdx.x] = 0;
}

TEST(Emulator, SeesWritesBehindSharedMemory) {
  launch(past_end_kernel, 32, 96);
  const std::string wrong = message_of([] { launch(past_end_kernel, 32, 80); });
  EXPECT_TRUE(has(wrong, "behind the end of shared memory: byte 80 of 80")) << wrong;
}

}  // namespace
}  // namespace mhla::sm90
