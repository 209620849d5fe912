// Rotary positions as the published models use them. Angles are f64; pairs are turned in f32 at least.
//   1D  pair j is channels j and j + size/2, angle position * base^(-2j/size)                      (language model)
//   2D  adjacent channels; half of the pairs turn with the row, half with the column               (VLT)
//   3D  adjacent channels; size - 4*(size/6) channels for the frame, 2*(size/6) for row and column (Wan)
#pragma once

#include "mhla/kernels/common/layout.h"
#include "mhla/modules/torch.h"

namespace mhla {

torch::Tensor rope_angles_1d(const torch::Tensor& positions, std::int64_t size, double base);  // [..., size / 2]
torch::Tensor rope_angles_grid(const Layout& layout, std::int64_t size, double base);  // [N, size / 2], 2D and 3D

// Places of tokens in their sequences, [N]: 0, 1, 2, ... from every start in cu_seqlens (undefined: one sequence).
torch::Tensor token_positions(std::int64_t tokens, const torch::Tensor& cu_seqlens, const torch::Device& device);

struct RopeTable {
  torch::Tensor cos, sin;  // [N, size / 2] or [B, N, size / 2]
  bool halves = false;     // 1D pairs; else adjacent channels
};
torch::Tensor rotate(const torch::Tensor& x /* [B, N, H, size] */, const RopeTable& table);

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
    explicit Seen(const torch::Tensor& x) : tensor(x), version(x._version()) {}
    [[nodiscard]] bool is(const torch::Tensor& x) const { return tensor.is_same(x) && version == x._version(); }
    torch::Tensor tensor;
    std::int64_t version = 0;
  };
  std::int64_t size_;
  double base_;
  torch::Tensor cos_, sin_;  // [room, size / 2]
  Seen last_, last_packed_;
  RopeTable last_table_;
  torch::Tensor packed_positions_;
};

}  // namespace mhla
