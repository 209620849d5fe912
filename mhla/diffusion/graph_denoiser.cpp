#include "mhla/diffusion/graph_denoiser.h"

#ifdef MHLA_TORCH_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#endif

#include "mhla/ops/cuda_graph.h"
#include "mhla/ops/torch.h"

namespace mhla {

#ifdef MHLA_TORCH_CUDA

namespace {

constexpr int kCallsBefore = 2;  // of a kind: libraries set themselves up in them

std::vector<torch::Tensor> parts_of(const torch::Tensor& x, const torch::Tensor& t, const Conditioning& c) {
  return {x, t, c.labels, c.captions, c.captions_mask};
}

// Types and shapes. Empty: a part is not on a GPU.
std::vector<std::int64_t> kind_of(const std::vector<torch::Tensor>& parts) {
  std::vector<std::int64_t> kind;
  for (const torch::Tensor& part : parts) {
    if (part.defined() && !part.is_cuda()) return {};
    kind.push_back(part.defined() ? static_cast<std::int64_t>(part.scalar_type()) : -1);
    kind.push_back(part.defined() ? part.dim() : 0);
    if (part.defined()) kind.insert(kind.end(), part.sizes().begin(), part.sizes().end());
  }
  return kind;
}

}  // namespace

struct GraphDenoiser::Recording {
  Recording(Denoiser& model, const std::vector<torch::Tensor>& parts, std::vector<std::int64_t> of_kind)
      : kind(std::move(of_kind)) {
    for (const torch::Tensor& part : parts) inputs.push_back(part.defined() ? part.clone() : part);
    c10::cuda::CUDACachingAllocator::emptyCache();  // a graph has memory of its own: what the calls before it used is
                                                    // free
    ops::record_graph(graph, ops::recording_stream(parts.front().device()), {0, 0}, [&] {
      out = model.denoise(inputs[0], inputs[1], {inputs[2], inputs[3], inputs[4]});
    });
  }

  torch::Tensor replay(const std::vector<torch::Tensor>& parts) {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].defined()) inputs[i].copy_(parts[i]);
    }
    graph.replay();
    return out.clone();  // samplers keep earlier answers
  }

  std::vector<std::int64_t> kind;
  std::vector<torch::Tensor> inputs;  // where the graph reads
  torch::Tensor out;
  at::cuda::CUDAGraph graph;
};

torch::Tensor GraphDenoiser::denoise(const torch::Tensor& x, const torch::Tensor& t, const Conditioning& condition) {
  replayed_ = false;
  if (torch::GradMode::is_enabled() || !model_.can_be_recorded()) return model_.denoise(x, t, condition);
  const std::vector<torch::Tensor> parts = parts_of(x, t, condition);
  std::vector<std::int64_t> kind = kind_of(parts);
  if (kind.empty()) return model_.denoise(x, t, condition);
  if (!recording_) {
    alike_ = kind == last_kind_ ? alike_ + 1 : 1;
    last_kind_ = kind;
    if (alike_ <= kCallsBefore) return model_.denoise(x, t, condition);
    recording_ = std::make_unique<Recording>(model_, parts, kind);
  }
  if (kind != recording_->kind) return model_.denoise(x, t, condition);
  replayed_ = true;
  return recording_->replay(parts);
}

#else

struct GraphDenoiser::Recording {};

torch::Tensor GraphDenoiser::denoise(const torch::Tensor& x, const torch::Tensor& t, const Conditioning& condition) {
  return model_.denoise(x, t, condition);
}

#endif

GraphDenoiser::GraphDenoiser(Denoiser& model) : model_(model) {}
GraphDenoiser::~GraphDenoiser() = default;

}  // namespace mhla
