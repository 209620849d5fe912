// What ops/ includes of LibTorch, precompiled once for the room, and where its versions differ: LibTorch 1.13 (Debian)
// and PyTorch 2.2 to 2.15 compile from the same sources, and every difference between them is spelled here, but that
// of cuDNN's attention (cudnn_attention.h).
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>
#include <torch/library.h>
#include <torch/version.h>
#ifdef MHLA_TORCH_CUDA
#include <c10/cuda/CUDAStream.h>
#endif

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// 2.4 names the device of autocast as an argument.
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
#define MHLA_AUTOCAST_BY_DEVICE 1
#endif

namespace mhla::ops {

#if TORCH_VERSION_MAJOR >= 2
template <class T>
using Optional = std::optional<T>;
inline constexpr auto kNone = std::nullopt;
#else
template <class T>
using Optional = c10::optional<T>;
inline constexpr auto kNone = c10::nullopt;
#endif

// How text crosses the dispatcher.
using Text = c10::string_view;
inline std::string_view view_of(Text text) { return {text.data(), text.size()}; }
inline Text text_of(std::string_view text) { return Text(text.data(), text.size()); }

// Whether any size is a symbol of torch.compile, whose value is not known yet.
inline bool symbolic(const at::Tensor& x) {
  if (!x.defined()) return false;
  for (const c10::SymInt& size : x.sym_sizes()) {
#if TORCH_VERSION_MAJOR >= 2
    if (size.is_heap_allocated()) return true;
#else
    if (size.is_symbolic()) return true;
#endif
  }
  return false;
}

// Softmax attention of [B, H, N, D] with scale D^-1/2: PyTorch 2's own kernels, the formula before. `mask` [B, 1, N,
// Nk], instead of causal: what a query may see.
inline at::Tensor softmax_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal,
                                    const at::Tensor& mask = {}) {
#if TORCH_VERSION_MAJOR >= 2
  if (mask.defined()) return at::scaled_dot_product_attention(q, k, v, mask);
  return at::scaled_dot_product_attention(q, k, v, {}, 0.0, causal);
#else
  at::Tensor scores = at::matmul(q, k.transpose(-1, -2)) * (1.0 / std::sqrt(static_cast<double>(q.size(-1))));
  if (causal) {
    const at::Tensor future = at::ones({q.size(2), k.size(2)}, q.options().dtype(at::kBool)).triu(1);
    scores = scores.masked_fill(future, -std::numeric_limits<double>::infinity());
  }
  if (mask.defined()) scores = scores.masked_fill(mask.logical_not(), -std::numeric_limits<double>::infinity());
  return at::matmul(scores.softmax(-1), v);
#endif
}

// bf16 autocast of operations on the CPU or on CUDA devices, for this thread.
inline void set_autocast(at::DeviceType device, bool on) {
#ifdef MHLA_AUTOCAST_BY_DEVICE
  at::autocast::set_autocast_dtype(device, at::kBFloat16);
  at::autocast::set_autocast_enabled(device, on);
#else
  if (device == at::kCPU) {
    at::autocast::set_autocast_cpu_dtype(at::kBFloat16);
    at::autocast::set_cpu_enabled(on);
  } else {
    at::autocast::set_autocast_gpu_dtype(at::kBFloat16);
    at::autocast::set_enabled(on);
  }
#endif
}

inline bool autocast_on(at::DeviceType device) {
#ifdef MHLA_AUTOCAST_BY_DEVICE
  return at::autocast::is_autocast_enabled(device);
#else
  return device == at::kCPU ? at::autocast::is_cpu_enabled() : at::autocast::is_enabled();
#endif
}

// One AdamW step of CUDA tensors, gradients times `grad_scale` [] f32: PyTorch 2's fused kernel.
struct AdamWStep {
  double lr = 0, beta1 = 0, beta2 = 0, weight_decay = 0, eps = 0;
  std::int64_t t = 1;
};
inline void fused_adamw(at::TensorList params, at::TensorList grads, at::TensorList m, at::TensorList v,
                        const AdamWStep& step, const at::Tensor& grad_scale) {
#if TORCH_VERSION_MAJOR >= 2
  const at::Tensor t = at::full({}, static_cast<double>(step.t), params[0].options().dtype(at::kFloat));
  const std::vector<at::Tensor> steps(params.size(), t);
  at::_fused_adamw_(params, grads, m, v, {}, steps, step.lr, step.beta1, step.beta2, step.weight_decay, step.eps,
                    /*amsgrad=*/false, /*maximize=*/false, grad_scale.reciprocal(), {});  // it divides
#else
  (void)grads, (void)m, (void)v, (void)step, (void)grad_scale;
  TORCH_CHECK(false, "AdamW on ", params[0].device(), " needs PyTorch 2, this is LibTorch 1");
#endif
}

}  // namespace mhla::ops
