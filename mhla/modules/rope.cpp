#include "mhla/modules/rope.h"

#include "mhla/core/error.h"

namespace mhla {
namespace {

void check_size(std::int64_t size, std::int64_t multiple, const char* axes) {
  if (size < 1 || size % multiple != 0)
    fail("rope: the head size is ", size, ", expected a multiple of ", multiple, " in ", axes);
}

void check_grid(const Layout& layout, std::int64_t size) {
  if (layout.rank != 2 && layout.rank != 3)
    fail("rope: the layout is ", describe(layout), ", expected a 2D or 3D grid");
  check_size(size, layout.rank == 2 ? 4 : 2, layout.rank == 2 ? "2D" : "3D");
}

torch::ScalarType table_dtype(const torch::Tensor& like) {
  return like.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
}

bool fits(const torch::Tensor& table, const torch::Tensor& like) {
  return table.defined() && table.device() == like.device() && table.scalar_type() == table_dtype(like);
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
  check_grid(layout, size);
  const auto& grid = layout.grid;
  if (layout.rank == 2) {
    const torch::Tensor frequencies =
        torch::pow(torch::full({}, base, torch::kDouble), -torch::linspace(0, 1, size / 4, torch::kDouble));
    const std::vector<std::int64_t> shape = {grid[1], grid[2], size / 4};
    const torch::Tensor row = turns(grid[1], frequencies).unsqueeze(1).expand(shape);
    const torch::Tensor column = turns(grid[2], frequencies).unsqueeze(0).expand(shape);
    return torch::cat({row, column}, -1).flatten(0, 1);
  }
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
  // Bounds that are none make places that are wrong, but inside: the operator says what is wrong with them.
  const torch::Tensor bounds = cu_seqlens.to(device, torch::kLong).contiguous();
  if (bounds.dim() != 1 || bounds.size(0) < 2) return places;
  const torch::Tensor sequences = torch::searchsorted(bounds, places, /*out_int32=*/false, /*right=*/true) - 1;
  return (places - bounds.index_select(0, sequences.clamp(0, bounds.size(0) - 2)))
      .clamp(0, std::max<std::int64_t>(0, tokens - 1));
}

GridRope::GridRope(const Layout& layout, std::int64_t size, double base) : layout_(layout), size_(size), base_(base) {
  check_grid(layout, size);
}

const RopeTable& GridRope::at(const torch::Tensor& like) {
  const c10::InferenceMode outlives_it(false);  // who trains later needs an ordinary table
  if (!fits(table_.cos, like)) {
    const torch::Tensor angles = rope_angles_grid(layout_, size_, base_);
    const auto as_wanted = [&](const torch::Tensor& x) { return x.to(like.device(), table_dtype(like)); };
    table_ = {as_wanted(angles.cos()), as_wanted(angles.sin()), /*halves=*/false};
  }
  return table_;
}

RopeTable RopeCache::at(const torch::Tensor& positions, std::int64_t count, const torch::Tensor& like) {
  const c10::InferenceMode outlives_it(false);
  const auto split = [&](const torch::Tensor& rows) {
    const std::vector<torch::Tensor> parts = rows.split(size_ / 2, -1);
    return RopeTable{parts[0], parts[1], /*halves=*/true};
  };
  if (!fits(table_, like) || table_.size(0) < count) {
    std::int64_t room = 64;
    while (room < count) room *= 2;
    const torch::Tensor angles = rope_angles_1d(torch::arange(room), size_, base_);
    table_ = torch::cat({angles.cos(), angles.sin()}, -1).to(like.device(), table_dtype(like));
    whole_ = {}, last_ = {};
  }
  if (!positions.defined()) {
    if (!whole_.cos.defined() || whole_.cos.size(0) != count) whole_ = split(table_.narrow(0, 0, count));
    return whole_;
  }
  if (!last_.is(positions)) {
    std::vector<std::int64_t> shape = positions.sizes().vec();
    shape.push_back(size_);
    last_table_ = split(table_.index_select(0, positions.flatten()).view(shape));
    last_ = Seen(positions);
  }
  return last_table_;
}

RopeTable RopeCache::packed(const torch::Tensor& cu_seqlens, std::int64_t count, const torch::Tensor& like) {
  const c10::InferenceMode outlives_it(false);
  if (!last_packed_.is(cu_seqlens) || packed_positions_.size(0) != count ||
      packed_positions_.device() != like.device()) {
    packed_positions_ = token_positions(count, cu_seqlens, like.device());
    last_packed_ = Seen(cu_seqlens);
  }
  return at(packed_positions_, count, like);
}

}  // namespace mhla
