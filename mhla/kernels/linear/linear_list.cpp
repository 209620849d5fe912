#include "mhla/core/error.h"
#include "mhla/core/threads.h"
#include "mhla/kernels/linear/linear_impl.h"

namespace mhla {
namespace {

constexpr const char* kLinearForward = "linear_forward";

void expect(const ConstView& view, const char* name, int rank, const char* shape, DType dtype) {
  if (view.rank != rank) fail(kLinearForward, ": ", name, " has shape ", shape_text(view), ", expected ", shape);
  if (view.dtype != dtype)
    fail(kLinearForward, ": ", name, " is ", name_of(view.dtype), ", expected ", name_of(dtype), " like x");
  if (view.device != kCpu) fail(kLinearForward, ": ", name, " is on cuda:", view.device, ", expected host memory");
  const auto last = static_cast<std::size_t>(rank - 1);
  if (view.shape[last] > 1 && view.stride[last] != 1)
    fail(kLinearForward, ": ", name, " has last stride ", view.stride[last], ", expected 1");
}

// The definition.
template <class T>
void linear_ref(const LinearProblem<T>& p) {
  for (std::int64_t n = 0; n < p.N; ++n)
    for (std::int64_t o = 0; o < p.O; ++o) {
      double sum = 0.0;
      for (std::int64_t k = 0; k < p.K; ++k)
        sum += to_f64(p.x[n * p.x_stride + k]) * to_f64(p.weight[o * p.weight_stride + k]);
      if (p.maybe_bias != nullptr) sum += to_f64(p.maybe_bias[o]);
      store_f64(p.out, kDTypeOf<T>, n * p.out_stride + o, sum);
    }
}

template <class T>
void linear_any(const LinearParams& params, const View& out, const RunOptions& run) {
  LinearProblem<T> p;
  p.N = params.x.shape[0], p.K = params.x.shape[1], p.O = params.weight.shape[0];
  p.x = data_as<T>(params.x), p.weight = data_as<T>(params.weight), p.out = data_as<T>(out);
  if (params.maybe_bias.given()) p.maybe_bias = data_as<T>(params.maybe_bias);
  p.x_stride = params.x.stride[0], p.weight_stride = params.weight.stride[0], p.out_stride = out.stride[0];
  if (p.N == 0 || p.O == 0) return;
  if (run.candidate == "ref") return linear_ref(p);
  std::shared_ptr<Executor> own;
  if (run.maybe_executor == nullptr) own = default_executor();
  linear_simd(p, run.maybe_executor != nullptr ? *run.maybe_executor : *own);
}

}  // namespace

void linear_forward(const LinearParams& params, const View& out, const RunOptions& run) {
  const DType dtype = params.x.dtype;
  if (dtype != DType::kF32 && dtype != DType::kBF16)
    fail(kLinearForward, ": x is ", name_of(dtype), ", expected f32 or bf16");
  expect(params.x, "x", 2, "[N, K]", dtype);
  expect(params.weight, "weight", 2, "[O, K]", dtype);
  expect(out, "out", 2, "[N, O]", dtype);
  const std::int64_t N = params.x.shape[0], K = params.x.shape[1], O = params.weight.shape[0];
  if (params.weight.shape[1] != K)
    fail(kLinearForward, ": weight has shape ", shape_text(params.weight), ", expected [O, ", K, "]");
  if (out.shape[0] != N || out.shape[1] != O)
    fail(kLinearForward, ": out has shape ", shape_text(out), ", expected [", N, ", ", O, "]");
  if (params.maybe_bias.given()) {
    expect(params.maybe_bias, "bias", 1, "[O]", dtype);
    if (params.maybe_bias.shape[0] != O)
      fail(kLinearForward, ": bias has shape ", shape_text(params.maybe_bias), ", expected [", O, "]");
  }
  if (!run.candidate.empty() && run.candidate != "simd" && run.candidate != "ref")
    fail(kLinearForward, ": candidate is '", run.candidate, "', expected simd or ref");
  dtype == DType::kBF16 ? linear_any<bf16>(params, out, run) : linear_any<float>(params, out, run);
}

}  // namespace mhla
