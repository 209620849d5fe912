#include "mhla/train/batch_pass.h"

#include "mhla/core/error.h"
#include "mhla/ops/cuda_graph.h"
#include "mhla/train/trainer.h"

namespace mhla::train {

bool sums_losses(const TrainOptions& options) {
  return options.accumulate > 1 || share_of(options).parts > 1 || options.place.ranks > 1;
}

BatchResult BatchPass::work(const TrainBatch& batch) {
  BatchResult result;
  {
    const Autocast autocast(options_, device_);
    result = task_.forward(batch);
  }
  const torch::Tensor part = sums_losses(options_) ? result.loss * static_cast<double>(batch.weight) : result.loss;
  part.backward();
  result.loss = result.loss.detach();
  for (auto& [name, sum] : result.sums) sum = sum.detach();
  return result;
}

#ifdef MHLA_TORCH_CUDA

namespace {

constexpr int kNotRecorded = 3;  // batches of a kind that come before its recording

// What a recording depends on: the samples, and the inputs' types and shapes. Empty: an input is the host's to read.
std::vector<std::int64_t> kind_of(const TrainBatch& batch) {
  std::vector<std::int64_t> kind{batch.weight};
  for (const torch::Tensor& input : batch.inputs) {
    if (input.defined() && !input.is_cuda()) return {};
    kind.push_back(input.defined() ? static_cast<std::int64_t>(input.scalar_type()) : -1);
    kind.push_back(input.defined() ? input.dim() : 0);
    if (input.defined()) kind.insert(kind.end(), input.sizes().begin(), input.sizes().end());
  }
  return kind;
}

}  // namespace

struct BatchPass::Recording {
  Recording(BatchPass& pass, const TrainBatch& batch, std::vector<std::int64_t> of_kind) : kind(std::move(of_kind)) {
    inputs.weight = batch.weight;
    for (const torch::Tensor& input : batch.inputs) inputs.inputs.push_back(input.defined() ? input.clone() : input);
    for (const torch::Tensor& parameter : pass.task_.model().parameters()) {
      if (parameter.requires_grad()) parameters.push_back(parameter);
    }
    std::vector<torch::Tensor> before;  // what earlier batches of the step have left
    for (const torch::Tensor& parameter : parameters) {
      before.push_back(parameter.grad());
      parameter.mutable_grad().reset();
    }
    ops::record_graph(graph, ops::recording_stream(pass.device_), {0, 0}, [&] { result = pass.work(inputs); });
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      gradients.push_back(parameters[i].grad());
      parameters[i].mutable_grad() = before[i];
    }
  }

  // `adds`: to the gradients that are there; else the parameters get those of the graph, which the next replay changes.
  BatchResult replay(const TrainBatch& batch, bool adds) {
    for (std::size_t i = 0; i < batch.inputs.size(); ++i) {
      if (batch.inputs[i].defined()) inputs.inputs[i].copy_(batch.inputs[i]);
    }
    graph.replay();
    std::vector<torch::Tensor> sums, own;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      torch::Tensor& gradient = parameters[i].mutable_grad();
      if (adds && gradient.defined() && gradients[i].defined()) {
        sums.push_back(gradient), own.push_back(gradients[i]);
      } else if (!adds || gradients[i].defined()) {
        gradient = adds ? gradients[i].clone() : gradients[i];
      }
    }
    if (!sums.empty()) torch::_foreach_add_(sums, own);
    if (!adds) return result;
    BatchResult kept{.loss = result.loss.clone(), .sums = result.sums};  // the next batch of the step is replayed, too
    for (auto& [name, sum] : kept.sums) sum = sum.clone();
    return kept;
  }

  std::vector<std::int64_t> kind;
  TrainBatch inputs;  // where the graph reads
  std::vector<torch::Tensor> parameters, gradients;
  at::cuda::CUDAGraph graph;
  BatchResult result;
};

BatchResult BatchPass::operator()(const TrainBatch& batch) {
  replayed_ = false;
  if (!options_.cuda_graph) return work(batch);
  std::vector<std::int64_t> kind = kind_of(batch);
  if (!recording_) {
    alike_ = kind == last_kind_ ? alike_ + 1 : 1;
    last_kind_ = kind;
    if (kind.empty() || alike_ <= kNotRecorded) return work(batch);
    recording_ = std::make_unique<Recording>(*this, batch, kind);
  }
  if (kind != recording_->kind) return work(batch);
  replayed_ = true;
  return recording_->replay(batch, /*adds=*/options_.accumulate > 1);
}

#else

struct BatchPass::Recording {};

BatchResult BatchPass::operator()(const TrainBatch& batch) { return work(batch); }

#endif

BatchPass::BatchPass(Task& task, const TrainOptions& options, const torch::Device& device)
    : task_(task), options_(options), device_(device) {
  if (!options.cuda_graph) return;
  if (!device.is_cuda()) fail("train: cuda_graph is on, expected a CUDA device, not ", options.device);
  const std::string reason = task.why_not_recorded();
  if (!reason.empty()) fail("train: cuda_graph is on, but ", reason);
}

BatchPass::~BatchPass() = default;

}  // namespace mhla::train
