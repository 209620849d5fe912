// The tokens of one sequence in block order, as kernels walk them. In one dimension that is the identity and
// costs no memory; in two and three a table of N token numbers is made once per call and shared by all heads.
#pragma once

#include <cstdint>

#include "mhla/core/workspace.h"
#include "mhla/kernels/common/layout.h"
#include "mhla/kernels/common/part.h"

namespace mhla {

class BlockTable {
 public:
  BlockTable() = default;
  // Over a counting workspace only sizes are taken.
  BlockTable(const Layout& layout, std::int64_t N, Workspace& workspace);
  // Of the local blocks of a part; tokens are numbered as tokens_of_blocks() lists them.
  BlockTable(const Layout& layout, const Part& part, std::int64_t tokens, Workspace& workspace);

  [[nodiscard]] std::int64_t blocks() const { return M_; }
  [[nodiscard]] std::int64_t begin(std::int64_t block) const {
    return maybe_begin_ ? maybe_begin_[block] : (block < M_ ? block * C_ : N_);
  }
  [[nodiscard]] std::int64_t size(std::int64_t block) const { return begin(block + 1) - begin(block); }
  // Raster number of the token at place `index` in block order.
  [[nodiscard]] std::int64_t token(std::int64_t index) const { return maybe_order_ ? maybe_order_[index] : index; }

 private:
  std::int64_t* fill(const BlockMap& map, std::int64_t first, Workspace& workspace);

  std::int64_t N_ = 0, M_ = 0, C_ = 0;
  const std::int64_t* maybe_order_ = nullptr;  // [N]
  const std::int64_t* maybe_begin_ = nullptr;  // [M + 1]
};

}  // namespace mhla
