#include "mhla/kernels/common/block_table.h"

#include <algorithm>
#include <vector>

namespace mhla {

BlockTable::BlockTable(const Layout& layout, std::int64_t N, Workspace& workspace) : N_(N) {
  const BlockMap map(layout, N);
  M_ = map.blocks();
  C_ = layout.rank == 1 ? layout.block_size : map.largest();
  if (layout.rank > 1) fill(map, 0, workspace);
}

BlockTable::BlockTable(const Layout& layout, const Part& part, std::int64_t tokens, Workspace& workspace)
    : N_(tokens), M_(part.blocks) {
  const BlockMap map(layout, part.tokens);
  C_ = layout.rank == 1 ? layout.block_size : map.largest();
  if (layout.rank == 1) return;
  std::int64_t* order = fill(map, part.first, workspace);
  if (workspace.counting()) return;
  const std::vector<std::int64_t> held = tokens_of_blocks(map, part.first, part.blocks);
  for (std::int64_t i = 0; i < N_; ++i) {  // from the numbers of the whole sequence to those of the part
    order[i] = std::lower_bound(held.begin(), held.end(), order[i]) - held.begin();
  }
}

// Tokens of blocks [first, first + M), numbered in the whole sequence.
std::int64_t* BlockTable::fill(const BlockMap& map, std::int64_t first, Workspace& workspace) {
  auto* order = workspace.take<std::int64_t>(N_, "token order");
  auto* begin = workspace.take<std::int64_t>(M_ + 1, "block begins");
  if (workspace.counting()) return nullptr;
  std::int64_t next = 0;
  for (std::int64_t block = 0; block < M_; ++block) {
    begin[block] = next;
    const std::int64_t runs = map.runs(first + block), length = map.run_length(first + block);
    for (std::int64_t run = 0; run < runs; ++run) {
      const std::int64_t start = map.run_start(first + block, run);
      for (std::int64_t i = 0; i < length; ++i) order[next++] = start + i;
    }
  }
  begin[M_] = next;
  maybe_order_ = order;
  maybe_begin_ = begin;
  return order;
}

}  // namespace mhla
