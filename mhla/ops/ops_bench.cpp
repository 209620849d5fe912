// What the way through PyTorch costs: the operator beside the kernel it calls, on a problem so small that nothing else
// counts. Interleaved, best of many short runs. Exit 1 above 15 microseconds without gradients. Then rope, norm and
// linear layers at the size of a layer of mhla_340m and of vit_256, beside the same in PyTorch's operators, which they
// must agree with.
//   ninja ops_bench && bin/ops_bench [cuda]
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>

#include "mhla/core/cuda.h"
#include "mhla/kernels/rope/rope.h"
#include "mhla/ops/linear.h"
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

std::function<void()> waiting(const at::Tensor& x) {
  return [x] {
    if (x.is_cuda()) device_synchronize(x.get_device(), current_stream(x));
  };
}

// Milliseconds of one call, the best of a few rounds.
double milliseconds(const std::function<void()>& call, const at::Tensor& on) {
  const int calls = on.is_cuda() ? 20 : 2;
  const std::function<void()> wait = waiting(on);
  call();
  double best = 1e30;
  for (int round = 0; round < 5; ++round) {
    wait();
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) call();
    wait();
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    best = std::min(best, took.count() / calls);
  }
  return best;
}

// What one call of rope costs beyond its kernel, in microseconds.
double rope_cost(const at::TensorOptions& options) {
  const at::Tensor qkv = at::randn({1, 16, 3, 2, 16}, options), q = qkv.select(2, 0), k = qkv.select(2, 1);
  const at::Tensor angles = at::randn({16, 8}, options.dtype(at::kFloat));
  const RopeTable table{angles.cos(), angles.sin(), /*halves=*/true};
  const at::Tensor q_out = at::empty(q.sizes(), options), k_out = at::empty(k.sizes(), options);
  RopeParams params;
  params.q = view_of(q, "bench", "q"), params.maybe_k = view_of(k, "bench", "k");
  params.cos = view_of(table.cos, "bench", "cos"), params.sin = view_of(table.sin, "bench", "sin");
  params.feature_map = FeatureMap::kRelu;
  const View q_view = output_view(q_out, "bench", "q_out"), k_view = output_view(k_out, "bench", "k_out");
  RunOptions where;
  where.stream = current_stream(q);
  const at::Tensor learned = qkv.detach().clone().requires_grad_();
  double raw = 1e30, plain = 1e30, forward = 1e30;
  for (int round = 0; round < 40; ++round) {
    raw = std::min(raw, microseconds([&] { rope(params, q_view, k_view, where); }, waiting(q)));
    {
      const at::NoGradGuard no_gradients;
      plain = std::min(plain, microseconds([&] { rope(q, k, table, FeatureMap::kRelu); }, waiting(q)));
    }
    const at::Tensor a = learned.select(2, 0), b = learned.select(2, 1);
    forward = std::min(forward, microseconds([&] { rope(a, b, table, FeatureMap::kRelu); }, waiting(q)));
  }
  std::printf("%-13s %s: kernel %.1f us, op %.1f us (+%.1f), with autograd %.1f us\n", "rope", q.device().str().c_str(),
              raw, plain, plain - raw, forward);
  return plain - raw;
}

