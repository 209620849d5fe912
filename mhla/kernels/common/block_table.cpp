#include "mhla/kernels/common/block_table.h"

namespace mhla {

BlockTable::BlockTable(const Layout& layout, std::int64_t N, Workspace& workspace) : N_(N) {
  const BlockMap map(layout, N);
  M_ = map.blocks();
  C_ = layout.rank == 1 ? layout.block_size : map.largest();
  if (layout.rank == 1) return;
  auto* order = workspace.take<std::int64_t>(N, "token order");
  auto* begin = workspace.take<std::int64_t>(M_ + 1, "block begins");
  if (workspace.counting()) return;
  std::int64_t next = 0;
  for (std::int64_t block = 0; block < M_; ++block) {
    begin[block] = next;
    const std::int64_t runs = map.runs(block), length = map.run_length(block);
    for (std::int64_t run = 0; run < runs; ++run) {
      const std::int64_t start = map.run_start(block, run);
      for (std::int64_t i = 0; i < length; ++i) order[next++] = start + i;
    }
  }
  begin[M_] = next;
  maybe_order_ = order;
  maybe_begin_ = begin;
}

}  // namespace mhla
