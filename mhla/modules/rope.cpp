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
  const auto fits = [&](const torch::Tensor& table) {
    return table.defined() && table.device() == like.device() && table.scalar_type() == dtype;
  };
  if (!fits(cos_) || cos_.size(0) < count) {
    std::int64_t room = 64;
    while (room < count) room *= 2;
    const torch::Tensor angles = rope_angles_1d(torch::arange(room), size_, base_);
    cos_ = angles.cos().to(like.device(), dtype), sin_ = angles.sin().to(like.device(), dtype);
  }
  if (!positions.defined()) return {cos_.narrow(0, 0, count), sin_.narrow(0, 0, count), /*halves=*/true};
  if (!last_.is(positions) || !fits(last_table_.cos)) {
    const auto rows = [&](const torch::Tensor& table) {
      std::vector<std::int64_t> shape = positions.sizes().vec();
      shape.push_back(size_ / 2);
      return table.index_select(0, positions.flatten()).view(shape);
    };
    last_table_ = {rows(cos_), rows(sin_), /*halves=*/true};
    last_ = Seen(positions);
  }
  return last_table_;
}

RopeTable RopeCache::packed(const torch::Tensor& cu_seqlens, std::int64_t count, const torch::Tensor& like) {
  if (!last_packed_.is(cu_seqlens) || packed_positions_.size(0) != count ||
      packed_positions_.device() != like.device()) {
    packed_positions_ = token_positions(count, cu_seqlens, like.device());
    last_packed_ = Seen(cu_seqlens);
  }
  return at(packed_positions_, count, like);
}

namespace {

// One half, or every other channel, of x.
torch::Tensor part_of(const torch::Tensor& x, std::int64_t which, bool halves) {
  const std::int64_t pairs = x.size(-1) / 2;
  return halves ? x.narrow(-1, which * pairs, pairs) : x.unflatten(-1, {pairs, 2}).select(-1, which);
}

// (a, b) to (a cos - b sin, a sin + b cos): six passes over half of x each, where autograd of the formula makes two
// dozen. Products in the dtype of the table, rounded once to that of x.
torch::Tensor turned(const torch::Tensor& x, const torch::Tensor& cos, const torch::Tensor& sin, bool halves) {
  torch::Tensor out = torch::empty_like(x, c10::MemoryFormat::Contiguous);
  const torch::Tensor a = part_of(x, 0, halves), b = part_of(x, 1, halves);
  torch::Tensor first = part_of(out, 0, halves), second = part_of(out, 1, halves);
  torch::sub_out(first, a * cos, b * sin);
  torch::add_out(second, a * sin, b * cos);
  return out;
}

class Rotation : public torch::autograd::Function<Rotation> {
 public:
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               const torch::Tensor& cos, const torch::Tensor& sin, bool halves) {
    context->save_for_backward({cos, sin});
    context->saved_data["halves"] = halves;
    return turned(x, cos, sin, halves);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const torch::autograd::variable_list table = context->get_saved_variables();
    return {turned(gradients[0], table[0], -table[1], context->saved_data["halves"].toBool()), torch::Tensor(),
            torch::Tensor(), torch::Tensor()};
  }
};

}  // namespace

torch::Tensor rotate(const torch::Tensor& x, const RopeTable& table) {
  const torch::ScalarType wide = x.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  return Rotation::apply(x, table.cos.to(wide).unsqueeze(-2), table.sin.to(wide).unsqueeze(-2), table.halves);
}

}  // namespace mhla