// relu and rope of q and k, [B, 2048, 4, 128] each, slices of one projection as wide as that of mhla_340m.
bool rope_at_size(const at::TensorOptions& options, std::int64_t B) {
  const std::int64_t N = 2048, H = 4, D = 128;
  const at::Tensor qkv = at::randn({B, N, 4 * H * D}, options).requires_grad_();
  const at::Tensor angles = at::arange(N, options.dtype(at::kDouble)).unsqueeze(-1) *
                            at::pow(1e-4, at::arange(0, D, 2, options.dtype(at::kDouble)) / D);
  const RopeTable table{angles.cos().to(at::kFloat), angles.sin().to(at::kFloat), /*halves=*/true};
  const auto heads = [&](std::int64_t which) { return qkv.narrow(-1, which * H * D, H * D).unflatten(-1, {H, D}); };
  const at::Tensor c = table.cos.unsqueeze(-2), s = table.sin.unsqueeze(-2);
  const auto plain = [&](const at::Tensor& x) {
    const std::vector<at::Tensor> parts = x.relu().chunk(2, -1);
    return at::cat({parts[0] * c - parts[1] * s, parts[0] * s + parts[1] * c}, -1).to(x.scalar_type());
  };
  const std::function<std::pair<at::Tensor, at::Tensor>()> ways[] = {
      [&] { return rope(heads(0), heads(1), table, FeatureMap::kRelu); },
      [&] { return std::pair(plain(heads(0)), plain(heads(1))); }};
  const at::Tensor dout = at::randn({B, N, H, D}, options);
  double ms[2][2], off = 0;
  for (const int way : {0, 1}) {
    const auto both = [&] {
      const auto [q, k] = ways[way]();
      return torch::autograd::grad({q, k}, {qkv}, {dout, dout})[0];
    };
    if (way == 0) {
      const auto [q, k] = ways[0]();
      const auto [plain_q, plain_k] = ways[1]();
      off = (q - plain_q).abs().max().item<double>() + (k - plain_k).abs().max().item<double>();
    }
    ms[way][0] = milliseconds(
        [&] {
          const at::NoGradGuard no_gradients;
          ways[way]();
        },
        qkv);
    ms[way][1] = milliseconds([&] { both(); }, qkv);
  }
  const double bytes = static_cast<double>(4 * B * N * H * D * dout.element_size());  // q and k in and out
  std::printf(
      "rope          %s: B%lld at %lld tokens, forward %.3f ms (%.0f GB/s), and backward %.3f ms; "
      "PyTorch's operators %.3f and %.3f ms; largest difference %.1e\n",
      qkv.device().str().c_str(), static_cast<long long>(B), static_cast<long long>(N), ms[0][0],
      bytes / ms[0][0] * 1e-6, ms[0][1], ms[1][0], ms[1][1], off);
  return off <= 0.05;  // f32 has the same bits; 16 bits may round apart where products were fused
}

// One of our operators beside what PyTorch has instead. `bytes`: what the forward pass must move; `most`: how far
// results may be apart.
struct Contest {
  const char* name;
  std::string size;
  std::function<at::Tensor()> ours, theirs;
  std::vector<at::Tensor> inputs;
  at::Tensor dout;
  double bytes, most;
};

bool run_contest(const Contest& c) {
  const at::Tensor& x = c.inputs[0];
  double ms[2][2];
  for (const int way : {0, 1}) {
    const auto& call = way == 0 ? c.ours : c.theirs;
    ms[way][0] = milliseconds(
        [&] {
          const at::NoGradGuard no_gradients;
          call();
        },
        x);
    ms[way][1] = milliseconds([&] { torch::autograd::grad({call()}, c.inputs, {c.dout}); }, x);
  }
  const double off = (c.ours() - c.theirs()).abs().max().item<double>();
  std::printf(
      "%-13s %s: %s, forward %.3f ms (%.0f GB/s), and backward %.3f ms; PyTorch's operators %.3f and %.3f ms; largest "
      "difference %.1e\n",
      c.name, x.device().str().c_str(), c.size.c_str(), ms[0][0], c.bytes / ms[0][0] * 1e-6, ms[0][1], ms[1][0],
      ms[1][1], off);
  return off <= c.most;
}

// LayerNorm of the sums of a vision transformer, f32, into what its linear layers take.
bool norm_at_size(const at::TensorOptions& options, std::int64_t rows) {
  const std::int64_t X = 192;
  const at::Tensor x = at::randn({rows, X}, options.dtype(at::kFloat)).requires_grad_();
  const at::Tensor weight = at::randn({X}, x.options()).detach().requires_grad_();
  const at::Tensor bias = at::randn({X}, x.options()).detach().requires_grad_(), dout = at::randn({rows, X}, options);
  NormOptions how;
  how.bias = bias, how.centered = true, how.dtype = dout.scalar_type();
  return run_contest({"norm",
                      str(rows, " rows of ", X, " to ", c10::toString(dout.scalar_type())),
                      [=] { return norm(x, weight, how); },
                      [=] { return at::layer_norm(x, {X}, weight, bias, how.eps).to(dout.scalar_type()); },
                      {x, weight, bias},
                      dout,
                      static_cast<double>(rows * X * (4 + dout.element_size())),
                      dout.scalar_type() == at::kFloat ? 1e-4 : 0.2});
}

