#include <stdexcept>

#include "apps/engine/rivals/variants.h"

namespace mhla::rivals {

at::Tensor features(const at::Tensor& x) { return x.relu() + 1e-6; }

at::Tensor repeat_heads(const at::Tensor& x, int64_t heads) {
  return x.size(2) == heads ? x : x.repeat_interleave(heads / x.size(2), 2);
}

Blocks::Blocks(const RivalRequest& request) : M(1), C(1), N(request.N), padded(request.N) {
  if (request.rank == 1) {
    C = request.block_size;
    M = (N + C - 1) / C;
    padded = M * C;
    for (int axis = 0; axis < 3; ++axis) count[axis] = size[axis] = 1;
    count[2] = M;
    size[2] = C;
    return;
  }
  for (int axis = 0; axis < 3; ++axis) {
    if (request.grid[axis] % request.blocks[axis] != 0)
      throw std::runtime_error("plain LibTorch code is written for blocks of equal size");
    count[axis] = request.blocks[axis];
    size[axis] = request.grid[axis] / request.blocks[axis];
    M *= count[axis];
    C *= size[axis];
  }
}

at::Tensor Blocks::gather(const at::Tensor& x) const {
  const int64_t B = x.size(0), H = x.size(2), D = x.size(3);
  const at::Tensor full = padded == N ? x : at::constant_pad_nd(x, {0, 0, 0, 0, 0, padded - N});
  if (count[0] * count[1] * size[0] * size[1] == 1) return full.reshape({B, M, C, H, D});
  return full.reshape({B, count[0], size[0], count[1], size[1], count[2], size[2], H, D})
      .permute({0, 1, 3, 5, 2, 4, 6, 7, 8})
      .reshape({B, M, C, H, D});
}

at::Tensor Blocks::scatter(const at::Tensor& x) const {
  const int64_t B = x.size(0), H = x.size(3), E = x.size(4);
  if (count[0] * count[1] * size[0] * size[1] == 1) return x.reshape({B, padded, H, E}).narrow(1, 0, N).contiguous();
  return x.reshape({B, count[0], count[1], count[2], size[0], size[1], size[2], H, E})
      .permute({0, 1, 4, 2, 5, 3, 6, 7, 8})
      .reshape({B, N, H, E});
}

at::Tensor Blocks::split(const at::Tensor& x) const {
  const int64_t B = x.size(0), H = x.size(2), D = x.size(3);
  const at::Tensor full = padded == N ? x : at::constant_pad_nd(x, {0, 0, 0, 0, 0, padded - N});
  return full.reshape({B, count[0], size[0], count[1], size[1], count[2], size[2], H, D})
      .permute({0, 7, 1, 3, 5, 2, 4, 6, 8})
      .reshape({B, H, M, C, D});
}

at::Tensor Blocks::merge(const at::Tensor& x) const {
  const int64_t B = x.size(0), H = x.size(1), E = x.size(4);
  return x.reshape({B, H, count[0], count[1], count[2], size[0], size[1], size[2], E})
      .permute({0, 2, 5, 3, 6, 4, 7, 1, 8})
      .reshape({B, padded, H, E})
      .narrow(1, 0, N)
      .contiguous();
}

}  // namespace mhla::rivals
