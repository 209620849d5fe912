// Memory and processors at hand, read from folders made here that look like /proc and /sys.
#include "mhla/core/memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "mhla/core/control_group.h"
#include "mhla/testing/messages.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

class Memory : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "mhla-memory-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root = name;
  }
  void TearDown() override { fs::remove_all(root); }
  void put(const std::string& path, const std::string& text) const {
    fs::create_directories((root / path).parent_path());
    std::ofstream(root / path) << text;
  }
  fs::path root;
};

TEST_F(Memory, BytesAsPeopleReadThem) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(32 << 10), "32 KiB");
  EXPECT_EQ(bytes_text(1.5 * (1 << 30)), "1.5 GiB");
  EXPECT_EQ(bytes_text(1e24), "867361.7 EiB");
}

TEST_F(Memory, WithoutAControlGroupItIsWhatTheSystemHas) {
  put("proc/meminfo", "MemTotal:       16000000 kB\nMemFree:  1 kB\nMemAvailable:   12000000 kB\nSwapTotal: 0 kB\n");
  EXPECT_EQ(system_memory(root).total_bytes, 16000000LL << 10);
  const MemoryAtHand at_hand = memory_at_hand(root);
  EXPECT_EQ(at_hand.bytes, 12000000LL << 10);
  EXPECT_EQ(at_hand.bound, "available memory");
  EXPECT_FALSE(group_limits(root).memory_bytes);
  EXPECT_FALSE(group_limits(root).processors);
}

// Version 2: the tightest of the group and those above it. Cached files can be given back.
TEST_F(Memory, AControlGroupBoundsIt) {
  put("proc/meminfo", "MemTotal: 16000000 kB\nMemAvailable: 12000000 kB\n");
  put("proc/self/cgroup", "0::/jobs/one\n");
  put("sys/fs/cgroup/jobs/memory.max", "4000000000\n");
  put("sys/fs/cgroup/jobs/memory.current", "1500000000\n");
  put("sys/fs/cgroup/jobs/memory.stat", "anon 900000000\ninactive_file 400000000\nactive_file 100000000\n");
  put("sys/fs/cgroup/jobs/one/memory.max", "max\n");
  put("sys/fs/cgroup/jobs/one/memory.current", "1000\n");
  put("sys/fs/cgroup/jobs/one/cpu.max", "150000 100000\n");
  put("sys/fs/cgroup/jobs/cpu.max", "max 100000\n");
  const MemoryAtHand at_hand = memory_at_hand(root);
  EXPECT_EQ(at_hand.bytes, 3000000000);
  EXPECT_EQ(at_hand.bound, "memory limit of the control group");
  EXPECT_EQ(group_limits(root).processors, 1.5);
}

TEST_F(Memory, VersionOneOfControlGroups) {
  put("proc/self/cgroup", "5:memory:/docker/1\n4:cpu,cpuacct:/docker/1\n1:name=systemd:/\n");
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "2000\n");  // as a container sees its own: at the mount
  put("sys/fs/cgroup/memory/memory.usage_in_bytes", "900\n");
  put("sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 300\n");
  put("sys/fs/cgroup/cpu/docker/1/cpu.cfs_quota_us", "-1\n");
  put("sys/fs/cgroup/cpu/docker/1/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(group_limits(root).memory_bytes, 1400);
  EXPECT_FALSE(group_limits(root).processors);
  put("sys/fs/cgroup/cpu/docker/1/cpu.cfs_quota_us", "50000\n");
  EXPECT_EQ(group_limits(root).processors, 0.5);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_F(Memory, TheAddressSpaceMayBeBounded) {
  rlimit kept{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &kept), 0);
  rlimit small = kept;
  small.rlim_cur = std::size_t{3} << 30;
  ASSERT_EQ(setrlimit(RLIMIT_AS, &small), 0);
  put("proc/meminfo", "MemTotal: 160000000 kB\nMemAvailable: 120000000 kB\n");
  put("proc/self/statm", "262144 1 1 1 1 1 1\n");
  const MemoryAtHand at_hand = memory_at_hand(root);
  setrlimit(RLIMIT_AS, &kept);
  EXPECT_EQ(at_hand.bytes, (std::int64_t{3} << 30) - 262144 * sysconf(_SC_PAGESIZE));
  EXPECT_EQ(at_hand.bound, "ulimit -v");
}
#endif

TEST_F(Memory, WhatCannotFitIsRefusedPartByPart) {
  const MemoryEstimate needed =
      MemoryEstimate().add("weights", 3.0 * (1 << 30)).add("EMA", 0).add("gradients", 3.0 * (1 << 30));
  expect_fits("train", needed, {std::int64_t{6} << 30, "ulimit -v"});
  EXPECT_EQ(message_of([&] {
              expect_fits("train: a model", needed, {(std::int64_t{6} << 30) - 1, "ulimit -v"});
            }),
            "train: a model needs at least 6 GiB of memory (weights 3 GiB, gradients 3 GiB), expected at most 6.0 GiB "
            "(ulimit -v)");
  EXPECT_TRUE(has(message_of([&] { expect_fits("all", MemoryEstimate().add("all", 1e300), memory_at_hand()); }),
                  "all needs at least "));
}

}  // namespace
}  // namespace mhla
