// Blocks gathered, summaries, mixing, read-out:
//   S = k~^T v,  S~ = mix S,  out = scale q~ S~ / (eps + q~ z~)
// Blocks come first, so that the mixing of all heads and batch elements is one product: of the layouts that `mhla bench
// op --rivals plain` tries, the fastest at the shapes of these models.
#include "mhla/modules/plain_attention.h"

#include <array>

#include "mhla/core/error.h"
#include "mhla/ops/feature_map.h"

namespace mhla {
namespace {

// A raster cut into blocks of equal size: frames, rows, columns.
struct EqualBlocks {
  std::array<std::int64_t, 3> count{1, 1, 1}, size{1, 1, 1};

  EqualBlocks(const Layout& layout, std::int64_t N) {
    if (layout.rank == 1) {
      count[2] = (N + layout.block_size - 1) / layout.block_size, size[2] = layout.block_size;
    } else {
      for (std::size_t axis = 0; axis < 3; ++axis) {
        count[axis] = layout.blocks[axis];
        size[axis] = layout.grid[axis] / layout.blocks[axis];
      }
    }
    if (count[0] * count[1] * count[2] * size[0] * size[1] * size[2] != N)
      fail("plain_bidirectional: ", N, " tokens in blocks that are not equal, expected blocks of one size");
  }
  // [B, N, H, X] to [M, B, H, C, X].
  [[nodiscard]] torch::Tensor cut(const torch::Tensor& x) const {
    return x.reshape({x.size(0), count[0], size[0], count[1], size[1], count[2], size[2], x.size(2), x.size(3)})
        .permute({1, 3, 5, 0, 7, 2, 4, 6, 8})
        .reshape({count[0] * count[1] * count[2], x.size(0), x.size(2), size[0] * size[1] * size[2], x.size(3)});
  }
  // Back again.
  [[nodiscard]] torch::Tensor join(const torch::Tensor& x) const {
    return x.reshape({count[0], count[1], count[2], x.size(1), x.size(2), size[0], size[1], size[2], x.size(4)})
        .permute({3, 0, 5, 1, 6, 2, 7, 4, 8})
        .reshape({x.size(1), x.size(0) * x.size(3), x.size(2), x.size(4)});
  }
};

}  // namespace

torch::Tensor plain_bidirectional(const ops::AttentionInputs& in, const ops::BidirectionalOptions& options) {
  if (in.mix.dim() != 2 || options.normalizer == Normalizer::kOfficial || in.cu_seqlens.defined())
    fail("plain_bidirectional: a mix per head, the official normaliser or packed sequences, expected neither");
  const EqualBlocks blocks(options.layout, in.q.size(1));
  const std::int64_t group = in.q.size(2) / in.k.size(2);
  const auto shared = [&](const torch::Tensor& x) { return group == 1 ? x : x.repeat_interleave(group, 2); };
  const auto map = [&](const torch::Tensor& x) { return blocks.cut(ops::apply_features(x, options.feature_map)); };
  const torch::Tensor q = map(in.q), k = map(shared(in.k)), v = blocks.cut(shared(in.v));
  const torch::Tensor mix = in.mix.to(q.scalar_type());
  const auto mixed = [&](const torch::Tensor& x) {
    return torch::mm(mix, x.reshape({mix.size(0), -1})).view(x.sizes());
  };
  const torch::Tensor S = torch::matmul(k.transpose(-1, -2), v);  // [M, B, H, D, E]
  torch::Tensor out = torch::matmul(q, mixed(S)) * options.scale;
  if (options.normalizer == Normalizer::kPaper) {
    const bool own = in.q_den.defined();
    const torch::Tensor z = mixed((own ? map(shared(in.k_den)) : k).sum(3));  // [M, B, H, D]
    out = out / (torch::matmul(own ? map(in.q_den) : q, z.unsqueeze(-1)) + options.eps);
  }
  return blocks.join(out);
}

torch::Tensor plain_rms_norm(const torch::Tensor& x, const torch::Tensor& weight, double eps) {
  return x * torch::rsqrt(x.square().mean(-1, /*keepdim=*/true) + eps) * weight;
}

}  // namespace mhla
