#include "apps/engine/bench_training.h"

#include "mhla/core/error.h"
#include "mhla/ops/cuda_graph.h"
#include "mhla/train/adamw.h"
#include "mhla/train/gradients.h"

namespace mhla::apps {
namespace {

using namespace mhla::train;

constexpr double kRate = 1e-4;

#ifdef MHLA_TORCH_CUDA

// `gradients` as a graph, after runs that fill caches and choose algorithms. The parameters keep its gradients, which
// every replay writes anew.
class RecordedGradients {
 public:
  RecordedGradients(const torch::Device& device, AdamW& optimizer, const std::function<void()>& gradients) {
    constexpr int kBefore = 3;
    const c10::cuda::CUDAStream stream = ops::recording_stream(device);
    {
      const c10::cuda::CUDAStreamGuard on_its_stream(stream);
      for (int i = 0; i < kBefore; ++i) optimizer.zero_grad(), gradients();
    }
    torch::cuda::synchronize(device.index());
    optimizer.zero_grad();
    ops::record_graph(graph_, stream, {0, 0}, gradients);
  }
  void operator()() { graph_.replay(); }

 private:
  at::cuda::CUDAGraph graph_;
};

#endif

}  // namespace

Measured measure_training(const BenchModelRequest& bench, const torch::Device& device, const TrainingStep& step) {
  const TrainOptions options = options_of(bench);
  step.module.train();
  AdamW optimizer(param_groups(step.module, options), {});
  const std::function<void()> gradients = [&] {
    torch::Tensor loss;
    {
      const Autocast autocast(options, device);
      loss = step.loss();
    }
    loss.backward();
  };
  const auto update = [&] {
    const GradientNorms norms = gradient_norms(optimizer.groups(), options.clip_mix_apart.value_or(true));
    optimizer.step(kRate, gradient_scales(norms, 1.0, options.clip_norm));
    step.constrain();
  };
  if (!bench.cuda_graph) return measure(bench, device, [&] { gradients(), update(), optimizer.zero_grad(); });
  if (!device.is_cuda()) fail("bench model: --cuda-graph is on, expected a CUDA device, not ", bench.device);
#ifdef MHLA_TORCH_CUDA
  RecordedGradients recorded(device, optimizer, gradients);
  return measure(bench, device, [&] { recorded(), update(); });
#else
  fail("bench model: --cuda-graph needs a LibTorch with CUDA");
#endif
}

}  // namespace mhla::apps
