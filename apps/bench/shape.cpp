#include "apps/bench/shape.h"

#include <fmt/format.h>

#include <sstream>

#include "apps/cli/axes.h"
#include "mhla/core/limits.h"
#include "mhla/core/view.h"

namespace mhla::apps {
namespace {

OpShape image(std::string name, std::int64_t B, std::int64_t H, std::int64_t D, std::int64_t side,
              std::int64_t blocks) {
  return {
      std::move(name), OpForm::kBidirectional, B, side * side, H, H, D, D, Layout::grid2d(side, side, blocks, blocks)};
}

OpShape language(std::string name, std::int64_t B, std::int64_t N, std::int64_t chunk) {
  return {std::move(name), OpForm::kCausal, B, N, 4, 4, 128, 256, Layout::line(chunk)};
}

std::vector<OpShape> all_shapes() {
  return {
      image("deit_t_224", 128, 3, 64, 16, 4),
      image("dit_s_256", 64, 6, 64, 16, 4),
      image("dit_xl_512", 16, 16, 72, 32, 4),
      image("sana_1024", 8, 36, 32, 32, 4),
      image("dit_s_4096", 1, 6, 64, 256, 16),
      {"wan_480p", OpForm::kBidirectional, 1, 31500, 12, 12, 128, 128, Layout::grid3d({21, 30, 50}, {7, 3, 5})},
      language("lm_2048", 16, 2048, 64),
      language("lm_16384", 2, 16384, 128),
      language("lm_65536", 1, 65536, 256),
  };
}

Layout grid_of(const ShapeOptions& options) {
  const std::vector<std::int64_t> grid = parse_axes(options.grid, "--grid");
  if (grid.size() < 2) fail("--grid is '", options.grid, "', expected two or three numbers joined by x, such as 16x16");
  if (options.blocks.empty()) fail("--grid needs --blocks, the number of blocks per axis");
  std::vector<std::int64_t> blocks = parse_axes(options.blocks, "--blocks");
  if (blocks.size() == 1) blocks.resize(grid.size(), blocks.front());
  if (blocks.size() != grid.size())
    fail("--blocks is '", options.blocks, "', expected as many numbers as in --grid ", options.grid);
  if (grid.size() == 2) return Layout::grid2d(grid[0], grid[1], blocks[0], blocks[1]);
  return Layout::grid3d({grid[0], grid[1], grid[2]}, {blocks[0], blocks[1], blocks[2]});
}

OpShape explicit_shape(const ShapeOptions& options) {
  const bool grid = !options.grid.empty();
  if (!grid && !options.blocks.empty()) fail("--blocks needs --grid, the tokens per axis");
  if (grid && (options.block_size > 0 || options.chunk > 0)) fail("--grid excludes --block-size and --chunk");
  if (options.block_size > 0 && options.chunk > 0) fail("--block-size and --chunk exclude each other");
  OpShape shape;
  shape.form = !options.form.empty() ? parse_form(options.form)
               : options.chunk > 0   ? OpForm::kCausal
                                     : OpForm::kBidirectional;
  if (shape.causal() && grid) fail("--form ", name_of(shape.form), " takes --chunk, not --grid");
  if (!shape.causal() && options.chunk > 0) fail("--form bidirectional takes --block-size or --grid, not --chunk");
  shape.B = options.batch > 0 ? options.batch : 1;
  shape.H = options.h > 0 ? options.h : 1;
  shape.Hkv = options.hkv > 0 ? options.hkv : shape.H;
  shape.D = options.d > 0 ? options.d : 64;
  shape.E = options.e > 0 ? options.e : shape.D;
  if (grid) {
    shape.layout = grid_of(options);
    const auto& axes = shape.layout.grid;
    shape.N = options.n > 0 ? options.n : checked_product({axes[0], axes[1], axes[2]}, "--grid");
  } else {
    const std::int64_t block = options.chunk > 0 ? options.chunk : options.block_size > 0 ? options.block_size : 64;
    shape.layout = Layout::line(block);
    shape.N = options.n;
  }
  expect_within("bench op", "--grid", shape.N, limits::kTokens, 0);
  if (shape.N < 1) fail("--n is missing: give the number of tokens, or --shape with one of the named shapes");
  check_layout(shape.layout, shape.N, "bench op");
  shape.name = fmt::format("b{}_h{}_n{}_d{}_m{}", shape.B, shape.H, shape.N, shape.D, shape.blocks());
  return shape;
}

}  // namespace

std::int64_t OpShape::blocks() const { return BlockMap(layout, N).blocks(); }

OpSizes OpShape::sizes() const {
  OpSizes sizes{causal(), B, N, H, Hkv, D, E, blocks(), 0, 0};
  sizes.C = causal() ? chunk() : 0;
  sizes.mix_rows = sizes.M;
  return sizes;
}

std::vector<std::string> split_list(const std::string& text) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');)
    if (!part.empty()) parts.push_back(part);
  return parts;
}

std::vector<std::string> shape_names() {
  std::vector<std::string> names;
  for (const OpShape& shape : all_shapes()) names.push_back(shape.name);
  return names;
}

OpShape named_shape(const std::string& name) {
  std::string known;
  for (const OpShape& shape : all_shapes()) {
    if (shape.name == name) return shape;
    known += (known.empty() ? "" : ", ") + shape.name;
  }
  fail("--shape is '", name, "', expected one of ", known);
}

std::vector<OpShape> shapes_of(const ShapeOptions& options) {
  const std::pair<std::int64_t, const char*> sizes[] = {
      {options.batch, "--batch"}, {options.n, "--n"}, {options.h, "--h"},         {options.hkv, "--hkv"},
      {options.d, "--d"},         {options.e, "--e"}, {options.chunk, "--chunk"}, {options.block_size, "--block-size"}};
  if (options.names.empty()) return {explicit_shape(options)};

  for (const auto& [value, option] : sizes)
    if (value > 0 && std::string(option) != "--batch") fail(option, " excludes --shape, whose sizes are fixed");
  if (!options.grid.empty() || !options.blocks.empty()) fail("--grid and --blocks exclude --shape");
  std::vector<OpShape> shapes;
  for (const std::string& name : split_list(options.names)) {
    OpShape shape = named_shape(name);
    if (!options.form.empty()) {
      const OpForm form = parse_form(options.form);
      const bool fits = form == shape.form || (form == OpForm::kDecode && shape.causal());
      if (!fits) fail("--form is ", name_of(form), ", but ", name, " is a ", name_of(shape.form), " shape");
      shape.form = form;
    }
    if (options.batch > 0) shape.B = options.batch;
    shapes.push_back(shape);
  }
  if (shapes.empty()) fail("--shape is empty, expected names joined by commas");
  return shapes;
}

}  // namespace mhla::apps
