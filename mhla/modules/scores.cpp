#include "mhla/modules/scores.h"

namespace mhla {

torch::Tensor denominators(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& mix,
                           const Layout& layout, Normalizer normalizer) {
  const std::int64_t N = q.size(1), H = q.size(2);
  const BlockMap map(layout, N);
  const torch::Tensor rows = mix.dim() == 3 ? mix : mix.unsqueeze(0);  // [Hm, M, M]
  const torch::Tensor heads_k = k.repeat_interleave(H / k.size(2), 2);
  std::vector<torch::Tensor> tokens, sums;  // of every block
  for (std::int64_t b = 0; b < map.blocks(); ++b) {
    std::vector<std::int64_t> inside;
    for (std::int64_t run = 0; run < map.runs(b); ++run)
      for (std::int64_t i = 0; i < map.run_length(b); ++i) inside.push_back(map.run_start(b, run) + i);
    tokens.push_back(torch::tensor(inside, torch::TensorOptions(torch::kLong).device(q.device())));
    sums.push_back(heads_k.index_select(1, tokens.back()).sum(1));  // [B, H, D]
  }
  const torch::Tensor z = torch::stack(sums);  // [M, B, H, D]
  torch::Tensor den = torch::empty({q.size(0), N, H}, q.options());
  std::vector<torch::Tensor> seen;  // official: q_{b,w} . z_b, [B, C, H] of every block
  for (std::size_t b = 0; normalizer == Normalizer::kOfficial && b < tokens.size(); ++b)
    seen.push_back((q.index_select(1, tokens[b]) * sums[b].unsqueeze(1)).sum(-1));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const torch::Tensor weights = rows.select(1, static_cast<std::int64_t>(i)).t();  // [M, Hm]
    const torch::Tensor value =
        normalizer == Normalizer::kOfficial
            ? (torch::stack(seen) * weights.unsqueeze(1).unsqueeze(1)).sum(0)
            : (q.index_select(1, tokens[i]) * (z * weights.unsqueeze(1).unsqueeze(-1)).sum(0).unsqueeze(1)).sum(-1);
    den.index_copy_(1, tokens[i], value);
  }
  return den;
}

}  // namespace mhla
