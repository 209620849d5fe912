// The plans of the output and summary kernels of long chunks: every tile of queries is made once, by warpgroups with
// equal work, and no role mistakes one phase of a barrier for another.
#include "mhla/kernels/chunkwise/chunkwise_sm90_outputs_plan.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <vector>

#include "mhla/kernels/chunkwise/chunkwise_sm90_summaries_plan.h"

namespace mhla::sm90 {
namespace {

TEST(CausalOutputsPlan, EveryTileIsMadeOnce) {
  for (int tokens = 0; tokens <= 1024; ++tokens) {
    const int tiles = output_tiles(tokens);
    EXPECT_EQ(tiles, tokens == 0 ? 0 : (tokens - 1) / 64 + 1);
    for (int turn = 0; turn < 2; ++turn) {
      std::set<int> made;
      for (int pair = 0; pair < output_pairs(tiles); ++pair) {
        const int loads = output_loads(pair, tiles);
        for (int group = 0; group < kOutputGroups; ++group) {
          const int tile = output_tile(pair, group, turn + pair);
          EXPECT_EQ(tile / 2, pair);
          if (tile >= tiles) continue;
          EXPECT_TRUE(made.insert(tile).second);
          EXPECT_LT(tile, loads);  // keys up to its own are there
        }
      }
      EXPECT_EQ(static_cast<int>(made.size()), tiles);
    }
  }
}

TEST(CausalOutputsPlan, WarpgroupsShareTheWork) {
  for (const int tiles : {2, 4, 6, 16}) {  // over two chunks, products with tiles of keys
    int work[kOutputGroups] = {}, turn = 0;
    for (int chunk = 0; chunk < 2; ++chunk) {
      for (int pair = 0; pair < output_pairs(tiles); ++pair, ++turn) {
        for (int group = 0; group < kOutputGroups; ++group) work[group] += output_tile(pair, group, turn) + 1;
      }
    }
    EXPECT_EQ(work[0], work[1]) << tiles;
  }
}

// A barrier as the hardware has it: it knows the parity of the phase that is not complete yet, and a wait for a parity
// passes when that of the running phase differs.
struct Barrier {
  int arrivals, left = arrivals, phase = 0;
  explicit Barrier(int count) : arrivals(count) {}
  void arrive() {
    if (--left == 0) left = arrivals, ++phase;
  }
  [[nodiscard]] bool passes(int parity) const { return phase % 2 != parity; }
};

// The ring of v: who copies, the one who looks at it, and two who read it, of whom only some wait for the look. In any
// order in which they can run, who waits for tile n gets tile n.
TEST(CausalOutputsPlan, NoPhaseIsMistakenForAnother) {
  constexpr int kStages = 2, kTiles = 24;
  for (unsigned seed = 0; seed < 2000; ++seed) {
    std::vector<Barrier> copied(kStages, Barrier(1)), checked(kStages, Barrier(1)), free(kStages, Barrier(3));
    int holds[kStages] = {-1, -1}, seen[kStages] = {-1, -1};  // the tile in a stage; the one that was looked at
    int at[4] = {}, step[4] = {};
    unsigned random = seed * 2654435761u + 1;
    for (int moves = 0; moves < 100000; ++moves) {
      random = random * 1664525u + 1013904223u;
      const int who = static_cast<int>(random >> 20) % 4, n = at[who], stage = n % kStages, parity = n / kStages % 2;
      if (n == kTiles) continue;
      const auto s = static_cast<std::size_t>(stage);
      if (who == 0) {
        if (!free[s].passes(parity ^ 1)) continue;
        holds[stage] = n, copied[s].arrive(), ++at[who];
      } else if (who == 1) {
        if (!copied[s].passes(parity)) continue;
        ASSERT_EQ(holds[stage], n);
        seen[stage] = n, checked[s].arrive(), free[s].arrive(), ++at[who];
      } else if (step[who] == 0) {
        if (!copied[s].passes(parity)) continue;
        ASSERT_EQ(holds[stage], n);
        step[who] = 1;
      } else {
        const bool looks = (n * 7 + who + static_cast<int>(seed)) % 3 == 0;
        if (looks && !checked[s].passes(parity)) continue;
        if (looks) {
          ASSERT_EQ(seen[stage], n);
        }
        ASSERT_EQ(holds[stage], n);
        free[s].arrive(), step[who] = 0, ++at[who];
      }
    }
    for (const int n : at) EXPECT_EQ(n, kTiles);
  }
}

template <class T>
void check_memory() {
  EXPECT_LE(T::kBytes, kMaxSharedBytes);
  EXPECT_GE(T::kPrefixAt, T::kQueriesAt + kOutputGroups * T::kTile);
  EXPECT_EQ(T::kBarriersAt % 8, 0);
  EXPECT_EQ(T::kZAt % 16, 0);
}
TEST(CausalOutputsPlan, SharedMemoryFits) {
  check_memory<OutputTiles<1, 1>>();
  check_memory<OutputTiles<2, 1>>();
  check_memory<OutputTiles<2, 2>>();
  EXPECT_EQ((OutputTiles<2, 2>::kColumns), 256);
  EXPECT_LE(SummaryRing<1>::kBytes, kMaxSharedBytes);
  EXPECT_LE(SummaryRing<2>::kBytes, kMaxSharedBytes);
  EXPECT_EQ(SummaryRing<2>::kStage, 48 << 10);
}

TEST(CausalOutputsPlan, SummariesOfWideHeadsGoThroughTheRing) {
  EXPECT_TRUE(takes_summary_ring(128, 128));
  EXPECT_TRUE(takes_summary_ring(128, 64));
  EXPECT_TRUE(takes_summary_ring(80, 80));
  EXPECT_FALSE(takes_summary_ring(64, 64));
}

}  // namespace
}  // namespace mhla::sm90