// What stands between the products of an MLP on the CPU, 8,192 tokens and 768 channels in between.
bool activations_at_size(at::ScalarType type) {
  const std::int64_t rows = 8192, X = 768;
  const at::Tensor x = at::randn({rows, X}, type).requires_grad_(), up = at::randn({rows, X}, type).requires_grad_();
  const at::Tensor dout = at::randn({rows, X}, type), bias = at::zeros({X}).requires_grad_();
  const double bytes = static_cast<double>(rows * X * dout.element_size()), most = type == at::kFloat ? 1e-5 : 0.2;
  const std::string size = str(rows, " rows of ", X, " ", c10::toString(type));
  bool same = true;
  for (const bool tanh : {true, false}) {
    same = run_contest({tanh ? "tanh_gelu" : "erf_gelu",
                        size,
                        [=] { return tanh ? tanh_gelu(x, bias) : erf_gelu(x, bias); },
                        [=] { return at::gelu(x + bias.to(type), tanh ? "tanh" : "none"); },
                        {x, bias},
                        dout,
                        2 * bytes,
                        most}) &&
           same;
  }
  return run_contest({"swiglu",
                      size,
                      [=] { return swiglu(x, up); },
                      [=] { return at::silu(x) * up; },
                      {x, up},
                      dout,
                      3 * bytes,
                      most}) &&
         same;
}

// A linear layer of the MLP of vit_256, batch 32, with its bias; GFLOP/s of all three products.
bool linear_at_size(std::int64_t K, std::int64_t O) {
  const std::int64_t rows = 8192;
  const at::Tensor x = at::randn({rows, K}).requires_grad_(), weight = at::randn({O, K}).requires_grad_();
  const at::Tensor bias = at::randn({O}).requires_grad_(), dout = at::randn({rows, O});
  const std::function<at::Tensor()> ways[] = {[&] { return linear_layer(x, weight, bias); },
                                              [&] { return at::linear(x, weight, bias); }};
  double ms[2];
  for (const int way : {0, 1})
    ms[way] = milliseconds([&] { torch::autograd::grad({ways[way]()}, {x, weight, bias}, {dout}); }, x);
  const double off = (ways[0]() - ways[1]()).abs().max().item<double>();
  const double flops = 6.0 * static_cast<double>(rows * K * O);
  const std::string reason = linear_layer_fit(x, weight, bias);
  std::printf(
      "linear        cpu: %lld rows, %lld to %lld, forward and backward %.1f ms (%.0f GFLOP/s)%s%s; PyTorch's "
      "operators "
      "%.1f ms (%.0f); largest difference %.1e\n",
      static_cast<long long>(rows), static_cast<long long>(K), static_cast<long long>(O), ms[0], flops / ms[0] * 1e-6,
      reason.empty() ? "" : ", the same: ", reason.c_str(), ms[1], flops / ms[1] * 1e-6, off);
  return off <= 1e-3;
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
  const std::function<void()> wait = waiting(qkv);

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
  worst = std::max(worst, rope_cost(options));
  const bool rope_agrees = rope_at_size(options, device.is_cuda() ? 16 : 1);
  bool agrees = norm_at_size(options, device.is_cuda() ? 131072 : 8192) && rope_agrees;
  for (const auto& [K, O] : {std::pair{192, 768}, std::pair{768, 192}, std::pair{192, 576}})
    agrees = agrees && (device.is_cuda() || linear_at_size(K, O));
  if (device.is_cpu()) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) agrees = activations_at_size(type) && agrees;
    agrees = norm_at_size(options.dtype(at::kBFloat16), 8192) && agrees;
  }
  std::printf("ops_bench: +%.1f us at most, limit %.0f\n", worst, kLimit);
  return worst <= kLimit && agrees ? 0 : 1;
}

}  // namespace
}  // namespace mhla::ops

int main(int count, char** arguments) {
  mhla::ops::set_num_threads(0);
  const bool cuda = count > 1 && std::strcmp(arguments[1], "cuda") == 0;
  return mhla::ops::run(cuda ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU));
}
