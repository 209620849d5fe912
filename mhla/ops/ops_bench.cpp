// What the way through PyTorch costs: the operator beside the kernel it calls, on a problem so small that nothing else
// counts. Interleaved, best of many short runs. Exit 1 above 15 microseconds without gradients.
//   ninja ops_bench && bin/ops_bench [cuda]
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>

#include "mhla/core/cuda.h"
#include "mhla/ops/ops.h"
#include "mhla/ops/tensor_view.h"

namespace mhla::ops {
namespace {

constexpr double kLimit = 15.0;  // microseconds

// Host time of one call in microseconds: the work of a device is waited for outside.
double microseconds(const std::function<void()>& call, const std::function<void()>& wait) {
  constexpr int kCalls = 200;
  wait();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kCalls; ++i) call();
  const auto end = std::chrono::steady_clock::now();
  wait();
  return std::chrono::duration<double, std::micro>(end - begin).count() / kCalls;
}

int run(const at::Device& device) {
  const at::TensorOptions options = at::TensorOptions(device).dtype(device.is_cuda() ? at::kBFloat16 : at::kFloat);
  const at::Tensor qkv = at::randn({1, 16, 3, 2, 16}, options);  // a fused projection: its slices are strided
  const AttentionInputs in{
      qkv.select(2, 0), qkv.select(2, 1), qkv.select(2, 2), at::rand({2, 2}, options.dtype(at::kFloat)), {}, {}, {}};
  AttentionInputs learned = in;
  for (at::Tensor* x : {&learned.q, &learned.k, &learned.v, &learned.mix}) *x = x->detach().requires_grad_();
  const std::vector<at::Tensor> leaves{learned.q, learned.k, learned.v, learned.mix};
  const at::Tensor out = at::empty({1, 16, 2, 16}, options), dout = at::randn({1, 16, 2, 16}, options);
  const auto wait = [&] {
    if (device.is_cuda()) device_synchronize(device.index(), current_stream(qkv));
  };

  double worst = 0.0;
  for (const bool causal : {false, true}) {
    const BidirectionalOptions line{.layout = Layout::line(8)};
    const auto op = [&](const AttentionInputs& x) {
      return causal ? chunkwise(x, {.chunk = 8}) : bidirectional(x, line);
    };
    RunOptions where;
    where.stream = current_stream(qkv);
    BidirectionalParams params;
    params.layout = line.layout;
    ChunkwiseParams causal_params;
    causal_params.chunk = 8;
    const auto fill = [&](auto& p) {
      p.q = view_of(in.q, "bench", "q"), p.k = view_of(in.k, "bench", "k"), p.v = view_of(in.v, "bench", "v");
      p.mix = view_of(in.mix, "bench", "mix");
    };
    fill(params), fill(causal_params);
    const View out_view = output_view(out, "bench", "out");
    const auto kernel = [&] {
      if (causal)
        chunkwise_forward(causal_params, out_view, where);
      else
        bidirectional_forward(params, out_view, where);
    };
    double raw = 1e30, plain = 1e30, forward = 1e30, both = 1e30;
    for (int round = 0; round < 40; ++round) {
      raw = std::min(raw, microseconds(kernel, wait));
      {
        const at::NoGradGuard no_gradients;
        plain = std::min(plain, microseconds([&] { op(in); }, wait));
      }
      forward = std::min(forward, microseconds([&] { op(learned); }, wait));
      both = std::min(both, microseconds([&] { torch::autograd::grad({op(learned)}, leaves, {dout}); }, wait));
    }
    std::printf("%-13s %s: kernel %.1f us, op %.1f us (+%.1f), with autograd %.1f us, and its backward %.1f us\n",
                causal ? "chunkwise" : "bidirectional", device.str().c_str(), raw, plain, plain - raw, forward, both);
    worst = std::max(worst, plain - raw);
  }
  std::printf("ops_bench: +%.1f us at most, limit %.0f\n", worst, kLimit);
  return worst <= kLimit ? 0 : 1;
}

}  // namespace
}  // namespace mhla::ops

int main(int count, char** arguments) {
  const bool cuda = count > 1 && std::strcmp(arguments[1], "cuda") == 0;
  return mhla::ops::run(cuda ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU));
}
