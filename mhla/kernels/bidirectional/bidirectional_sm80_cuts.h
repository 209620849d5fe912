// Few large blocks leave most of a card idle: a block is summarised by one block of threads. Blocks of more than
// kMostBlockTokens tokens are cut into equal parts, which are blocks of their own with the weights of the block they
// come from: the same sums in another order,
//   S~_i = sum_b mix[i,b] S_b = sum_b sum_{c in b} mix[i,b] S_c,      dmix[i,b] = sum_{j in i, c in b} dmix'[j,c].
// Whether and how depends on the layout alone, so a result does not depend on the batch.
#pragma once

#include <algorithm>
#include <array>

#include "mhla/core/workspace.h"
#include "mhla/kernels/common/problem.h"

namespace mhla::sm80 {

inline constexpr std::int64_t kMostBlockTokens = 512, kMostCutBlocks = 128;

struct BlockCuts {
  Layout layout;                                         // of the parts
  std::array<std::int64_t, 3> blocks{}, whole_blocks{};  // per axis: of the parts, and before
  std::array<std::int64_t, 3> parts{1, 1, 1};            // of a block, per axis
  std::int64_t M = 0, C = 0;

  [[nodiscard]] bool any() const { return parts[0] * parts[1] * parts[2] > 1; }
};

// Of N tokens in M blocks of at most C. In bidirectional_sm80_cuts.cpp.
BlockCuts cut_blocks(const Layout& layout, std::int64_t N, std::int64_t M, std::int64_t C);

// A problem whose blocks are cut: its mixing matrix made of that of the blocks, its dmix added up.
class CutProblem {
 public:
  CutProblem(const Problem& problem, const BlockCuts& cuts, Workspace& workspace);
  [[nodiscard]] const Problem& inner() const { return inner_; }
  void spread_mix() const;
  void gather_dmix() const;

 private:
  const Problem& whole_;
  Problem inner_;
  BlockCuts cuts_;
  float *mix_ = nullptr, *dmix_ = nullptr;  // [Hm, M, M] of the parts
};

// run(problem), or the problem of its parts.
template <class F>
void run_cut(const Problem& problem, Workspace& workspace, const F& run) {
  const BlockCuts cuts = cut_blocks(problem.layout, problem.N, problem.M, problem.C);
  if (!cuts.any()) return run(problem);
  const CutProblem cut(problem, cuts, workspace);
  if (!workspace.counting()) cut.spread_mix();
  run(cut.inner());
  if (!workspace.counting()) cut.gather_dmix();
}

}  // namespace mhla::sm80
