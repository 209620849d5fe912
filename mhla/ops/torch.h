// What ops/ includes of LibTorch, precompiled once for the room, and where its versions differ: LibTorch 1.13 (Debian)
// and PyTorch 2.11 compile from the same sources, and every difference between them is spelled here.
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

// Softmax attention of [B, H, N, D] with scale D^-1/2: PyTorch 2's own kernels, the formula before.
inline at::Tensor softmax_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal) {
#if TORCH_VERSION_MAJOR >= 2
  return at::scaled_dot_product_attention(q, k, v, {}, 0.0, causal);
#else
  at::Tensor scores = at::matmul(q, k.transpose(-1, -2)) * (1.0 / std::sqrt(static_cast<double>(q.size(-1))));
  if (causal) {
    const at::Tensor future = at::ones({q.size(2), k.size(2)}, q.options().dtype(at::kBool)).triu(1);
    scores = scores.masked_fill(future, -std::numeric_limits<double>::infinity());
  }
  return at::matmul(scores.softmax(-1), v);
#endif
}

// Autocast of the CPU for this thread.
inline void set_cpu_autocast(bool on) {
#if TORCH_VERSION_MAJOR >= 2
  at::autocast::set_autocast_enabled(at::kCPU, on);
#else
  at::autocast::set_cpu_enabled(on);
#endif
}

}  // namespace mhla::ops
