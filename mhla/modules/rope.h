// Tables of rotary positions as the published models use them; ops::rope turns by them. Angles are f64, tables f32 (f64
// for f64).
//   1D  pair j is channels j and j + size/2, angle position * base^(-2j/size)                      (language model)
//   2D  adjacent channels; half of the pairs turn with the row, half with the column               (VLT)
//   3D  adjacent channels; size - 4*(size/6) channels for the frame, 2*(size/6) for row and column (Wan)
#pragma once

#include "mhla/kernels/common/layout.h"
#include "mhla/modules/torch.h"
#include "mhla/ops/ops.h"

namespace mhla {

using ops::RopeTable;

torch::Tensor rope_angles_1d(const torch::Tensor& positions, std::int64_t size, double base);  // [..., size / 2]
torch::Tensor rope_angles_grid(const Layout& layout, std::int64_t size, double base);  // [N, size / 2], 2D and 3D

// Places of tokens in their sequences, [N]: 0, 1, 2, ... from every start in cu_seqlens (undefined: one sequence).
torch::Tensor token_positions(std::int64_t tokens, const torch::Tensor& cu_seqlens, const torch::Device& device);

// The table of a 2D or 3D grid, kept for the device and dtype it was last asked for.
class GridRope {
 public:
  GridRope() = default;
  GridRope(const Layout& layout, std::int64_t size, double base);
  const RopeTable& at(const torch::Tensor& like);

 private:
  Layout layout_;
  std::int64_t size_ = 0;
  double base_ = 0;
  RopeTable table_;
};

// Tables of 1D positions, kept, and grown when longer sequences come; one can serve all layers of a model. What was
// asked for last is not made again while the same tensor is given: the layers of a model ask one after the other.
class RopeCache {
 public:
  RopeCache(std::int64_t size, double base) : size_(size), base_(base) {}
  // Positions [N] or [B, N], all below `count`; undefined: 0 to count - 1. `like` has the device and the dtype of x.
  RopeTable at(const torch::Tensor& positions, std::int64_t count, const torch::Tensor& like);
  // Of `count` tokens of packed sequences.
  RopeTable packed(const torch::Tensor& cu_seqlens, std::int64_t count, const torch::Tensor& like);

 private:
  struct Seen {  // a tensor, as it was
    Seen() = default;
    explicit Seen(const torch::Tensor& x) : tensor(x), version(x.is_inference() ? -1 : x._version()) {}
    // A tensor of inference mode has no version: it is a new one each time.
    [[nodiscard]] bool is(const torch::Tensor& x) const {
      return tensor.is_same(x) && !x.is_inference() && version == x._version();
    }
    torch::Tensor tensor;
    std::int64_t version = 0;
  };
  std::int64_t size_;
  double base_;
  torch::Tensor table_;  // [room, size]: cosines, then sines, so that rows for positions are one gather
  RopeTable whole_, last_table_;
  Seen last_, last_packed_;
  torch::Tensor packed_positions_;
};

}  // namespace mhla
