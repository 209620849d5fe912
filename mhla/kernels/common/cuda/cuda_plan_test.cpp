// How calls are cut into waves, what the `cuda` candidate takes, and how views become tensors. No device is needed.
#include <gtest/gtest.h>

#include "mhla/core/cuda.h"
#include "mhla/kernels/common/cuda/plan.h"
#include "mhla/testing/random.h"

namespace mhla::cuda {
namespace {

// Every (sequence with blocks, kv head) in exactly one wave, whole sequences, in order, within the budget where more
// than one head of one sequence is in a wave.
void expect_whole(const std::vector<std::int64_t>& first_block, std::int64_t Hkv, std::int64_t group,
                  std::int64_t bytes, std::int64_t budget) {
  const auto S = static_cast<std::int64_t>(first_block.size()) - 1;
  std::vector<int> seen(static_cast<std::size_t>(S * Hkv), 0);
  for (const WaveRange& wave : plan_waves(first_block, Hkv, group, bytes, budget)) {
    ASSERT_GE(wave.sequences, 1);
    ASSERT_LE(wave.first_sequence + wave.sequences, S);
    EXPECT_EQ(wave.first_block, first_block[static_cast<std::size_t>(wave.first_sequence)]);
    EXPECT_EQ(wave.blocks,
              first_block[static_cast<std::size_t>(wave.first_sequence + wave.sequences)] - wave.first_block);
    EXPECT_GT(wave.blocks, 0);
    EXPECT_LE(wave.kv_heads * group, kMaxHeads);
    if (wave.blocks * wave.kv_heads > 1 && (wave.sequences > 1 || wave.kv_heads > 1)) {
      EXPECT_LE(wave.blocks * wave.kv_heads * bytes, budget);
    }
    for (std::int64_t s = wave.first_sequence; s < wave.first_sequence + wave.sequences; ++s) {
      for (std::int64_t h = wave.first_kv_head; h < wave.first_kv_head + wave.kv_heads; ++h) {
        ++seen[static_cast<std::size_t>(s * Hkv + h)];
      }
    }
  }
  for (std::int64_t s = 0; s < S; ++s) {
    const bool empty = first_block[static_cast<std::size_t>(s)] == first_block[static_cast<std::size_t>(s + 1)];
    for (std::int64_t h = 0; h < Hkv; ++h) {
      const int times = seen[static_cast<std::size_t>(s * Hkv + h)];
      EXPECT_TRUE(times == 1 || (empty && times <= 1)) << "sequence " << s << " head " << h << " in " << times;
    }
  }
}

TEST(CudaPlan, WavesHoldEverythingOnce) {
  Random random(3);
  for (int repeat = 0; repeat < 500; ++repeat) {
    std::vector<std::int64_t> first_block{0};
    for (std::int64_t s = random.below(12); s >= 0; --s) first_block.push_back(first_block.back() + random.below(9));
    expect_whole(first_block, 1 + random.below(7), 1 + random.below(3), 1 + random.below(50), 1 + random.below(2000));
  }
}

TEST(CudaPlan, WavesAreOfEqualSize) {
  std::vector<std::int64_t> first_block;
  for (std::int64_t s = 0; s <= 128; ++s) first_block.push_back(16 * s);
  // 40 sequences fit: four waves of 32 rather than three of 40 and one of 8.
  const auto waves = plan_waves(first_block, 3, 1, 1, 40 * 16 * 3);
  ASSERT_EQ(waves.size(), 4u);
  for (const WaveRange& wave : waves) EXPECT_EQ(wave.sequences, 32);
}

TEST(CudaPlan, ALongSequenceIsCutByHeads) {
  const std::vector<std::int64_t> first_block{0, 100};
  const auto waves = plan_waves(first_block, 6, 1, 10, 4100);  // four heads fit: two waves of three
  ASSERT_EQ(waves.size(), 2u);
  EXPECT_EQ(waves[1].first_kv_head, 3);
  EXPECT_EQ(waves[1].kv_heads, 3);
  EXPECT_EQ(plan_waves(first_block, 6, 1, 10, 1).size(), 6u);
}

TEST(CudaPlan, ManyHeadsShareWaves) {
  const std::vector<std::int64_t> first_block{0, 1, 2};
  for (const WaveRange& wave : plan_waves(first_block, 40000, 3, 1, 1 << 30)) EXPECT_LE(wave.kv_heads * 3, kMaxHeads);
  expect_whole(first_block, 40000, 3, 1, 1 << 30);
}

Problem small_problem() {
  Problem p;
  p.q.dtype = DType::kBF16;
  p.q.device = 0;
  p.B = 1, p.N = 64, p.H = p.Hkv = 2, p.D = p.E = 32, p.Hm = 1, p.L = p.M = 4, p.C = 16;
  p.layout = Layout::line(16);
  p.sequences = {{0, 0, 64}};
  return p;
}

TEST(CudaPlan, FitNamesTheReason) {
  Problem p = small_problem();
  if (!cuda_built()) {
    EXPECT_EQ(fit(p), "built without CUDA");
    return;
  }
  EXPECT_EQ(fit(p), "");
  p.D = 300;
  EXPECT_EQ(fit(p), "D is 300, above 256");
  p = small_problem(), p.E = 257;
  EXPECT_EQ(fit(p), "E is 257, above 256");
  p = small_problem(), p.q.dtype = DType::kF64;
  EXPECT_EQ(fit(p), "dtype f64");
  p = small_problem(), p.q.device = kCpu;
  EXPECT_EQ(fit(p), "memory is on the CPU");
  p = small_problem(), p.C = std::int64_t{1} << 31;
  EXPECT_EQ(fit(p), "a block or grid of 2147483648 tokens, more than 2^31 - 1");
}

TEST(CudaPlan, WorkspaceIsThatOfTheLargestWave) {
  const Problem p = small_problem();
  Workspace counting;
  Call call(p, counting);
  EXPECT_EQ(counting.used(), 0);  // no tables without cu_seqlens
  EXPECT_EQ(call.summary_stride(), 32 * 32 + 32);
  call.plan(4);
  ASSERT_EQ(call.waves().size(), 1u);
  (void)call.take(counting, 16, true, "values");
  EXPECT_EQ(counting.used(), 4 * 2 * 16 * 4);  // blocks, heads, floats
}

TEST(CudaPlan, RowsOf16BytesAreReadAtOnce) {
  alignas(16) static float memory[64];
  EXPECT_TRUE(tensor_of(ConstView(memory, DType::kF32, {1, 2, 2, 8})).vector);
  EXPECT_TRUE(tensor_of(ConstView(memory, DType::kF32, {1, 1, 1, 7})).vector);  // a single row may have any length
  EXPECT_FALSE(tensor_of(ConstView(memory, DType::kF32, {1, 2, 1, 7})).vector);
  EXPECT_FALSE(tensor_of(ConstView(memory + 1, DType::kF32, {1, 2, 2, 8})).vector);
  EXPECT_FALSE(tensor_of(ConstView(memory, DType::kBF16, {1, 2, 1, 4})).vector);
  EXPECT_TRUE(tensor_of(ConstView(memory, DType::kBF16, {1, 2, 1, 8})).vector);
  EXPECT_FALSE(tensor_of(ConstView()).given());
}

}  // namespace
}  // namespace mhla::cuda
