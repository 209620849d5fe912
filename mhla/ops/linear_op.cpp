// x weight^T + bias and its three gradients in f32 on the CPU, as products of oneDNN. LibTorch's own go to OpenBLAS,
// whose threads wait for each other at every panel and are not those of LibTorch. oneDNN is in memory wherever LibTorch
// was built with it; it has no header here, so its one function is looked up by name.
#include <dlfcn.h>

#include <cstdint>

#include "mhla/core/error.h"
#include "mhla/ops/attention_op.h"
#include "mhla/ops/linear.h"

namespace mhla::ops {
namespace {

constexpr const char* kLinearEntry = "linear_layer";
constexpr std::int64_t kLeastProducts = std::int64_t{1} << 22;  // some 40 us: four times what autograd's node costs

// Of a single row, column or input oneDNN adds all products one by one: six times the error of OpenBLAS at 70,001.
constexpr std::int64_t kThinnest = 16;

// c [M, N] = a [M, K] b [K, N], row-major, each of a and b as it is ('N') or transposed ('T'); adds to c if beta is 1.
using Sgemm = int (*)(char transpose_a, char transpose_b, std::int64_t M, std::int64_t N, std::int64_t K, float alpha,
                      const float* a, std::int64_t a_stride, const float* b, std::int64_t b_stride, float beta,
                      float* c, std::int64_t c_stride);

Sgemm find_sgemm() {
#if defined(__x86_64__)  // elsewhere it may be plain loops
  for (const char* name : {"libdnnl.so.2", "libdnnl.so.3"}) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_NOLOAD)) {  // stays open: LibTorch needs it
      if (void* found = dlsym(library, "dnnl_sgemm")) return reinterpret_cast<Sgemm>(found);
    }
  }
#endif
  return nullptr;
}

Sgemm sgemm() {
  static const Sgemm found = find_sgemm();
  return found;
}

struct Factor {
  at::Tensor rows;  // contiguous
  bool transposed = false;
};

void multiply(const Factor& a, const Factor& b, const at::Tensor& c, bool add = false) {
  const std::int64_t M = c.size(0), N = c.size(1), K = a.rows.size(a.transposed ? 0 : 1);
  const int status =
      sgemm()(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', M, N, K, 1.0f, a.rows.data_ptr<float>(),
              a.rows.size(1), b.rows.data_ptr<float>(), b.rows.size(1), add ? 1.0f : 0.0f, c.data_ptr<float>(), N);
  if (status != 0) fail(kLinearEntry, ": dnnl_sgemm returned ", status, ", expected 0");
}

at::Tensor as_matrix(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}).contiguous(); }

at::Tensor product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  RECORD_USER_SCOPE("mhla::linear_layer");
  const at::Tensor rows = as_matrix(x), out = at::empty({rows.size(0), weight.size(0)}, rows.options());
  if (bias.defined()) out.copy_(bias);  // one row to all
  multiply({rows}, {weight.contiguous(), true}, out, bias.defined());
  std::vector<std::int64_t> shape = x.sizes().vec();
  shape.back() = weight.size(0);
  return out.view(shape);
}

struct LinearFunction : torch::autograd::Function<LinearFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const Optional<at::Tensor>& bias) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({x, weight});
    context->saved_data["bias"] = bias.has_value();
    return product(x, weight, value_or_undefined(bias));
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& given) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &dout = given[0];
    const bool differentiate = at::GradMode::is_enabled();  // create_graph: products that have gradients themselves
    torch::autograd::variable_list gradients(3);            // of x, weight and bias
    const at::Tensor dy = differentiate ? dout.reshape({-1, dout.size(-1)}) : as_matrix(dout);
    if (context->needs_input_grad(0)) {
      at::Tensor dx;
      if (differentiate) {
        dx = at::mm(dy, weight);
      } else {
        dx = at::empty({dy.size(0), weight.size(1)}, dy.options());
        multiply({dy}, {weight.contiguous()}, dx);
      }
      gradients[0] = dx.view(x.sizes());
    }
    if (context->needs_input_grad(1)) {
      if (differentiate) {
        gradients[1] = at::mm(dy.t(), x.reshape({-1, x.size(-1)}));
      } else {
        gradients[1] = at::empty(weight.sizes(), dy.options());
        multiply({dy, true}, {as_matrix(x)}, gradients[1]);
      }
    }
    if (context->saved_data["bias"].toBool() && context->needs_input_grad(2))
      gradients[2] = differentiate ? dy.sum(0) : row_sum(dy);
    return gradients;
  }
};

bool is_f32(const at::Tensor& x) { return x.is_cpu() && x.scalar_type() == at::kFloat; }

}  // namespace

std::string linear_layer_fit(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  if (!is_f32(x) || !is_f32(weight) || (bias.defined() && !is_f32(bias))) return "not all are f32 in host memory";
  if (x.dim() < 1 || weight.dim() != 2 || x.size(-1) != weight.size(1)) return "shapes do not match";
  if (bias.defined() && (bias.dim() != 1 || bias.size(0) != weight.size(0))) return "shapes do not match";
  if (!c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::AutocastCPU)) return "autocast is on";
  const std::int64_t K = weight.size(1), O = weight.size(0);
  if (x.numel() * O < kLeastProducts) return "few products";
  if (x.numel() < kThinnest * K || K < kThinnest || O < kThinnest) return "a thin matrix";
  return sgemm() == nullptr ? "LibTorch brought no oneDNN" : "";
}

at::Tensor linear_layer(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  if (!linear_layer_fit(x, weight, bias).empty()) return at::linear(x, weight, maybe(bias));
  if (!at::GradMode::is_enabled()) return product(x, weight, bias);
  return LinearFunction::apply(x, weight, maybe(bias));
}

std::string cpu_bf16_fit() {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx512bf16")) return "this CPU has no AVX-512 BF16";
  return at::hasMKLDNN() && at::globalContext().userEnabledMkldnn() ? "" : "this LibTorch does not use oneDNN";
#else
  return "bf16 needs a CPU with AVX-512 BF16";
#endif
}

}  // namespace mhla::ops
