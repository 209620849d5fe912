// Cases of testing/ as LibTorch tensors: the same memory, strides and all.
#pragma once

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <vector>

#include "mhla/ops/ops.h"
#include "mhla/ops/tensor_view.h"
#include "mhla/testing/cases.h"
#include "mhla/testing/messages.h"
#include "mhla/testing/run_case.h"

namespace mhla::ops {

inline at::Tensor tensor_of(const ConstView& view) {
  if (!view.given()) return {};
  const at::IntArrayRef sizes(view.shape.data(), static_cast<std::size_t>(view.rank));
  const at::IntArrayRef strides(view.stride.data(), static_cast<std::size_t>(view.rank));
  return at::from_blob(const_cast<void*>(view.data), sizes, strides, at::TensorOptions(scalar_type_of(view.dtype)));
}

// A leaf of a graph, random.
inline at::Tensor leaf(at::IntArrayRef sizes, at::ScalarType type = at::kDouble) {
  return at::randn(sizes, type).set_requires_grad(true);
}

// The values of x in f32, a leaf of their own.
inline at::Tensor as_f32(const at::Tensor& x) { return x.detach().to(at::kFloat).set_requires_grad(true); }

// How far tensors differ, in f64 and relative to the norm of `want`.
inline double off(const at::Tensor& got, const at::Tensor& want) {
  const at::Tensor here = want.cpu().to(at::kDouble);
  return ((got.cpu().to(at::kDouble) - here).norm() / here.norm()).item<double>();
}

inline AttentionInputs inputs_of(const CaseInputs& in) {
  return {tensor_of(in.q),
          tensor_of(in.k),
          tensor_of(in.v),
          tensor_of(in.mix),
          tensor_of(in.maybe_q_den),
          tensor_of(in.maybe_k_den),
          tensor_of(in.maybe_cu_seqlens)};
}

inline at::Tensor run_op(const Case& c, const AttentionInputs& in) {
  if (c.form == Form::kBidirectional) {
    return bidirectional(in, {.layout = c.layout,
                              .feature_map = c.feature_map,
                              .normalizer = c.normalizer,
                              .eps = c.eps,
                              .scale = c.scale.value_or(1.0)});
  }
  return chunkwise(in, {.chunk = c.layout.block_size,
                        .feature_map = c.feature_map,
                        .normalizer = c.normalizer,
                        .eps = c.eps,
                        .scale = c.scale,
                        .beyond_mix = c.extend ? BeyondMix::kExtend : BeyondMix::kError});
}

// Leaves of a graph over the same memory, in the order of the gradients; those that are not given are left out.
inline std::vector<at::Tensor> require_gradients(AttentionInputs& in) {
  std::vector<at::Tensor> leaves;
  for (at::Tensor* x : {&in.q, &in.k, &in.v, &in.mix, &in.q_den, &in.k_den}) {
    if (!x->defined()) continue;
    *x = x->detach().requires_grad_();
    leaves.push_back(*x);
  }
  return leaves;
}

}  // namespace mhla::ops
