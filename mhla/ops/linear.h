// A linear layer with its gradients, whose products on the CPU are those of oneDNN: x [..., K], weight [O, K], bias [O]
// to x weight^T + bias [..., O]. Twice differentiable. What linear_layer_fit() names a reason for is at::linear.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace mhla::ops {

// Why LibTorch computes it, or "": f32 in host memory, not a few products only, and oneDNN is there.
std::string linear_layer_fit(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {});
at::Tensor linear_layer(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {});

// Why bf16 autocast on this CPU is not worth it, or "": LibTorch's products of bf16 are oneDNN's, which are fast where
// the CPU has instructions for them.
std::string cpu_bf16_fit();

}  // namespace mhla::ops
