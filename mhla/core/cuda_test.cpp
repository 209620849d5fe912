// cuda.h with and without a device: what is missing is said in words, and where a device is, memory, copies, streams,
// times and graphs do what they promise.
#include "mhla/core/cuda.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "mhla/core/device_graph.h"
#include "mhla/core/error.h"

namespace mhla {
namespace {

TEST(Cuda, EitherADeviceOrAReason) {
  EXPECT_EQ(cuda_device_count() == 0, !cuda_missing().empty()) << cuda_missing();
  EXPECT_EQ(cuda_missing() == "built without CUDA", !cuda_built());
}

TEST(Cuda, WithoutADeviceEveryCallSaysWhy) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "there is a device: " << device_facts(0).name;
  char byte = 0;
  EXPECT_THROW(device_facts(0), Error);
  EXPECT_THROW(DeviceGuard{0}, Error);
  EXPECT_THROW(DeviceBuffer(8, 0), Error);
  EXPECT_THROW(device_copy(&byte, &byte, 1, 0), Error);
  EXPECT_THROW(device_fill(&byte, 0, 1, 0), Error);
  EXPECT_THROW(device_synchronize(0), Error);
  EXPECT_THROW(DeviceStream(0), Error);
  EXPECT_THROW(DeviceTimer(0), Error);
  EXPECT_THROW(DeviceGraph(0, nullptr, [] {}), Error);
  try {
    const DeviceBuffer buffer(8, 0);
  } catch (const Error& error) {
    EXPECT_GT(std::string(error.what()).size(), 20u) << error.what();
  }
}

TEST(Cuda, HostMemoryNeedsNoDevice) {
  EXPECT_NO_THROW(DeviceGuard{kCpu});
  DeviceBuffer empty;
  const DeviceBuffer moved = std::move(empty);
  EXPECT_EQ(moved.data(), nullptr);
  EXPECT_TRUE(moved.bytes().empty());
  device_free(nullptr, 0, nullptr);
}

class CudaDevice : public testing::Test {
 protected:
  void SetUp() override {
    if (!cuda_missing().empty()) GTEST_SKIP() << cuda_missing();
  }
};

TEST_F(CudaDevice, FactsAreThere) {
  const DeviceFacts facts = device_facts(0);
  EXPECT_FALSE(facts.name.empty());
  EXPECT_GE(facts.major, 5);
  EXPECT_GT(facts.multiprocessors, 0);
  EXPECT_GT(facts.memory_bytes, 0);
  EXPECT_GT(facts.l2_bytes, 0);
  EXPECT_GE(facts.shared_bytes_per_block, 48 << 10);
  EXPECT_GE(facts.driver_version, facts.runtime_version / 1000 * 1000);
  EXPECT_LE(device_free_bytes(0), facts.memory_bytes);
  EXPECT_THROW(device_facts(cuda_device_count()), Error);
  EXPECT_THROW(DeviceGuard{cuda_device_count()}, Error);
}

TEST_F(CudaDevice, MemoryThereAndBack) {
  std::vector<int> values(1000), back(1000);
  for (int i = 0; i < 1000; ++i) values[static_cast<std::size_t>(i)] = i;
  const DeviceBuffer a(4000, 0), b(4000, 0);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.data()) % 256, 0u);
  device_fill(b.data(), 0xff, 4000, 0);
  device_copy(a.data(), values.data(), 4000, 0);
  device_copy(b.data(), a.data(), 3996, 0);
  device_copy(back.data(), b.data(), 4000, 0);
  EXPECT_EQ(back[999], -1);
  back[999] = 999;
  EXPECT_EQ(back, values);
}

TEST_F(CudaDevice, AStreamATimerAndAGraph) {
  const DeviceStream stream(0);
  const DeviceBuffer memory(1 << 20, 0, stream.get());
  DeviceTimer timer(0);
  timer.start(stream.get());
  device_fill(memory.data(), 1, memory.size(), 0, stream.get());
  timer.stop(stream.get());
  EXPECT_GT(timer.milliseconds(), 0.0);

  const DeviceGraph graph(0, stream.get(), [&] { device_fill(memory.data(), 7, memory.size(), 0, stream.get()); });
  unsigned char byte = 0;
  device_copy(&byte, memory.data() + 5, 1, 0, stream.get());
  EXPECT_EQ(byte, 1) << "recording runs nothing";
  graph.launch(stream.get());
  device_copy(&byte, memory.data() + 5, 1, 0, stream.get());
  EXPECT_EQ(byte, 7);
}

TEST_F(CudaDevice, AGraphThatThrowsLeavesTheStreamUsable) {
  const DeviceStream stream(0);
  EXPECT_THROW(DeviceGraph(0, stream.get(), [] { fail("no"); }), Error);
  EXPECT_NO_THROW(device_synchronize(0, stream.get()));
}

TEST_F(CudaDevice, TooMuchMemoryIsAnErrorWithTheSize) {
  try {
    const DeviceBuffer buffer(std::int64_t{1} << 50, 0);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("1125899906842624 bytes"), std::string::npos) << error.what();
  }
  EXPECT_NO_THROW(device_synchronize(0)) << "the error was reported once";
}

}  // namespace
}  // namespace mhla
