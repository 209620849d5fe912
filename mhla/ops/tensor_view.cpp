#include "mhla/ops/tensor_view.h"

#include "mhla/core/error.h"

namespace mhla::ops {
namespace {

alignas(64) std::byte no_memory[64];  // an address for views whose elements nobody reads

View described(const at::Tensor& x, const char* entry, const char* name) {
  View view;
  if (!x.defined()) return view;
  if (x.layout() != at::kStrided) fail(entry, ": ", name, " is ", c10::str(x.layout()), ", expected a strided tensor");
  if (x.dim() == 0) fail(entry, ": ", name, " is a single number, expected a tensor with axes");
  if (x.dim() > kMaxRank) fail(entry, ": ", name, " has ", x.dim(), " axes, expected at most ", kMaxRank);
  view.dtype = dtype_of(x, entry, name);
  view.rank = static_cast<int>(x.dim());
  for (int axis = 0; axis < view.rank; ++axis) {
    view.shape[axis] = x.size(axis);
    view.stride[axis] = x.stride(axis);
  }
  return view;
}

View real_view(const at::Tensor& x, const char* entry, const char* name) {
  View view = described(x, entry, name);
  if (!view.given()) return view;
  if (!x.is_cpu() && !x.is_cuda()) fail(entry, ": ", name, " is on ", c10::str(x.device()), ", expected cpu or cuda");
  view.device = x.is_cuda() ? x.get_device() : kCpu;
  view.data = x.data_ptr();
  return view;
}

}  // namespace

DType dtype_of(const at::Tensor& x, const char* entry, const char* name) {
  switch (x.scalar_type()) {
    case at::kFloat: return DType::kF32;
    case at::kBFloat16: return DType::kBF16;
    case at::kHalf: return DType::kF16;
    case at::kDouble: return DType::kF64;
    case at::kChar: return DType::kI8;
    case at::kByte: return DType::kU8;
    case at::kShort: return DType::kI16;
    case at::kInt: return DType::kI32;
    case at::kLong: return DType::kI64;
    case at::kBool: return DType::kBool;
    default:
      fail(entry, ": ", name, " has dtype ", c10::str(x.scalar_type()),
           ", expected float32, bfloat16, float16 or float64");
  }
}

at::ScalarType scalar_type_of(DType dtype) {
  switch (dtype) {
    case DType::kF32: return at::kFloat;
    case DType::kBF16: return at::kBFloat16;
    case DType::kF16: return at::kHalf;
    case DType::kF64: return at::kDouble;
    case DType::kI8: return at::kChar;
    case DType::kU8: return at::kByte;
    case DType::kI16: return at::kShort;
    case DType::kI32: return at::kInt;
    case DType::kI64: return at::kLong;
    case DType::kBool: return at::kBool;
    default: fail("scalar_type_of: PyTorch has no ", name_of(dtype));
  }
}

ConstView view_of(const at::Tensor& x, const char* entry, const char* name) { return real_view(x, entry, name); }
View output_view(const at::Tensor& x, const char* entry, const char* name) { return real_view(x, entry, name); }

View shape_view(const at::Tensor& x, const char* entry, const char* name) {
  View view = described(x, entry, name);
  if (view.given()) view.data = no_memory;
  return view;
}

at::Tensor with_dense_rows(const at::Tensor& x) {
  const bool dense = x.dim() == 0 || x.size(-1) <= 1 || x.stride(-1) == 1;
  return dense ? x : x.contiguous();
}

void* current_stream([[maybe_unused]] const at::Tensor& x) {
#ifdef MHLA_TORCH_CUDA
  if (x.is_cuda()) return c10::cuda::getCurrentCUDAStream(x.get_device()).stream();
#endif
  return nullptr;
}

at::Tensor on_host(const at::Tensor& cu_seqlens, [[maybe_unused]] const char* entry) {
  if (!cu_seqlens.defined() || cu_seqlens.is_cpu()) return cu_seqlens;
#ifdef MHLA_TORCH_CUDA
  if (cu_seqlens.is_cuda()) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    C10_CUDA_CHECK(cudaStreamIsCapturing(c10::cuda::getCurrentCUDAStream(cu_seqlens.get_device()).stream(), &status));
    if (status != cudaStreamCaptureStatusNone)
      fail(entry, ": cu_seqlens is on ", c10::str(cu_seqlens.device()),
           " while a CUDA graph is captured, expected host memory: reading it would wait for the device");
  }
#endif
  return cu_seqlens.cpu();
}

}  // namespace mhla::ops
