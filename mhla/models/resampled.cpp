#include "mhla/models/resampled.h"

#include "mhla/kernels/mixing/mixing.h"
#include "mhla/ops/tensor_view.h"

namespace mhla {

torch::Tensor resampled_table(const torch::Tensor& table, const Layout& from, const Layout& to) {
  const torch::Tensor image = table.transpose(1, 2).unflatten(-1, {from.grid[1], from.grid[2]});
  const std::vector<std::int64_t> size{to.grid[1], to.grid[2]};
  return torch::upsample_bicubic2d(image, size, /*align_corners=*/false).flatten(2).transpose(1, 2).contiguous();
}

torch::Tensor resampled_mix(const torch::Tensor& mix, const Layout& from, const Layout& to) {
  const BlockGrid source = BlockGrid::grid3d(from.blocks[0], from.blocks[1], from.blocks[2]),
                  target = BlockGrid::grid3d(to.blocks[0], to.blocks[1], to.blocks[2]);
  std::vector<std::int64_t> shape = mix.sizes().vec();
  shape[shape.size() - 1] = shape[shape.size() - 2] = target.count();
  const torch::Tensor given = mix.detach().cpu().contiguous(), out = torch::empty(shape, given.options());
  resample_mix(ops::view_of(given, "resized", "mix"), source, ops::output_view(out, "resized", "mix"), target);
  return out.to(mix.device());
}

}  // namespace mhla
