// torch.ops.mhla.init_mix and its relatives: initial values and resampling of the mixing matrix as f32 tensors in host
// memory. They run once per layer, not per step.
#include "mhla/core/error.h"
#include "mhla/kernels/mixing/mixing.h"
#include "mhla/ops/tensor_view.h"

namespace mhla::ops {
namespace {

BlockGrid block_grid(at::IntArrayRef blocks, const char* entry, const char* name) {
  if (blocks.size() == 1) return BlockGrid::line(blocks[0]);
  if (blocks.size() == 2) return BlockGrid::grid2d(blocks[0], blocks[1]);
  if (blocks.size() == 3) return BlockGrid::grid3d(blocks[0], blocks[1], blocks[2]);
  fail(entry, ": ", name, " has ", blocks.size(), " axes, expected 1, 2 or 3");
}

at::Tensor square(std::int64_t rows) { return at::empty({rows, rows}, at::kFloat); }

at::Tensor init_mix_op(at::IntArrayRef blocks, Text transform, bool official, double exp_sigma,
                       double local_threshold) {
  const BlockGrid grid = block_grid(blocks, "init_mix", "blocks");
  const at::Tensor mix = square(grid.count());
  init_mix({.transform = parse_mix_transform(view_of(transform)),
            .official = official,
            .exp_sigma = exp_sigma,
            .local_threshold = local_threshold},
           grid, output_view(mix, "init_mix", "mix"));
  return mix;
}

at::Tensor init_causal_mix_op(std::int64_t rows, Text init, double exp_sigma) {
  if (rows < 1) fail("init_causal_mix: rows is ", rows, ", expected at least 1");
  const at::Tensor mix = square(rows);
  init_causal_mix(parse_causal_init(view_of(init)), output_view(mix, "init_causal_mix", "mix"), exp_sigma);
  return mix;
}

at::Tensor resample_mix_op(const at::Tensor& mix, at::IntArrayRef from, at::IntArrayRef to, bool causal) {
  const BlockGrid source = block_grid(from, "resample_mix", "from"), target = block_grid(to, "resample_mix", "to");
  const at::Tensor given = mix.detach().to(at::kCPU, mix.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  std::vector<std::int64_t> sizes = given.sizes().vec();
  if (sizes.size() >= 2) sizes[sizes.size() - 2] = sizes[sizes.size() - 1] = target.count();
  const at::Tensor out = at::empty(sizes, given.options());
  resample_mix(view_of(given, "resample_mix", "mix"), source, output_view(out, "resample_mix", "out"), target, causal);
  return out.to(mix.options());
}

TORCH_LIBRARY_FRAGMENT(mhla, m) {
  m.def(
      "init_mix(int[] blocks, str transform=\"linear\", bool official=False, float exp_sigma=3.0, "
      "float local_threshold=1.5) -> Tensor",
      init_mix_op);
  m.def("init_causal_mix(int rows, str init=\"prefix\", float exp_sigma=3.0) -> Tensor", init_causal_mix_op);
  m.def("resample_mix(Tensor mix, int[] source, int[] target, bool causal=False) -> Tensor", resample_mix_op);
}

}  // namespace
}  // namespace mhla::ops
