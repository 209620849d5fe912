// The plans of `sm80` and `sm90`: what they promise the kernels, checked without a GPU.
#include "mhla/kernels/bidirectional/bidirectional_sm80_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "mhla/kernels/bidirectional/bidirectional_sm80_cuts.h"
#include "mhla/kernels/common/cuda/sm80_padding.h"
#include "mhla/kernels/common/problem.h"

namespace mhla::sm80 {
namespace {

TEST(Sm80Plan, TilesHoldTheHead) {
  for (std::int64_t D = 8; D <= 128; D += 8) {
    for (std::int64_t E = 8; E <= 128; E += 8) {
      const Tiles t = tiles_of(D, E);
      ASSERT_GT(t.rows, 0);
      EXPECT_LE(D, t.rows * 16);
      EXPECT_LE(E, t.columns * 8);
    }
  }
  EXPECT_EQ(tiles_of(136, 64).rows, 0);
  EXPECT_EQ(tiles_of(72, 72).columns, 9);
}

// A matrix of mix is packed as panels of 64 columns where these fit, else as fragments of 16 x 16, 512 bytes each.
TEST(Sm80Plan, MixIsPacked) {
  EXPECT_FALSE(mixed_on_panels(64));
  EXPECT_TRUE(mixed_on_panels(65) && mixed_on_panels(256));
  EXPECT_FALSE(mixed_on_panels(257));
  for (std::int64_t rows = 1; rows <= 300; ++rows) {
    const std::int64_t bytes = packed_mix_units(rows, rows) * 16;
    EXPECT_GE(bytes, 2 * rows * rows) << rows;
    EXPECT_TRUE(!mixed_on_panels(rows) || rows <= 64 * mix_squares(rows)) << rows;
  }
  EXPECT_EQ(packed_mix_units(1024, 16), 32);      // strips are as long as the blocks there are
  EXPECT_EQ(packed_mix_units(256, 3), 16 * 512);  // panels as the rows of mix
}

// Eight rows that one ldmatrix reads, 16 bytes each, must lie in eight different groups of four banks.
TEST(Sm80Plan, RowsLieInDifferentBanks) {
  const auto distinct = [](auto&& address) {
    std::set<int> banks;
    for (int r = 0; r < 8; ++r) banks.insert(address(r) / 16 % 8);
    return banks.size() == 8;
  };
  for (const Tiles& t : kTiles) {
    const int pitch = pitch_of(t);
    EXPECT_TRUE(distinct([&](int r) { return r * pitch; })) << t.columns;
    for (int offset = 0; offset < 8; offset += 2) {  // the rows of a shuffled step of Queries
      EXPECT_TRUE(distinct([&](int r) { return summary_row(r / 2 * 8 + offset + r % 2, pitch); })) << t.columns;
    }
    for (int D = 8; D <= t.columns * 8; D += 8) {  // the same row of eight blocks, as mixing reads them
      EXPECT_TRUE(distinct([&](int b) { return b * summary_bytes(D, t); })) << D;
      EXPECT_GE(summary_bytes(D, t), summary_row(D, pitch) + 2 * D);
    }
  }
}

TEST(Sm80Plan, FusedWhereSummariesFit) {
  for (const auto& [M, D] : {std::pair{16, 64}, std::pair{16, 72}, std::pair{16, 32}}) {  // dit_s_256, dit_xl_512, sana
    const FusedPlan p = fused_plan(M, D, tiles_of(D, D), kMaxSharedBytes);
    EXPECT_GE(p.stages, 2) << D;
    EXPECT_LE(p.shared_bytes, kMaxSharedBytes);
  }
  const auto stages = [](std::int64_t M, std::int64_t D, int most) {
    return fused_plan(M, D, tiles_of(D, D), most).stages;
  };
  EXPECT_EQ(stages(256, 64, kMaxSharedBytes), 0);   // dit_s_4096
  EXPECT_EQ(stages(105, 128, kMaxSharedBytes), 0);  // wan_480p
  EXPECT_EQ(stages(16, 72, 163 << 10), 0);          // dit_xl_512: three phases where there is less
  EXPECT_GE(stages(16, 32, kLeastSharedBytes), 2);  // sana_1024
  const FusedPlan sana = fused_plan(16, 32, tiles_of(32, 32), kMaxSharedBytes);
  EXPECT_EQ(kAllSharedBytes / (sana.shared_bytes + 1024), 3);  // one wave
}

// Kernels that have one plan only must fit every card, and the others must have a plan for it.
TEST(Sm80Plan, EveryCardHasSharedMemoryEnough) {
  for (const Tiles& t : kTiles) {
    const int D = t.columns * 8, tile = kPhaseTokens * pitch_of(t), summary = summary_bytes(D, t);
    EXPECT_LE(summary_stage_bytes(t), kLeastSharedBytes);
    EXPECT_LE(3 * tile + summary, kLeastSharedBytes);                             // causal_kernel
    EXPECT_LE(2 * tile + std::max(summary, 2 * tile) + 1024, kLeastSharedBytes);  // causal gradients, two parts
    EXPECT_LE(4 * tile + 1024, kLeastSharedBytes);                                // prefix_gradient_kernel
    EXPECT_LE(2 * summary + 1024, kLeastSharedBytes);                             // readout, key_gradient
    EXPECT_EQ(gradient_buffers(D, t, 163 << 10), 2);
    for (const int most : {kLeastSharedBytes, 163 << 10, kMaxSharedBytes}) {
      EXPECT_LE(gradient_shared_bytes(D, t, gradient_buffers(D, t, most)), most);
    }
  }
  for (const int most : {kLeastSharedBytes, 163 << 10, kMaxSharedBytes}) {
    for (std::int64_t M = 1; M <= kMaxBlocks; ++M) {
      const MixPlan p = mix_plan(M, most);
      ASSERT_LE(p.bytes, most) << M;
      ASSERT_TRUE(p.strip == 64 || p.per == 2) << M;  // the kernels there are
      ASSERT_TRUE(p.warps >= 1 && p.warps <= 8) << M;
    }
  }
  EXPECT_EQ(mix_plan(256, kLeastSharedBytes).strip, 64);
  EXPECT_EQ(mix_plan(1024, kLeastSharedBytes).strip, 32);
  EXPECT_EQ(mix_plan(1024, kMaxSharedBytes).strip, 64);
}

// The parts of every block are in it, all of them, and no other token is.
void expect_parts_of_blocks(const Layout& layout, std::int64_t N, const BlockCuts& cuts) {
  const BlockMap whole(layout, N), parts(cuts.layout, N);
  ASSERT_EQ(parts.blocks(), cuts.M);
  EXPECT_EQ(parts.largest(), cuts.C);
  const auto owner_of = [N](const BlockMap& map) {
    std::vector<std::int64_t> owner(static_cast<std::size_t>(N), -1);
    for (std::int64_t b = 0; b < map.blocks(); ++b)
      for (std::int64_t run = 0; run < map.runs(b); ++run)
        for (std::int64_t t = 0; t < map.run_length(b); ++t)
          owner[static_cast<std::size_t>(map.run_start(b, run) + t)] = b;
    return owner;
  };
  const std::vector<std::int64_t> own = owner_of(whole), cut = owner_of(parts);
  for (std::size_t t = 0; t < own.size(); ++t) {
    const std::int64_t column = cut[t] % cuts.blocks[2], row = cut[t] / cuts.blocks[2] % cuts.blocks[1],
                       frame = cut[t] / (cuts.blocks[2] * cuts.blocks[1]);
    const std::int64_t block =
        (frame / cuts.parts[0] * cuts.whole_blocks[1] + row / cuts.parts[1]) * cuts.whole_blocks[2] +
        column / cuts.parts[2];
    ASSERT_EQ(block, own[t]) << "token " << t << " of " << describe(layout);
  }
}

TEST(Sm80Plan, LargeBlocksAreCutIntoParts) {
  const auto cuts_of = [](const Layout& layout, std::int64_t N) {
    const BlockMap map(layout, N);
    return cut_blocks(layout, N, map.blocks(), map.largest());
  };
  struct Want {
    Layout layout;
    std::int64_t N, M, C;
  };
  for (const Want& w :
       {Want{Layout::grid2d(128, 128, 4, 4), 16384, 32, 512},   // DiT at 2048 px
        Want{Layout::grid2d(256, 256, 4, 4), 65536, 128, 512},  // and at 4096
        Want{Layout::grid2d(128, 128, 1, 1), 16384, 32, 512},   // linear attention
        Want{Layout::grid2d(90, 77, 3, 2), 6930, 18, 390},      // ragged
        Want{Layout::line(1024), 5000, 10, 512}, Want{Layout::grid3d({21, 30, 50}, {1, 1, 1}), 31500, 60, 525}}) {
    const BlockCuts cuts = cuts_of(w.layout, w.N);
    EXPECT_TRUE(cuts.any()) << describe(w.layout);
    EXPECT_EQ(cuts.M, w.M) << describe(w.layout);
    EXPECT_EQ(cuts.C, w.C) << describe(w.layout);
    expect_parts_of_blocks(w.layout, w.N, cuts);
  }
  for (const auto& [layout, N] :
       {std::pair{Layout::grid2d(64, 64, 4, 4), 4096}, std::pair{Layout::grid3d({21, 30, 50}, {7, 3, 5}), 31500},
        std::pair{Layout::line(521), 5000},  // a prime
        std::pair{Layout::line(64), 0}})
    EXPECT_FALSE(cuts_of(layout, N).any()) << describe(layout);
}

TEST(Sm80Plan, RoundsOfEqualSize) {
  EXPECT_EQ(units_at_once(6, 2 << 20), 6);
  EXPECT_EQ(units_at_once(100, std::int64_t{8} << 20), 34);  // three rounds of 34, 34, 32
  EXPECT_EQ(units_at_once(3, std::int64_t{1} << 40), 1);
}

TEST(Sm80Plan, PairsForShortSequences) {
  const auto pairs = [](std::int64_t M, std::int64_t C, std::int64_t D = 64, int most = kLeastSharedBytes) {
    return over_pairs(M, C, tiles_of(D, D), most);
  };
  EXPECT_TRUE(pairs(16, 16));   // dit_s_256
  EXPECT_FALSE(pairs(16, 64));  // dit_xl_512
  EXPECT_FALSE(pairs(17, 1));   // a tile of 16 per block
  EXPECT_FALSE(pairs(2, 129));
  EXPECT_TRUE(pairs(16, 16, 128, 163 << 10));
  EXPECT_FALSE(pairs(16, 16, 128));  // 143 KiB
  EXPECT_TRUE(pairs(8, 16, 128));
  EXPECT_TRUE(on_warpgroups(16, 16, tiles_of(64, 64)));
  EXPECT_TRUE(on_warpgroups(4, 64, tiles_of(40, 8)));
  EXPECT_FALSE(on_warpgroups(16, 16, tiles_of(32, 32)));  // panels half empty
  EXPECT_FALSE(on_warpgroups(16, 16, tiles_of(72, 72)));  // rows beyond a panel
  EXPECT_FALSE(on_warpgroups(16, 64, tiles_of(64, 64)));
}

TEST(Sm80Plan, PartsOfDmixFillACardAndHoldWork) {
  EXPECT_EQ(mix_splits(1, 384, 4160), 528);
  EXPECT_EQ(mix_splits(16, 6, 4160), 24);  // few units: 16 pieces each
  EXPECT_EQ(mix_splits(1, 1, 64), 1);
}

Problem takes() {
  Problem p;
  p.B = 2, p.N = 64, p.H = 4, p.Hkv = 4, p.D = 64, p.E = 64, p.Hm = 1, p.L = 4, p.M = 4, p.C = 16;
  const auto give = [](auto& view) {
    view.dtype = DType::kBF16, view.rank = 4, view.device = 0;
    view.shape = {2, 64, 4, 64}, view.stride = {64 * 256, 256, 64, 1};
  };
  give(p.q), give(p.k), give(p.v), give(p.out);
  return p;
}

TEST(Sm80Plan, SaysWhyNot) {
  EXPECT_EQ(fit_problem(takes()), "");
  Problem p = takes();
  p.q.dtype = DType::kF16;
  EXPECT_EQ(fit_problem(p), "dtype f16");
  p = takes(), p.normalizer = Normalizer::kOfficial;
  EXPECT_EQ(fit_problem(p), "normalizer official");
  p = takes(), p.D = 65, p.E = 127;
  EXPECT_EQ(fit_problem(p), "");
  p.E = 129;
  EXPECT_EQ(fit_problem(p), "D = 65, E = 129: too large");
  p = takes(), p.E = 256;
  EXPECT_EQ(fit_problem(p), "D = 64, E = 256: too large");
  p = takes(), p.M = 2000;
  EXPECT_EQ(fit_problem(p), "2000 blocks, more than 1024");
  p = takes(), p.maybe_q_den = p.maybe_k_den = p.q;
  EXPECT_EQ(fit_problem(p), "");
  p = takes(), p.maybe_cu_seqlens.rank = 1;
  EXPECT_EQ(fit_problem(p), "cu_seqlens");
}

TEST(Sm80Plan, CopiesRowsThatSixteenByteLoadsDoNotFit) {
  EXPECT_EQ(padded_size(1), 8);
  EXPECT_EQ(padded_size(64), 64);
  EXPECT_EQ(padded_size(65), 72);
  EXPECT_EQ(padded_columns(72), 72);
  EXPECT_EQ(padded_columns(136), 144);  // two parts
  EXPECT_FALSE(needs_padding(takes()));
  Problem p = takes();
  p.E = 60;
  EXPECT_TRUE(needs_padding(p));
  p = takes(), p.k.stride[1] = 257;
  EXPECT_TRUE(needs_padding(p));
  p = takes(), p.k.stride[1] = 257, p.k.shape[1] = 1;  // a stride that nobody takes
  EXPECT_FALSE(needs_padding(p));
  p = takes(), p.v.data = reinterpret_cast<const void*>(std::uintptr_t{8});
  EXPECT_TRUE(needs_padding(p));
  p = takes(), p.maybe_q_den = p.maybe_k_den = p.q, p.maybe_k_den.stride[2] = 65;
  EXPECT_TRUE(needs_padding(p));
  p = takes(), p.dq = p.out, p.dq.stride[0] = 4;
  EXPECT_TRUE(needs_padding(p));
}

}  // namespace
}  // namespace mhla::sm80
