#include "mhla/modules/zoo/zoo_parts.h"

#include "mhla/modules/rope.h"

namespace mhla {

Packed::Packed(const char* name, const torch::Tensor& x, const torch::Tensor& cu_seqlens) {
  if (!cu_seqlens.defined()) return;
  const std::int64_t N = x.size(1);
  if (x.size(0) != 1) fail(name, ": x has ", x.size(0), " batch elements, expected 1 with cu_seqlens");
  if (cu_seqlens.dim() != 1 || cu_seqlens.numel() < 1 ||
      (cu_seqlens.scalar_type() != torch::kInt && cu_seqlens.scalar_type() != torch::kLong)) {
    fail(name, ": cu_seqlens is ", c10::str(cu_seqlens.scalar_type()), " of shape ", c10::str(cu_seqlens.sizes()),
         ", expected int32 or int64 of shape [S + 1]");
  }
  const torch::Tensor host = cu_seqlens.to(torch::kCPU, torch::kLong).contiguous();
  bounds.assign(host.data_ptr<std::int64_t>(), host.data_ptr<std::int64_t>() + host.numel());
  if (bounds.front() != 0 || bounds.back() != N)
    fail(name, ": cu_seqlens goes from ", bounds.front(), " to ", bounds.back(), ", expected 0 to N = ", N);
  for (std::size_t i = 1; i < bounds.size(); ++i) {
    if (bounds[i] < bounds[i - 1])
      fail(name, ": cu_seqlens[", i, "] is ", bounds[i], ", expected at least ", bounds[i - 1]);
  }
  positions = token_positions(N, host, x.device());
  first = positions == 0;
}

}  // namespace mhla
