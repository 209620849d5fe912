// How tokens, in raster order in memory, fall into blocks. 1D: consecutive runs of block_size tokens.
// 2D and 3D: `grid` tokens and `blocks` blocks per axis; a block has ceil(grid / blocks) tokens per
// axis, the last one the rest. Blocks and the tokens inside a block are numbered row-major.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace mhla {

struct Layout {
  int rank = 0;                                 // 1, 2 or 3 axes; 0: not set
  std::int64_t block_size = 0;                  // 1D only
  std::array<std::int64_t, 3> grid{1, 1, 1};    // tokens per axis, right-aligned: [frame, row, column]
  std::array<std::int64_t, 3> blocks{1, 1, 1};  // blocks per axis

  static Layout line(std::int64_t block_size);
  static Layout grid2d(std::int64_t rows, std::int64_t columns, std::int64_t block_rows, std::int64_t block_columns);
  static Layout grid3d(std::array<std::int64_t, 3> grid, std::array<std::int64_t, 3> blocks);
};

std::string describe(const Layout& layout);  // "1d C=64", "2d grid 16x16 blocks 4x4"

// Checks the layout against N tokens; throws mhla::Error naming `entry` (a count that would leave a block
// empty is refused with the nearest count that works). Never for N of a single packed sequence: see BlockMap.
void check_layout(const Layout& layout, std::int64_t N, const char* entry);

// The blocks of one sequence of N tokens. A block is a short list of runs of consecutive tokens.
class BlockMap {
 public:
  BlockMap(const Layout& layout, std::int64_t N);

  [[nodiscard]] std::int64_t blocks() const { return M_; }  // M
  [[nodiscard]] std::int64_t tokens() const { return N_; }
  [[nodiscard]] std::int64_t size(std::int64_t block) const;  // tokens in a block
  [[nodiscard]] std::int64_t largest() const { return C_; }   // tokens of the largest block
  [[nodiscard]] bool equal_blocks() const;
  [[nodiscard]] std::int64_t runs(std::int64_t block) const;  // number of runs; position w grows run by run
  [[nodiscard]] std::int64_t run_start(std::int64_t block, std::int64_t run) const;  // first token, raster index
  [[nodiscard]] std::int64_t run_length(std::int64_t block) const;  // every run of a block has this length

 private:
  struct Box {
    std::array<std::int64_t, 3> origin, extent;
  };
  [[nodiscard]] Box box(std::int64_t block) const;
  std::int64_t N_ = 0, M_ = 0, C_ = 0;
  std::array<std::int64_t, 3> grid_{}, blocks_{}, step_{};
};

}  // namespace mhla
