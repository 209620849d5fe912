// The plan of the slice kernel: what it takes, and that its roles never mistake one phase of a barrier for another.
#include "mhla/kernels/chunkwise/chunkwise_sm90_slices_plan.h"

#include <gtest/gtest.h>

#include <vector>

#include "mhla/kernels/common/cuda/sm80_fit.h"
#include "mhla/kernels/common/problem.h"

namespace mhla::sm90 {
namespace {

Problem language_model() {
  Problem p;
  p.causal = true, p.normalizer = Normalizer::kNone, p.layout = Layout::line(64);
  p.B = 16, p.N = 2048, p.H = p.Hkv = 4, p.D = 128, p.E = 256, p.M = p.L = 32, p.C = 64, p.Hm = 1;
  return p;
}

TEST(CausalSlicesPlan, TakesShortChunksByTheRowsOfMix) {
  Problem p = language_model();
  EXPECT_TRUE(over_slices(p));
  p.N = 1, p.M = 1, p.C = 1;  // right padding keeps the way
  EXPECT_TRUE(over_slices(p));
  p = language_model(), p.M = 3, p.L = 33;
  EXPECT_FALSE(over_slices(p));
  p = language_model(), p.extend = true;
  EXPECT_FALSE(over_slices(p));
  p = language_model(), p.normalizer = Normalizer::kPaper;
  EXPECT_FALSE(over_slices(p));
  p = language_model(), p.layout = Layout::line(128);
  EXPECT_FALSE(over_slices(p));
  for (const std::int64_t E : {32, 64, 96, 128, 250, 256}) {
    p = language_model(), p.E = E;
    EXPECT_TRUE(over_slices(p)) << E;
  }
  for (const std::int64_t E : {8, 40, 120, 240}) {
    p = language_model(), p.E = E;
    EXPECT_FALSE(over_slices(p)) << E;
  }
  p = language_model(), p.feature_map = FeatureMap::kRelu;
  EXPECT_TRUE(over_slices(p));
  p.feature_map = FeatureMap::kElu1;
  EXPECT_FALSE(over_slices(p));
  p = language_model(), p.D = 121;
  EXPECT_TRUE(over_slices(p));
  p = language_model(), p.D = 64;
  EXPECT_FALSE(over_slices(p));
}

TEST(CausalSlicesPlan, BoxesTakeMostStrides) {
  const ConstView plain(nullptr, DType::kBF16, {2, 100, 3, 128});
  EXPECT_TRUE(boxes_take(plain));
  ConstView x = plain;
  x.stride[0] = x.stride[2] = 0;
  EXPECT_TRUE(boxes_take(x));
  x.stride[1] = 0;
  EXPECT_FALSE(boxes_take(x));
  x.shape[1] = 1;
  EXPECT_TRUE(boxes_take(x));
  x = plain, x.stride[2] = -128;
  EXPECT_FALSE(boxes_take(x));
  x = plain, x.stride[0] = std::int64_t{1} << 39;
  EXPECT_FALSE(boxes_take(x));
}

TEST(CausalSlicesPlan, TurnsCountTiles) {
  SliceTurn turn;
  for (unsigned n = 0; n < 1000; ++n, turn.advance(1)) {
    EXPECT_EQ(turn.slot, static_cast<int>(n % 6));
    EXPECT_EQ(turn.parity, static_cast<int>(n / 6 % 2));
    EXPECT_EQ(turn.stage(), static_cast<int>(n % 3));
    EXPECT_EQ(slice_turn(n).slot, turn.slot);
    EXPECT_EQ(slice_turn(n).parity, turn.parity);
  }
}

// A barrier as the hardware has it: it knows the parity of the phase that is not complete yet, and a wait for a parity
// passes when that of the running phase differs.
struct Phases {
  unsigned complete = 0;
  [[nodiscard]] bool passes(int parity) const { return static_cast<int>(complete % 2) != parity; }
};

// Copies of different tiles may arrive in any order. Whatever has arrived, an output warpgroup that has done all its
// tiles before n passes the barrier of tile n only when tile n has arrived.
TEST(CausalSlicesPlan, NoPhaseIsMistakenForAnother) {
  for (unsigned n = 0; n < 60; ++n) {
    // Tiles that are surely there: this warpgroup's own. Those between may be missing.
    for (unsigned missing = 0; missing < 8; ++missing) {  // of n - 3, n - 1 and n
      const auto arrived = [&](unsigned tile) {
        if (tile > n) return false;
        if (tile == n) return (missing & 1) == 0;
        if (tile % 2 == n % 2) return true;
        return !((tile + 1 == n && (missing & 2) != 0) || (tile + 3 == n && (missing & 4) != 0));
      };
      std::vector<Phases> barriers(kSliceTurns);
      for (unsigned tile = 0; tile <= n; ++tile) {
        if (arrived(tile)) ++barriers[static_cast<std::size_t>(slice_turn(tile).slot)].complete;
      }
      const SliceTurn turn = slice_turn(n);
      EXPECT_EQ(barriers[static_cast<std::size_t>(turn.slot)].passes(turn.parity), arrived(n)) << n << " " << missing;
    }
  }
}

TEST(CausalSlicesPlan, SharedMemoryDoesNotOverlap) {
  using At = SliceMemory;
  EXPECT_EQ(At::kStage, 20480);
  EXPECT_LE(At::kBytes, kMaxSharedBytes);
  EXPECT_GE(At::kPrefixAt, At::kQueriesAt + 2 * 2 * At::kPanel);
  EXPECT_EQ(At::kUnusualAt % 8, 0);
  EXPECT_EQ(At::kSelectAt % 8, 0);
  EXPECT_EQ(SliceBarriers::kCount, 27);
}

}  // namespace
}  // namespace mhla::sm90
