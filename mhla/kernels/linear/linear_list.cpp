#include "mhla/core/error.h"
#include "mhla/core/threads.h"
#include "mhla/kernels/linear/linear_impl.h"

namespace mhla {
namespace {

constexpr const char* kLinearForward = "linear_forward";

void expect(const ConstView& view, const char* name, int rank, const char* shape) {
  if (view.rank != rank) fail(kLinearForward, ": ", name, " has shape ", shape_text(view), ", expected ", shape);
  if (view.dtype != DType::kF32) fail(kLinearForward, ": ", name, " is ", name_of(view.dtype), ", expected f32");
  if (view.device != kCpu) fail(kLinearForward, ": ", name, " is on cuda:", view.device, ", expected host memory");
  const auto last = static_cast<std::size_t>(rank - 1);
  if (view.shape[last] > 1 && view.stride[last] != 1)
    fail(kLinearForward, ": ", name, " has last stride ", view.stride[last], ", expected 1");
}

// The definition.
void linear_ref(const LinearProblem& p, Executor&) {
  for (std::int64_t n = 0; n < p.N; ++n)
    for (std::int64_t o = 0; o < p.O; ++o) {
      double sum = 0.0;
      for (std::int64_t k = 0; k < p.K; ++k)
        sum += static_cast<double>(p.x[n * p.x_stride + k]) * static_cast<double>(p.weight[o * p.weight_stride + k]);
      if (p.maybe_bias != nullptr) sum += static_cast<double>(p.maybe_bias[o]);
      p.out[n * p.out_stride + o] = static_cast<float>(sum);
    }
}

}  // namespace

void linear_forward(const LinearParams& params, const View& out, const RunOptions& run) {
  expect(params.x, "x", 2, "[N, K]");
  expect(params.weight, "weight", 2, "[O, K]");
  expect(out, "out", 2, "[N, O]");
  LinearProblem p;
  p.N = params.x.shape[0], p.K = params.x.shape[1], p.O = params.weight.shape[0];
  if (params.weight.shape[1] != p.K)
    fail(kLinearForward, ": weight has shape ", shape_text(params.weight), ", expected [O, ", p.K, "]");
  if (out.shape[0] != p.N || out.shape[1] != p.O)
    fail(kLinearForward, ": out has shape ", shape_text(out), ", expected [", p.N, ", ", p.O, "]");
  if (params.maybe_bias.given()) {
    expect(params.maybe_bias, "bias", 1, "[O]");
    if (params.maybe_bias.shape[0] != p.O)
      fail(kLinearForward, ": bias has shape ", shape_text(params.maybe_bias), ", expected [", p.O, "]");
    p.maybe_bias = data_as<float>(params.maybe_bias);
  }
  if (!run.candidate.empty() && run.candidate != "simd" && run.candidate != "ref")
    fail(kLinearForward, ": candidate is '", run.candidate, "', expected simd or ref");
  p.x = data_as<float>(params.x), p.weight = data_as<float>(params.weight), p.out = data_as<float>(out);
  p.x_stride = params.x.stride[0], p.weight_stride = params.weight.stride[0], p.out_stride = out.stride[0];
  if (p.N == 0 || p.O == 0) return;
  std::shared_ptr<Executor> own;
  if (run.maybe_executor == nullptr) own = default_executor();
  Executor& executor = run.maybe_executor != nullptr ? *run.maybe_executor : *own;
  if (run.candidate == "ref") return linear_ref(p, executor);
  linear_simd(p, executor);
}

}  // namespace mhla
