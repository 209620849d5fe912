#include "mhla/modules/rope.h"

#include "mhla/core/error.h"

namespace mhla {
namespace {

void check_size(std::int64_t size, std::int64_t multiple, const char* axes) {
  if (size < 1 || size % multiple != 0)
    fail("rope: the head size is ", size, ", expected a multiple of ", multiple, " in ", axes);
}

torch::Tensor turns(std::int64_t tokens, const torch::Tensor& frequencies) {
  return torch::arange(tokens, torch::kDouble).unsqueeze(-1) * frequencies;
}

torch::Tensor frequencies_1d(std::int64_t size, double base) {
  return torch::pow(torch::full({}, base, torch::kDouble), -torch::arange(0, size, 2, torch::kDouble) / size);
}

}  // namespace

torch::Tensor rope_angles_1d(const torch::Tensor& positions, std::int64_t size, double base) {
  check_size(size, 2, "1D");
  return positions.to(torch::kDouble).unsqueeze(-1) * frequencies_1d(size, base).to(positions.device());
}

torch::Tensor rope_angles_grid(const Layout& layout, std::int64_t size, double base) {
  const auto& grid = layout.grid;
  if (layout.rank == 2) {
    check_size(size, 4, "2D");
    const torch::Tensor frequencies =
        torch::pow(torch::full({}, base, torch::kDouble), -torch::linspace(0, 1, size / 4, torch::kDouble));
    const std::vector<std::int64_t> shape = {grid[1], grid[2], size / 4};
    const torch::Tensor row = turns(grid[1], frequencies).unsqueeze(1).expand(shape);
    const torch::Tensor column = turns(grid[2], frequencies).unsqueeze(0).expand(shape);
    return torch::cat({row, column}, -1).flatten(0, 1);
  }
  if (layout.rank != 3) fail("rope: the layout is ", describe(layout), ", expected a 2D or 3D grid");
  check_size(size, 2, "3D");
  const std::int64_t sixth = size / 6, widths[] = {size - 4 * sixth, 2 * sixth, 2 * sixth};
  std::vector<torch::Tensor> parts;
  for (std::size_t axis = 0; axis < 3; ++axis) {
    if (widths[axis] == 0) continue;
    std::vector<std::int64_t> shape = {1, 1, 1, widths[axis] / 2};
    shape[axis] = grid[axis];
    parts.push_back(turns(grid[axis], frequencies_1d(widths[axis], base))
                        .view(shape)
                        .expand({grid[0], grid[1], grid[2], widths[axis] / 2}));
  }
  return torch::cat(parts, -1).flatten(0, 2);
}

torch::Tensor token_positions(std::int64_t tokens, const torch::Tensor& cu_seqlens, const torch::Device& device) {
  const torch::Tensor places = torch::arange(tokens, torch::TensorOptions(torch::kLong).device(device));
  if (!cu_seqlens.defined()) return places;
  const torch::Tensor bounds = cu_seqlens.to(device, torch::kLong);
  const torch::Tensor starts = bounds.slice(0, 0, -1), lengths = bounds.slice(0, 1) - starts;
  return places - torch::repeat_interleave(starts, lengths, 0, tokens);
}

RopeTable RopeCache::at(const torch::Tensor& positions, std::int64_t count, const torch::Tensor& like) {
  const torch::ScalarType dtype = like.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  if (!cos_.defined() || cos_.size(0) < count || cos_.device() != like.device() || cos_.scalar_type() != dtype) {
    std::int64_t room = 64;
    while (room < count) room *= 2;
    const torch::Tensor angles = rope_angles_1d(torch::arange(room), size_, base_);
    cos_ = angles.cos().to(like.device(), dtype), sin_ = angles.sin().to(like.device(), dtype);
  }
  if (!positions.defined()) return {cos_.narrow(0, 0, count), sin_.narrow(0, 0, count), /*halves=*/true};
  const auto rows = [&](const torch::Tensor& table) {
    std::vector<std::int64_t> shape = positions.sizes().vec();
    shape.push_back(size_ / 2);
    return table.index_select(0, positions.flatten()).view(shape);
  };
  return {rows(cos_), rows(sin_), /*halves=*/true};
}

torch::Tensor rotate(const torch::Tensor& x, const RopeTable& table) {
  const torch::Tensor wide = x.scalar_type() == torch::kDouble ? x : x.to(torch::kFloat);
  const torch::Tensor cos = table.cos.to(wide.scalar_type()).unsqueeze(-2),
                      sin = table.sin.to(wide.scalar_type()).unsqueeze(-2);
  if (table.halves) {
    const std::vector<torch::Tensor> half = wide.chunk(2, -1);
    return torch::cat({half[0] * cos - half[1] * sin, half[0] * sin + half[1] * cos}, -1).to(x.scalar_type());
  }
  const torch::Tensor pairs = wide.unflatten(-1, {-1, 2});
  const torch::Tensor a = pairs.select(-1, 0), b = pairs.select(-1, 1);
  return torch::stack({a * cos - b * sin, a * sin + b * cos}, -1).flatten(-2).to(x.scalar_type());
}

}  // namespace mhla
