// Tensors as the kernels see them: pointer, dtype, sizes, strides, device. Nothing is copied.
#pragma once

#include "mhla/core/view.h"
#include "mhla/ops/torch.h"

namespace mhla::ops {

// An undefined tensor is a view that is not given. Throws mhla::Error naming `entry` and `name` for what a view cannot
// say: a dtype that is no plain number, a sparse tensor, more than 8 axes, a device that is neither the CPU nor CUDA.
ConstView view_of(const at::Tensor& x, const char* entry, const char* name);
View output_view(const at::Tensor& x, const char* entry, const char* name);

// The same sizes as if the tensor were in host memory, over an address that nobody reads: for checks of shapes alone.
View shape_view(const at::Tensor& x, const char* entry, const char* name);

DType dtype_of(const at::Tensor& x, const char* entry, const char* name);
at::ScalarType scalar_type_of(DType dtype);
inline bool is_kernel_dtype(at::ScalarType type) {  // f32, bf16 or f16
  return type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
}

// The tensor itself, or a copy where its last axis is not dense: a gradient that autograd expanded from a number is
// not; inputs of the operator are never copied.
at::Tensor with_dense_rows(const at::Tensor& x);

// cudaStream_t of the tensor's device that PyTorch works on now; null for host memory.
void* current_stream(const at::Tensor& x);

// cu_seqlens in host memory: itself, or a copy that waits for the device. Throws while a CUDA graph is captured.
at::Tensor on_host(const at::Tensor& cu_seqlens, const char* entry);

}  // namespace mhla::ops
